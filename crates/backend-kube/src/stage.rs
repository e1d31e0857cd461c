//! From a pod to how far its replica has come.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use pollux_backend::{Exit, ReplicaId};
use pollux_supervisor::{Bundle, Ending, Report};

use crate::names::GATE;

/// SIGTERM: how a replica ends that was told to before it ran.
const TERM: i32 = 15;
/// SIGKILL, and how the kubelet tells that it was sent because a container used too much memory.
const KILL: i32 = 9;
const OUT_OF_MEMORY: &str = "OOMKilled";
/// How containerd tells that a container's program could not be run.
const START_ERROR: [&str; 2] = ["StartError", "ContainerCannotRun"];

/// How far a replica has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its pod is there and held back.
    Gated,
    /// Its pod was let go and does not run yet.
    Waiting { reason: String },
    /// Its program runs.
    Running,
    /// Nothing of it runs any more.
    Ended,
}

/// What a pod's object says.
pub(crate) fn stage(pod: &Pod) -> Stage {
    let status = pod.status.clone().unwrap_or_default();
    let main = main_status(pod, status.container_statuses.as_deref());
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Stage::Ended;
    }
    if is_gated(pod) {
        return Stage::Gated;
    }
    match main {
        Some(main) if main.started == Some(true) => Stage::Running,
        _ => Stage::Waiting { reason: waiting_reason(pod, main) },
    }
}

/// How a replica of a pod ended of which nothing runs any more.
pub(crate) fn ending(pod: &Pod, replica: ReplicaId) -> Ending {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    judged(pod, observed(pod, main_status(pod, statuses), replica))
}

/// Whether it was made for several replicas: then its log says whose every line is.
pub(crate) fn is_bundle(pod: &Pod) -> bool {
    let main = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    main.and_then(|main| main.env.as_deref()).unwrap_or_default().iter().any(|it| it.name == Bundle::VARIABLE)
}

/// Whether some of its replicas run and others have ended.
pub(crate) fn is_partial(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let is_whole = main_status(pod, statuses).is_none_or(|main| main.ready);
    is_bundle(pod) && stage(pod) == Stage::Running && !is_whole
}

/// Whether our gate holds it.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_deref()).unwrap_or_default();
    gates.iter().any(|gate| gate.name == GATE)
}

/// Whether the cluster's scheduler refuses to bind it.
pub(crate) fn is_unplaced(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_refused = conditions
        .iter()
        .any(|it| it.type_ == "PodScheduled" && it.status == "False" && it.reason.as_deref() == Some("Unschedulable"));
    is_refused && !is_gated(pod) && pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none())
}

/// Whether its program may ever have run.
pub(crate) fn may_have_run(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let state = main_status(pod, statuses).and_then(|main| main.state.as_ref());
    state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
}

/// What its supervisor left behind.
pub(crate) fn report(pod: &Pod) -> Option<Report> {
    let statuses = pod.status.as_ref()?.container_statuses.as_deref();
    let terminated = main_status(pod, statuses)?.state.as_ref()?.terminated.as_ref()?;
    serde_json::from_str(terminated.message.as_deref()?).ok()
}

fn main_status<'a>(pod: &Pod, statuses: Option<&'a [ContainerStatus]>) -> Option<&'a ContainerStatus> {
    let name = &pod.spec.as_ref()?.containers.first()?.name;
    statuses?.iter().find(|status| status.name == *name)
}

/// Whoever ends a pod of ours otherwise than by its supervisor has reasons that are not the job's.
fn judged(pod: &Pod, ending: Ending) -> Ending {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_disrupted = conditions.iter().any(|it| it.type_ == "DisruptionTarget" && it.status == "True");
    match ending {
        Ending::Exited(Exit::Code(0) | Exit::OutOfMemory) | Ending::StartFailed { .. } => ending,
        Ending::Exited(_) if (is_disrupted || is_deleted(pod)) && may_have_run(pod) => Ending::Exited(Exit::Evicted),
        Ending::Exited(_) => ending,
    }
}

