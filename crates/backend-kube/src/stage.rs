//! From a pod to how far its replica has come.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use pollux_backend::Exit;
use pollux_supervisor::{Ending, Report};

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
    Ended(Ending),
}

/// What a pod's object says.
pub(crate) fn stage(pod: &Pod) -> Stage {
    let status = pod.status.clone().unwrap_or_default();
    let main = main_status(pod, status.container_statuses.as_deref());
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Stage::Ended(judged(pod, ending(pod, main)));
    }
    if is_gated(pod) {
        return Stage::Gated;
    }
    match main {
        Some(main) if main.started == Some(true) => Stage::Running,
        _ => Stage::Waiting { reason: waiting_reason(pod, main) },
    }
}

/// Whether our gate holds it.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_deref()).unwrap_or_default();
    gates.iter().any(|gate| gate.name == GATE)
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

fn ending(pod: &Pod, main: Option<&ContainerStatus>) -> Ending {
    if let Some(terminated) = main.and_then(|main| main.state.as_ref()?.terminated.as_ref()) {
        return ending_of(terminated);
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

fn ending_of(terminated: &ContainerStateTerminated) -> Ending {
    let message = terminated.message.as_deref().unwrap_or_default();
    let report = serde_json::from_str(message).map(|Report { ending, .. }| ending);
    // A supervisor sees only that its program was killed, and may have been killed itself.
    let is_killed = |ending: &Ending| matches!(ending, Ending::Exited(Exit::Signal(KILL)));
    if terminated.reason.as_deref() == Some(OUT_OF_MEMORY) && report.as_ref().map_or(true, is_killed) {
        return Ending::Exited(Exit::OutOfMemory);
    }
    if let Ok(ending) = report {
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
    one_line(&waiting.unwrap_or_else(|| "its pod starts".to_owned()))
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
        match stage(pod) {
            Stage::Ended(ending) => ending,
            other => panic!("{other:?}"),
        }
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
        let gated = json!({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"});
        assert_eq!(stage(&pod(json!({"phase": "Pending", "conditions": [gated]}))), waits("its pod starts"));
    }

    #[test]
    fn the_supervisor_tells_how_a_replica_ended() {
        let told = |ending: &Ending| {
            let report = Report { ending: ending.clone(), written: Some(10) };
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
    fn without_a_supervisors_word_the_container_tells() {
        let oom = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert_eq!(ended(&main_is(oom, "Failed")), Ending::Exited(Exit::OutOfMemory));
        let killed = |exit: Exit| {
            let report = Report { ending: Ending::Exited(exit), written: None };
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
