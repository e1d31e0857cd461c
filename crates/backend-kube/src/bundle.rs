//! What is known and wanted of the replicas of one pod, and what is to be done next. No call waits here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use pollux_backend::{Exit, Observation, ReplicaId, ReplicaOrder};
use pollux_supervisor::{Ending, STOP_ANNOTATION, stops_text};

use crate::names::{FINALIZER, replicas_of};
use crate::stage::{Stage, ending, is_deleted, is_partial, is_unplaced, may_have_run, stage};

/// SIGTERM: how a replica ends that was told to before it ran.
const TERM: i32 = 15;
/// What a supervisor may be late with, before its pod is deleted.
const LATE: Duration = Duration::from_secs(30);
/// How long the cluster's scheduler may refuse to bind a pod to its node. What is short there for a moment comes back sooner;
/// what the node will never accept keeps GPUs from others.
const PLACED_WITHIN: Duration = Duration::from_secs(180);
/// After a failure, doubled with each.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often it is looked who has ended, while others of the pod run on. The first time says only that the pod is new.
/// Doubled with each look that tells nothing new: one that has done its work early leaves a pod so for hours.
const LOOK: Duration = Duration::from_secs(3);
const LOOK_MAX: Duration = Duration::from_secs(60);

/// One thing to ask of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Make the pod of these, held back.
    Create(Vec<ReplicaOrder>),
    /// Let the pod go, once its secret is there.
    Release { order: Option<Box<ReplicaOrder>> },
    /// Tell the supervisor who is to end.
    Stop { text: String },
    /// Read who has ended.
    ReadEnds,
    /// Delete the pod.
    Delete { grace_s: u32 },
    /// Let the object of a pod vanish.
    Unpin,
}

/// A stop that was asked for.
#[derive(Clone, Copy, Debug)]
struct Stop {
    grace: Duration,
    at: Instant,
}

/// One replica.
#[derive(Debug, Default)]
struct Member {
    /// What it runs, as long as that is needed.
    order: Option<Box<ReplicaOrder>>,
    stop: Option<Stop>,
    is_forgotten: bool,
    /// How it ended, also when its pod is gone.
    ending: Option<Ending>,
    told: Option<Observation>,
    is_start_told: bool,
}

impl Member {
    fn end(&mut self, ending: impl FnOnce() -> Ending) {
        self.ending.get_or_insert_with(ending);
        self.order = None;
    }
}