/// Whether somebody has deleted it.
pub(crate) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn observed(pod: &Pod, main: Option<&ContainerStatus>, replica: ReplicaId) -> Ending {
    if let Some(terminated) = main.and_then(|main| main.state.as_ref()?.terminated.as_ref()) {
        return ending_of(terminated, replica);
    }
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.clone());
    let message = status.and_then(|status| status.message.clone());
    if may_have_run(pod) || main.is_some_and(|main| main.started == Some(true)) {
        return Ending::Exited(Exit::Lost);
    }
    if is_deleted(pod) {
        return Ending::Exited(Exit::Signal(TERM));
    }
    let tools = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let failed = tools.iter().find_map(|tool| {
        let terminated = tool.state.as_ref()?.terminated.as_ref().filter(|state| state.exit_code != 0)?;
        let message = terminated.message.clone().or_else(|| terminated.reason.clone()).unwrap_or_default();
        Some(format!("container {} ended with code {}: {message}", tool.name, terminated.exit_code))
    });
    let parts: Vec<String> = [reason, message, failed].into_iter().flatten().collect();
    let reason = if parts.is_empty() { "its pod failed".to_owned() } else { parts.join(": ") };
    Ending::StartFailed { reason: one_line(&reason), retryable: true }
}

fn ending_of(terminated: &ContainerStateTerminated, replica: ReplicaId) -> Ending {
    let message = terminated.message.as_deref().unwrap_or_default();
    let report = serde_json::from_str(message).ok().map(|report: Report| match report.of(replica) {
        Some((ending, _)) => ending.clone(),
        None => Ending::Exited(Exit::Lost),
    });
    // A supervisor sees only that its program was killed, and may have been killed itself.
    let is_killed = |ending: &Ending| matches!(ending, Ending::Exited(Exit::Signal(KILL)));
    if terminated.reason.as_deref() == Some(OUT_OF_MEMORY) && report.as_ref().is_none_or(is_killed) {
        return Ending::Exited(Exit::OutOfMemory);
    }
    if let Some(ending) = report {
        return ending;
    }
    if terminated.reason.as_deref().is_some_and(|reason| START_ERROR.contains(&reason)) {
        return Ending::StartFailed { reason: one_line(message), retryable: false };
    }
    match terminated.signal.filter(|signal| *signal > 0) {
        Some(signal) => Ending::Exited(Exit::Signal(signal)),
        None => Ending::Exited(Exit::Code(terminated.exit_code)),
    }
}

/// What keeps a pod from running, as the cluster tells it.
fn waiting_reason(pod: &Pod, main: Option<&ContainerStatus>) -> String {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let unscheduled =
        conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status != "True");
    // Of a gate that is gone already it is told a moment longer.
    let unscheduled = unscheduled.filter(|condition| condition.reason.as_deref() != Some("SchedulingGated"));
    if let Some(condition) = unscheduled {
        let message = condition.message.clone().or_else(|| condition.reason.clone());
        return one_line(&message.unwrap_or_else(|| "it is not scheduled yet".to_owned()));
    }
    let tools = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let waiting = tools.iter().chain(main).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| *reason != "PodInitializing")?;
        Some(match waiting.message.as_deref() {
            Some(message) => format!("image {}: {reason}: {message}", container.image),
            None => format!("container {}: {reason}", container.name),
        })
    });
    let fetched =
        || main.filter(|_| has_ended_well(tools)).map(|main| format!("its node fetches image {}", main.image));
    one_line(&waiting.or_else(fetched).unwrap_or_else(|| "its pod starts".to_owned()))
}

/// What is left to do before the program runs is to fetch its image, which may take long.
fn has_ended_well(tools: &[ContainerStatus]) -> bool {
    let is_over = |tool: &ContainerStatus| tool.state.as_ref().and_then(|state| state.terminated.as_ref()).is_some();
    !tools.is_empty() && tools.iter().all(is_over)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "it is what json! makes")]
    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [{"name": "main"}, {"name": "side"}]}, "status": status}))
            .expect("a pod")
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is what json! makes")]
    fn main_is(state: Value, phase: &str) -> Pod {
        let main = json!({"name": "main", "image": "torch:2", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        pod(json!({"phase": phase, "containerStatuses": [main]}))
    }

    fn ended(pod: &Pod) -> Ending {
        assert_eq!(stage(pod), Stage::Ended);
        ending(pod, ReplicaId(7))
    }

    #[test]
    fn a_gated_pod_is_held_back() {
        let mut pod = pod(json!({"phase": "Pending"}));
        pod.spec.as_mut().expect("a spec").scheduling_gates =
            serde_json::from_value(json!([{"name": GATE}])).expect("gates");
        assert_eq!(stage(&pod), Stage::Gated);
    }

    #[test]
    fn a_container_counts_as_running_once_its_program_does() {
        let mut pod = main_is(json!({"running": {}}), "Running");
        assert!(matches!(stage(&pod), Stage::Waiting { .. }));
        let main = &mut pod.status.as_mut().expect("a status").container_statuses.as_mut().expect("one")[0];
        main.started = Some(true);
        assert_eq!(stage(&pod), Stage::Running);
    }

    #[test]
    fn what_a_pod_waits_for_is_one_line() {
        let message = "0/3 nodes are available:\n 3 Insufficient cpu.";
        let unscheduled =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
        let waits = |reason: &str| Stage::Waiting { reason: reason.to_owned() };
        assert_eq!(
            stage(&pod(json!({"phase": "Pending", "conditions": [unscheduled]}))),
            waits("0/3 nodes are available: 3 Insufficient cpu.")
        );
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "not\nfound"}});
        assert_eq!(stage(&main_is(pull, "Pending")), waits("image torch:2: ErrImagePull: not found"));
        assert_eq!(stage(&pod(json!({"phase": "Pending"}))), waits("its pod starts"));
        let starts = |tool: Value| {
            let state = json!({"waiting": {"reason": "PodInitializing"}});
            let of = |name: &str, image: &str, state: &Value| json!({"name": name, "image": image, "imageID": "", "ready": false, "restartCount": 0, "state": state});
            let (tools, main) = (of("tools", "pollux:1", &tool), of("main", "torch:2", &state));
            pod(json!({"phase": "Pending", "initContainerStatuses": [tools], "containerStatuses": [main]}))
        };
        assert_eq!(stage(&starts(json!({"running": {}}))), waits("its pod starts"));
        let done = starts(json!({"terminated": {"exitCode": 0}}));
        assert_eq!(stage(&done), waits("its node fetches image torch:2"));
        let gated = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"});
        assert_eq!(stage(&pod(json!({"phase": "Pending", "conditions": [gated]}))), waits("its pod starts"));
    }

    #[test]
    fn the_supervisor_tells_how_a_replica_ended() {
        let told = |ending: &Ending| {
            let report = Report { ending: ending.clone(), written: Some(10), replicas: Vec::new() };
            let message = serde_json::to_string(&report).expect("JSON");
            main_is(json!({"terminated": {"exitCode": 1, "message": message}}), "Failed")
        };
        let endings = [
            Ending::Exited(Exit::Code(75)),
            Ending::Exited(Exit::Signal(9)),
            Ending::StartFailed { reason: "program x: not found".to_owned(), retryable: false },
        ];
        for ending in endings {
            assert_eq!(ended(&told(&ending)), ending);
        }
    }

    #[test]
    fn each_of_several_replicas_has_an_end_of_its_own_and_one_that_is_not_mentioned_is_lost() {
        let report = json!({"ending": {"exited": {"code": 3}}, "replicas": [
            {"ending": {"exited": {"code": 3}}, "replicas": [[18, 10]]},
            {"ending": {"exited": {"signal": 9}}, "replicas": [[17, 0], [19, 5]]},
        ]});
        let pod = |reason: &str| {
            main_is(json!({"terminated": {"exitCode": 3, "reason": reason, "message": report.to_string()}}), "Failed")
        };
        let ends = |pod: &Pod| [17, 18, 19, 20].map(|id| ending(pod, ReplicaId(id)));
        let expected = |killed| [killed, Exit::Code(3), killed, Exit::Lost].map(Ending::Exited);
        assert_eq!(ends(&pod("Error")), expected(Exit::Signal(9)));
        assert_eq!(ends(&pod("OOMKilled")), expected(Exit::OutOfMemory));
        // The kernel may kill all of a container at once.
        let whole = main_is(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "Failed");
        assert_eq!(ends(&whole), [Exit::OutOfMemory; 4].map(Ending::Exited));
    }

    #[test]
    fn a_pod_is_partial_while_it_runs_and_is_not_ready_if_it_has_several_replicas() {
        let mut pod = main_is(json!({"running": {}}), "Running");
        pod.status.as_mut().expect("a status").container_statuses.as_mut().expect("one")[0].started = Some(true);
        assert!(!is_partial(&pod));
        pod.spec.as_mut().expect("a spec").containers[0].env =
            serde_json::from_value(json!([{"name": "POLLUX_REPLICAS", "value": "{}"}])).expect("variables");
        assert!(is_partial(&pod));
        pod.status.as_mut().expect("a status").container_statuses.as_mut().expect("one")[0].ready = true;
        assert!(!is_partial(&pod));
    }

    #[test]
    fn without_a_supervisors_word_the_container_tells() {
        let oom = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert_eq!(ended(&main_is(oom, "Failed")), Ending::Exited(Exit::OutOfMemory));
        let killed = |exit: Exit| {
            let report = Report { ending: Ending::Exited(exit), written: None, replicas: Vec::new() };
            let message = serde_json::to_string(&report).expect("JSON");
            ended(&main_is(json!({"terminated": {"exitCode": 1, "reason": "OOMKilled", "message": message}}), "Failed"))
        };
        assert_eq!(killed(Exit::Signal(9)), Ending::Exited(Exit::OutOfMemory));
        assert_eq!(
            killed(Exit::Code(3)),
            Ending::Exited(Exit::Code(3)),
            "it went on after one of its processes was killed"
        );
        let missing = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}});
        let failed = Ending::StartFailed { reason: "no such file".to_owned(), retryable: false };
        assert_eq!(ended(&main_is(missing, "Failed")), failed);
    }

    #[test]
    fn a_pod_that_never_ran_may_be_tried_again() {
        let refused = pod(json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU left"}));
        let reason = "UnexpectedAdmissionError: no GPU left".to_owned();
        assert_eq!(ended(&refused), Ending::StartFailed { reason, retryable: true });
    }

    #[test]
    fn a_pod_that_was_told_to_end_before_it_ran_ends_by_that() {
        let mut told = pod(json!({"phase": "Failed"}));
        told.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a moment");
        assert_eq!(ended(&told), Ending::Exited(Exit::Signal(TERM)));
    }

    #[test]
    fn a_pod_that_others_have_ended_is_no_fault_of_its_job() {
        let mut deleted = main_is(json!({"terminated": {"exitCode": 143}}), "Failed");
        assert_eq!(ended(&deleted), Ending::Exited(Exit::Code(143)));
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a moment");
        assert_eq!(ended(&deleted), Ending::Exited(Exit::Evicted));
        let mut disrupted = main_is(json!({"terminated": {"exitCode": 137}}), "Failed");
        disrupted.status.as_mut().expect("a status").conditions =
            serde_json::from_value(json!([{"type": "DisruptionTarget", "status": "True"}])).expect("conditions");
        assert_eq!(ended(&disrupted), Ending::Exited(Exit::Evicted));
    }

    #[test]
    fn a_pod_whose_node_vanished_while_it_ran_is_lost() {
        let lost = main_is(json!({"running": {}}), "Failed");
        assert_eq!(ended(&lost), Ending::Exited(Exit::Lost));
    }
}