/// The replicas of a pod: one, or all that a job has on a node.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    members: BTreeMap<ReplicaId, Member>,
    pub(crate) pod: Option<Pod>,
    /// Whether its node is gone, so that nobody else would end it.
    is_abandoned: bool,
    /// Whether it was deleted because its supervisor was late.
    is_given_up: bool,
    /// Since when the cluster's scheduler refuses to bind it.
    unplaced_since: Option<Instant>,
    /// Why it was deleted before it was bound.
    not_placed: Option<String>,
    /// When it is looked again who has ended.
    look_at: Option<Instant>,
    /// Looks since there was news.
    idle_looks: u32,
    /// Whether something is being asked of the cluster.
    pub(crate) is_busy: bool,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Bundle {
    /// Knows of these replicas.
    pub(crate) fn expect(&mut self, replicas: impl IntoIterator<Item = ReplicaId>) {
        for id in replicas {
            self.members.entry(id).or_default();
        }
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        self.members.keys().copied()
    }

    /// Wants one to run.
    pub(crate) fn start(&mut self, order: &ReplicaOrder) {
        let has_pod = self.pod.is_some();
        let member = self.members.entry(order.replica).or_default();
        // A pod that is still held back may need its secret.
        if member.ending.is_none() && (!has_pod || member.order.is_none()) {
            member.order = Some(Box::new(order.clone()));
        }
        member.told = None;
    }

    /// Wants one to end; a shorter grace counts.
    pub(crate) fn stop(&mut self, id: ReplicaId, grace: Duration, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let sooner = |earlier: &Stop| now + grace >= earlier.at + earlier.grace;
        if !member.stop.as_ref().is_some_and(sooner) {
            member.stop = Some(Stop { grace, at: now });
            self.idle_looks = 0;
            self.look_at = self.look_at.map(|at| at.min(now + LOOK));
        }
        if member.ending.is_some() {
            member.told = None;
        }
    }

    /// Wants nothing of one to be kept, if it has ended.
    pub(crate) fn forget(&mut self, id: ReplicaId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.is_forgotten |= member.ending.is_some();
        }
    }

    /// Wants all to end, and nothing of them to be kept: nobody has ordered them.
    pub(crate) fn disown(&mut self, grace: Duration, now: Instant) {
        for id in self.replicas().collect::<Vec<_>>() {
            self.stop(id, grace, now);
        }
        self.members.values_mut().for_each(|member| member.is_forgotten = true);
    }

    /// Tells again how far those have come that are known, and wants the others to end that have not; returns whether there
    /// are such.
    pub(crate) fn adopt(&mut self, known: &BTreeSet<ReplicaId>, grace: Duration, now: Instant) -> bool {
        let mut strangers = Vec::new();
        for (id, member) in &mut self.members {
            match known.contains(id) {
                true => member.told = None,
                false if member.ending.is_none() => strangers.push(*id),
                false => {}
            }
        }
        strangers.iter().for_each(|id| self.stop(*id, grace, now));
        !strangers.is_empty()
    }

    /// Tells again how far all have come.
    pub(crate) fn report_again(&mut self) {
        self.members.values_mut().for_each(|member| member.told = None);
    }

    /// Its pod is as it is now.
    pub(crate) fn see(&mut self, pod: Pod) {
        self.expect(replicas_of(&pod));
        let refused = self.not_placed.clone().filter(|_| !may_have_run(&pod));
        let refused = refused.map(|reason| Ending::StartFailed { reason, retryable: true });
        if stage(&pod) == Stage::Ended {
            self.members.iter_mut().for_each(|(id, member)| {
                member.end(|| refused.clone().unwrap_or_else(|| ending(&pod, *id)));
            });
        } else if is_deleted(&pod) && !is_bound(&pod) {
            self.end(&refused.unwrap_or(Ending::Exited(Exit::Signal(TERM))));
        }
        if !is_unplaced(&pod) {
            self.unplaced_since = None;
        }
        if self.pod.as_ref().is_some_and(is_partial) != is_partial(&pod) {
            (self.idle_looks, self.look_at) = (0, None);
        }
        self.pod = Some(pod);
    }

    /// Some have ended while others run. Those after whom nobody runs are told by the end of the pod, which has their GPUs.
    pub(crate) fn learn(&mut self, ends: Vec<(ReplicaId, Ending)>, now: Instant) {
        let is_running = |members: &BTreeMap<ReplicaId, Member>, id: &ReplicaId| {
            members.get(id).is_some_and(|member| member.ending.is_none())
        };
        let ends: BTreeMap<ReplicaId, Ending> =
            ends.into_iter().filter(|(id, _)| is_running(&self.members, id)).collect();
        let running = self.members.values().filter(|member| member.ending.is_none()).count();
        let is_news = !ends.is_empty() && ends.len() < running;
        self.idle_looks = if is_news { 0 } else { self.idle_looks.saturating_add(1) };
        self.look_at = Some(now + LOOK.saturating_mul(1 << self.idle_looks.min(16)).min(LOOK_MAX));
        if is_news {
            for (id, ending) in ends {
                self.members.entry(id).or_default().end(|| ending);
            }
        }
    }

    /// Its pod is gone.
    pub(crate) fn lose(&mut self) {
        if self.pod.take().is_some() {
            self.end(&Ending::Exited(Exit::Lost));
        }
    }

    /// Its node is gone for good.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
        self.end(&Ending::Exited(Exit::Lost));
    }

    /// It cannot be started.
    pub(crate) fn fail(&mut self, reason: String, retryable: bool) {
        self.end(&Ending::StartFailed { reason, retryable });
    }

    fn end(&mut self, ending: &Ending) {
        self.members.values_mut().for_each(|member| member.end(|| ending.clone()));
    }

    /// Whether nothing is known, wanted or kept of it.
    pub(crate) fn is_over(&self) -> bool {
        self.pod.is_none() && self.is_forgotten() && !self.is_busy
    }

    fn is_forgotten(&self) -> bool {
        self.members.values().all(|member| member.is_forgotten)
    }

    /// Whether nothing of it runs.
    pub(crate) fn has_ended(&self) -> bool {
        self.members.values().all(|member| member.ending.is_some())
    }

    /// Something was asked of the cluster and did not work.
    pub(crate) fn failed(&mut self, now: Instant) {
        let delay = RETRY.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX);
        self.failures += 1;
        self.retry_at = Some(now + delay);
    }

    /// It worked.
    pub(crate) fn worked(&mut self) {
        (self.failures, self.retry_at) = (0, None);
    }

    /// What is news.
    pub(crate) fn news(&mut self) -> Option<Observation> {
        let has_run = self.pod.as_ref().is_some_and(may_have_run);
        let stage = self.pod.as_ref().map(stage);
        self.members.iter_mut().find_map(|(&id, member)| member.news(id, has_run, stage.as_ref()))
    }

    /// What is to be asked of the cluster now, or when to look again.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Step>, Instant> {
        if self.is_busy {
            return Ok(None);
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Err(at);
        }
        let Some(pod) = &self.pod else { return Ok(self.creation()) };
        if self.has_ended() {
            return Ok(match (is_deleted(pod), self.is_forgotten() || self.is_abandoned) {
                (true, _) => is_pinned(pod).then_some(Step::Unpin),
                (false, true) => Some(Step::Delete { grace_s: 0 }),
                (false, false) => None,
            });
        }
        let running = || self.members.iter().filter(|(_, member)| member.ending.is_none());
        let stops: BTreeMap<ReplicaId, Stop> = running().filter_map(|(id, it)| Some((*id, it.stop?))).collect();
        let is_for_all = stops.len() == running().count();
        let stage = stage(pod);
        if is_for_all && matches!(stage, Stage::Gated | Stage::Waiting { .. }) && !may_have_run(pod) {
            let grace = stops.values().map(|stop| stop.grace.as_secs()).max().unwrap_or_default();
            let grace_s = u32::try_from(grace).unwrap_or(u32::MAX).clamp(1, 3600);
            return Ok((!is_deleted(pod)).then_some(Step::Delete { grace_s }));
        }
        if !stops.is_empty() {
            let graces = stops.iter().map(|(id, stop)| (*id, stop.grace)).collect();
            let text = stops_text(&graces, is_for_all);
            if told_to_stop(pod) != Some(text.as_str()) {
                return Ok(Some(Step::Stop { text }));
            }
        }
        if is_unplaced(pod) && !is_deleted(pod) {
            let until = *self.unplaced_since.get_or_insert(now) + PLACED_WITHIN;
            if until > now {
                return Err(until);
            }
            if let Stage::Waiting { reason } = &stage {
                let minutes = PLACED_WITHIN.as_secs() / 60;
                self.not_placed = Some(format!("no node took it within {minutes} minutes: {reason}"));
            }
            return Ok(Some(Step::Delete { grace_s: 1 }));
        }
        if stage == Stage::Gated {
            let order = self.members.values().find_map(|member| member.order.clone());
            return Ok(Some(Step::Release { order }));
        }
        // A supervisor that is late with all of them is given up with its pod. One that is late with some is not, as the others
        // would end with it: the engine stops all that a job has on a node, so that the rest is told to end, too.
        let late = stops.values().map(|stop| stop.at + stop.grace.saturating_add(LATE).min(LATE_MAX)).max();
        let late = late.filter(|_| is_for_all && !self.is_given_up);
        if late.is_some_and(|at| at <= now) {
            self.is_given_up = true;
            return Ok(Some(Step::Delete { grace_s: 1 }));
        }
        let look = is_partial(pod).then(|| *self.look_at.get_or_insert(now + LOOK));
        if look.is_some_and(|at| at <= now) {
            return Ok(Some(Step::ReadEnds));
        }
        late.into_iter().chain(look).min().map_or(Ok(None), Err)
    }

    /// Its pod, once all that it is to hold are ordered. Those that were told to end before never run.
    fn creation(&mut self) -> Option<Step> {
        for member in self.members.values_mut().filter(|member| member.stop.is_some()) {
            member.end(|| Ending::Exited(Exit::Signal(TERM)));
        }
        if self.members.values().any(|member| member.order.is_none() && member.ending.is_none()) {
            return None;
        }
        let orders: Vec<ReplicaOrder> = self.members.values().filter_map(|it| it.order.as_deref().cloned()).collect();
        (!orders.is_empty()).then_some(Step::Create(orders))
    }
}

/// Moments must not overflow.
const LATE_MAX: Duration = Duration::from_secs(1 << 31);

impl Member {
    fn news(&mut self, replica: ReplicaId, has_run: bool, stage: Option<&Stage>) -> Option<Observation> {
        // A program that was quick has run all the same.
        if has_run && matches!(self.ending, Some(Ending::Exited(_))) && !self.is_start_told {
            self.is_start_told = true;
            return Some(Observation::Started { replica });
        }
        let observation = match (&self.ending, stage) {
            (Some(ending), _) => ending.clone().observation(replica),
            (None, Some(Stage::Running)) => Observation::Started { replica },
            (None, Some(Stage::Waiting { reason })) => Observation::Pending { replica, reason: reason.clone() },
            (None, Some(Stage::Gated | Stage::Ended) | None) => return None,
        };
        self.is_start_told |= matches!(observation, Observation::Started { .. });
        (self.told.as_ref() != Some(&observation)).then(|| {
            self.told = Some(observation.clone());
            observation
        })
    }
}

/// Whether a kubelet knows of it.
fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

fn is_pinned(pod: &Pod) -> bool {
    pod.metadata.finalizers.as_deref().unwrap_or_default().iter().any(|finalizer| finalizer == FINALIZER)
}

pub(crate) fn told_to_stop(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(STOP_ANNOTATION).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::names::{GATE, REPLICA_LABEL};

    const ID: ReplicaId = ReplicaId(7);

    fn order() -> ReplicaOrder {
        serde_json::from_value(json!({
            "replica": 7, "job": 1, "node": "n", "gpus": 1, "shares_with": null, "command": ["x"], "working_dir": "/",
            "environment": {},
        }))
        .expect("an order")
    }

    fn pod(metadata: &serde_json::Value, spec: &serde_json::Value, status: &serde_json::Value) -> Pod {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "main"}]);
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("a pod")
    }

    fn pinned() -> serde_json::Value {
        json!({"finalizers": [FINALIZER], "labels": {REPLICA_LABEL: "7"}})
    }

    fn gated() -> Pod {
        pod(&pinned(), &json!({"schedulingGates": [{"name": GATE}]}), &json!({"phase": "Pending"}))
    }

    fn running(metadata: &serde_json::Value) -> Pod {
        let main = json!({"name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 0, "started": true,
            "state": {"running": {}}});
        pod(metadata, &json!({"nodeName": "n"}), &json!({"phase": "Running", "containerStatuses": [main]}))
    }

    fn ended(metadata: &serde_json::Value) -> Pod {
        let main = json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 3}}});
        pod(metadata, &json!({"nodeName": "n"}), &json!({"phase": "Failed", "containerStatuses": [main]}))
    }

    fn single() -> Bundle {
        let mut bundle = Bundle::default();
        bundle.expect([ID]);
        bundle
    }

    fn next(bundle: &mut Bundle) -> Option<Step> {
        bundle.next(Instant::now()).expect("nothing to wait for")
    }

    #[test]
    fn a_start_makes_a_pod_lets_it_go_and_tells_when_it_runs() {
        let mut bundle = single();
        bundle.start(&order());
        assert!(matches!(next(&mut bundle), Some(Step::Create(_))));
        bundle.see(gated());
        assert!(matches!(next(&mut bundle), Some(Step::Release { order: Some(_) })));
        assert_eq!(bundle.news(), None);
        bundle.see(running(&pinned()));
        assert_eq!(next(&mut bundle), None);
        assert_eq!(bundle.news(), Some(Observation::Started { replica: ID }));
        assert_eq!(bundle.news(), None);
        bundle.start(&order());
        assert_eq!(bundle.news(), Some(Observation::Started { replica: ID }));
    }

    #[test]
    fn a_stop_before_the_pod_is_there_makes_none() {
        let mut bundle = single();
        bundle.start(&order());
        bundle.stop(ID, Duration::ZERO, Instant::now());
        assert_eq!(next(&mut bundle), None);
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Signal(TERM) }));
    }

    #[test]
    fn a_pod_that_never_ran_is_deleted_and_ends_once_it_is() {
        let mut bundle = single();
        bundle.see(gated());
        bundle.stop(ID, Duration::from_secs(5), Instant::now());
        assert_eq!(next(&mut bundle), Some(Step::Delete { grace_s: 5 }));
        let mut gone = gated();
        gone.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a moment");
        bundle.see(gone);
        assert_eq!(next(&mut bundle), Some(Step::Unpin));
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Signal(TERM) }));
    }

    #[test]
    fn a_running_pod_is_told_and_told_again_when_the_grace_is_shorter() {
        let (mut bundle, now) = (single(), Instant::now());
        bundle.see(running(&pinned()));
        bundle.stop(ID, Duration::from_secs(600), now);
        assert_eq!(next(&mut bundle), Some(Step::Stop { text: "600000".to_owned() }));
        let told = |ms: &str| running(&json!({"annotations": {STOP_ANNOTATION: ms}, "finalizers": [FINALIZER]}));
        bundle.see(told("600000"));
        assert!(bundle.next(now).is_err(), "it is waited for");
        bundle.stop(ID, Duration::ZERO, now);
        bundle.stop(ID, Duration::from_secs(600), now);
        assert_eq!(next(&mut bundle), Some(Step::Stop { text: "0".to_owned() }));
        bundle.see(told("0"));
        assert!(bundle.next(now).is_err());
        assert_eq!(bundle.next(now + LATE), Ok(Some(Step::Delete { grace_s: 1 })));
    }

    #[test]
    fn a_pod_that_no_node_takes_is_deleted_after_a_while_and_says_why() {
        let refused = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 1 node(s) had untolerated taint(s)."});
        let unplaced = pod(&pinned(), &json!({}), &json!({"phase": "Pending", "conditions": [refused.clone()]}));
        let (mut bundle, now) = (single(), Instant::now());
        bundle.see(unplaced.clone());
        assert_eq!(bundle.next(now), Err(now + PLACED_WITHIN));
        assert!(matches!(bundle.news(), Some(Observation::Pending { .. })));
        bundle.see(pod(&pinned(), &json!({"nodeName": "n"}), &json!({"phase": "Pending"})));
        assert_eq!(bundle.next(now + PLACED_WITHIN), Ok(None), "it was bound in the end, and may take its time");
        let (mut bundle, late) = (single(), now + PLACED_WITHIN);
        bundle.see(unplaced.clone());
        assert_eq!(bundle.next(now), Err(late));
        assert_eq!(bundle.next(late), Ok(Some(Step::Delete { grace_s: 1 })));
        assert!(matches!(bundle.news(), Some(Observation::Pending { .. })), "it has its GPUs until it is gone");
        let mut gone = unplaced;
        gone.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a moment");
        bundle.see(gone);
        assert_eq!(bundle.next(late), Ok(Some(Step::Unpin)));
        let reason = "no node took it within 3 minutes: 0/3 nodes are available: 1 node(s) had untolerated taint(s).";
        let expected = Observation::StartFailed { replica: ID, reason: reason.to_owned(), retryable: true };
        assert_eq!(bundle.news(), Some(expected));
    }

    #[test]
    fn a_pod_that_a_node_took_at_the_last_moment_ends_as_it_ends() {
        let refused = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"});
        let (mut bundle, now) = (single(), Instant::now());
        bundle.see(pod(&pinned(), &json!({}), &json!({"phase": "Pending", "conditions": [refused]})));
        assert_eq!(bundle.next(now), Err(now + PLACED_WITHIN));
        assert_eq!(bundle.next(now + PLACED_WITHIN), Ok(Some(Step::Delete { grace_s: 1 })));
        let deleted = json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        bundle.see(ended(&deleted));
        assert_eq!(bundle.news(), Some(Observation::Started { replica: ID }));
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Evicted }));
    }

    #[test]
    fn what_has_ended_is_kept_until_it_is_forgotten() {
        let mut bundle = single();
        bundle.see(running(&pinned()));
        bundle.forget(ID);
        bundle.see(ended(&pinned()));
        assert_eq!(next(&mut bundle), None, "what was forgotten while it ran is kept");
        assert_eq!(bundle.news(), Some(Observation::Started { replica: ID }), "however quick it was");
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Code(3) }));
        bundle.stop(ID, Duration::ZERO, Instant::now());
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Code(3) }));
        bundle.forget(ID);
        assert_eq!(next(&mut bundle), Some(Step::Delete { grace_s: 0 }));
        let deleted = json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        bundle.see(ended(&deleted));
        assert_eq!(next(&mut bundle), Some(Step::Unpin));
        bundle.lose();
        assert!(bundle.is_over());
    }

    #[test]
    fn what_nobody_has_ordered_never_runs_and_is_not_kept() {
        let mut bundle = single();
        bundle.see(gated());
        bundle.disown(Duration::from_secs(5), Instant::now());
        assert_eq!(next(&mut bundle), Some(Step::Delete { grace_s: 5 }));
        bundle.lose();
        assert!(bundle.is_over());
    }

    #[test]
    fn a_replica_whose_node_is_gone_is_lost_and_its_pod_deleted() {
        let mut bundle = single();
        bundle.see(running(&pinned()));
        assert_eq!(bundle.news(), Some(Observation::Started { replica: ID }));
        bundle.abandon();
        assert_eq!(next(&mut bundle), Some(Step::Delete { grace_s: 0 }));
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Lost }));
    }

    #[test]
    fn a_pod_that_vanishes_while_it_runs_is_lost() {
        let mut bundle = single();
        bundle.see(running(&pinned()));
        bundle.lose();
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: ID, exit: Exit::Lost }));
    }

    #[test]
    fn what_fails_is_tried_again_ever_more_rarely() {
        let (mut bundle, now) = (single(), Instant::now());
        bundle.start(&order());
        bundle.failed(now);
        let first = bundle.next(now).expect_err("it waits");
        bundle.failed(now);
        assert!(bundle.next(now).expect_err("it waits") > first);
        assert!(matches!(bundle.next(now + RETRY_MAX), Ok(Some(Step::Create(_)))));
    }

    const OTHER: ReplicaId = ReplicaId(8);

    /// Two of a pod that runs, ready as long as both do.
    fn two(is_ready: bool, annotations: &serde_json::Value) -> Pod {
        let labels = json!({REPLICA_LABEL: "7", "pollux.dev/replica-8": ""});
        let mut pod = running(&json!({"finalizers": [FINALIZER], "labels": labels, "annotations": annotations}));
        let env = json!([{"name": "POLLUX_REPLICAS", "value": "{}"}]);
        pod.spec.as_mut().expect("a spec").containers[0].env = serde_json::from_value(env).expect("variables");
        pod.status.as_mut().expect("a status").container_statuses.as_mut().expect("one")[0].ready = is_ready;
        pod
    }

    fn exited(replica: ReplicaId, code: i32) -> Option<Observation> {
        Some(Observation::Exited { replica, exit: Exit::Code(code) })
    }

    #[test]
    fn a_pod_of_several_is_made_once_all_of_them_are_ordered() {
        let mut bundle = Bundle::default();
        bundle.expect([ID, OTHER]);
        bundle.start(&order());
        assert_eq!(next(&mut bundle), None);
        bundle.start(&ReplicaOrder { replica: OTHER, ..order() });
        let Some(Step::Create(orders)) = next(&mut bundle) else { panic!("both are ordered") };
        assert_eq!(orders.iter().map(|order| order.replica).collect::<Vec<_>>(), [ID, OTHER]);
        bundle.stop(OTHER, Duration::ZERO, Instant::now());
        assert!(
            matches!(next(&mut bundle), Some(Step::Create(orders)) if orders.len() == 1),
            "who was stopped never runs"
        );
        assert_eq!(bundle.news(), Some(Observation::Exited { replica: OTHER, exit: Exit::Signal(TERM) }));
    }

    #[test]
    fn the_end_of_one_of_several_is_looked_for_and_told_while_the_others_run() {
        let (mut bundle, now) = (Bundle::default(), Instant::now());
        bundle.see(two(true, &json!({})));
        assert_eq!(bundle.replicas().collect::<Vec<_>>(), [ID, OTHER]);
        for replica in [ID, OTHER] {
            assert_eq!(bundle.news(), Some(Observation::Started { replica }));
        }
        assert_eq!(bundle.next(now), Ok(None));
        bundle.see(two(false, &json!({})));
        assert_eq!(bundle.next(now), Err(now + LOOK));
        assert_eq!(bundle.next(now + LOOK), Ok(Some(Step::ReadEnds)));
        bundle.learn(vec![(OTHER, Ending::Exited(Exit::Code(1)))], now + LOOK);
        assert_eq!((bundle.news(), bundle.news()), (exited(OTHER, 1), None));
        assert_eq!(bundle.next(now + LOOK), Err(now + LOOK * 2), "it is looked again");
        bundle.learn(vec![(ID, Ending::Exited(Exit::Code(0))), (OTHER, Ending::Exited(Exit::Code(1)))], now);
        assert_eq!(bundle.news(), None, "the pod has the GPUs until it has ended");
        bundle.see(ended(&json!({"finalizers": [FINALIZER], "labels": {REPLICA_LABEL: "7"}})));
        assert_eq!((bundle.news(), bundle.news()), (exited(ID, 3), None));
        bundle.forget(ID);
        assert_eq!(next(&mut bundle), None, "the other's log is in the pod, too");
        bundle.forget(OTHER);
        assert_eq!(next(&mut bundle), Some(Step::Delete { grace_s: 0 }));
    }

    #[test]
    fn it_is_looked_ever_more_rarely_until_there_is_news() {
        let (mut bundle, now) = (Bundle::default(), Instant::now());
        bundle.see(two(false, &json!({})));
        assert_eq!(bundle.next(now), Err(now + LOOK));
        for pause_s in [6, 12, 24, 48, 60, 60] {
            bundle.learn(Vec::new(), now);
            bundle.see(two(false, &json!({})));
            assert_eq!(bundle.next(now), Err(now + Duration::from_secs(pause_s)));
        }
        bundle.see(two(true, &json!({})));
        assert_eq!(bundle.next(now), Ok(None));
        bundle.see(two(false, &json!({})));
        assert_eq!(bundle.next(now), Err(now + LOOK), "another has ended, or is new");
        for pause_s in [6, 12] {
            bundle.learn(Vec::new(), now);
            assert_eq!(bundle.next(now), Err(now + Duration::from_secs(pause_s)));
        }
        bundle.learn(vec![(OTHER, Ending::Exited(Exit::Code(0)))], now);
        assert_eq!(bundle.next(now), Err(now + LOOK), "news");
        for _ in 0..5 {
            bundle.learn(vec![(OTHER, Ending::Exited(Exit::Code(0)))], now);
        }
        assert_eq!(bundle.next(now), Err(now + LOOK_MAX), "what is known is no news");
        bundle.stop(ID, Duration::from_secs(90), now);
        bundle.see(two(false, &json!({STOP_ANNOTATION: "90000"})));
        assert_eq!(bundle.next(now), Err(now + LOOK), "somebody was told to end");
        bundle.stop(ID, Duration::from_secs(90), now + LOOK);
        assert_eq!(bundle.next(now + LOOK), Ok(Some(Step::ReadEnds)), "asked again, it is not put off");
    }

    #[test]
    fn some_of_a_pod_are_stopped_or_all() {
        let (mut bundle, now) = (Bundle::default(), Instant::now());
        bundle.see(two(true, &json!({})));
        bundle.stop(OTHER, Duration::from_secs(5), now);
        assert_eq!(next(&mut bundle), Some(Step::Stop { text: "8=5000".to_owned() }));
        bundle.see(two(true, &json!({STOP_ANNOTATION: "8=5000"})));
        assert_eq!(bundle.next(now), Ok(None), "a pod in which others run is not given up");
        bundle.stop(ID, Duration::from_secs(5), now);
        assert_eq!(next(&mut bundle), Some(Step::Stop { text: "5000".to_owned() }));
        bundle.see(two(true, &json!({STOP_ANNOTATION: "5000"})));
        assert_eq!(bundle.next(now + Duration::from_secs(5) + LATE), Ok(Some(Step::Delete { grace_s: 1 })));
    }
}
