//! What is known and wanted of one replica, and what is to be done next. No call waits here.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use pollux_backend::{Exit, Observation, ReplicaId, ReplicaOrder};
use pollux_supervisor::{Ending, STOP_ANNOTATION};

use crate::names::FINALIZER;
use crate::stage::{Stage, is_deleted, may_have_run, stage};

/// SIGTERM: how a replica ends that was told to before it ran.
const TERM: i32 = 15;
/// What a supervisor may be late with, before its pod is deleted.
const LATE: Duration = Duration::from_secs(30);
/// After a failure, doubled with each.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// One thing to ask of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Make the pod, held back.
    Create(Box<ReplicaOrder>),
    /// Let the pod go, once its secret is there.
    Release { order: Option<Box<ReplicaOrder>> },
    /// Tell the supervisor to end.
    Stop { grace_ms: u64 },
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
    is_deleted: bool,
}

/// A replica.
#[derive(Debug, Default)]
pub(crate) struct Replica {
    /// What it runs, as long as that is needed.
    pub(crate) order: Option<Box<ReplicaOrder>>,
    pub(crate) pod: Option<Pod>,
    stop: Option<Stop>,
    is_forgotten: bool,
    /// Whether its node is gone, so that nobody else would end it.
    is_abandoned: bool,
    /// How it ended, also when its pod is gone.
    ending: Option<Ending>,
    told: Option<Observation>,
    is_start_told: bool,
    /// Whether something is being asked of the cluster.
    pub(crate) is_busy: bool,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Replica {
    /// Wants it to run.
    pub(crate) fn start(&mut self, order: &ReplicaOrder) {
        if self.pod.is_none() && self.ending.is_none() {
            self.order = Some(Box::new(order.clone()));
        } else if self.ending.is_none() && self.order.is_none() {
            // A pod that is still held back may need its secret.
            self.order = Some(Box::new(order.clone()));
        }
        self.told = None;
    }

    /// Wants it to end; a shorter grace counts.
    pub(crate) fn stop(&mut self, grace: Duration, now: Instant) {
        let sooner = |earlier: &Stop| now + grace >= earlier.at + earlier.grace;
        if !self.stop.as_ref().is_some_and(sooner) {
            let is_deleted = self.stop.is_some_and(|stop| stop.is_deleted);
            self.stop = Some(Stop { grace, at: now, is_deleted });
        }
        if self.ending.is_some() {
            self.told = None;
        }
    }

    /// Wants nothing of it to be kept, if it has ended.
    pub(crate) fn forget(&mut self) {
        self.is_forgotten |= self.ending.is_some();
    }

    /// Wants it to end, and nothing of it to be kept: nobody has ordered it.
    pub(crate) fn disown(&mut self, grace: Duration, now: Instant) {
        self.stop(grace, now);
        self.is_forgotten = true;
    }

    /// Tells again how far it has come.
    pub(crate) fn tell_again(&mut self) {
        self.told = None;
    }

    /// Its pod is as it is now.
    pub(crate) fn see(&mut self, pod: Pod) {
        if let Stage::Ended(ending) = stage(&pod) {
            self.ending.get_or_insert(ending);
            self.order = None;
        } else if is_deleted(&pod) && !is_bound(&pod) {
            self.ending.get_or_insert(Ending::Exited(Exit::Signal(TERM)));
            self.order = None;
        }
        self.pod = Some(pod);
    }

    /// Its pod is gone.
    pub(crate) fn lose(&mut self) {
        if self.pod.take().is_some() {
            self.ending.get_or_insert(Ending::Exited(Exit::Lost));
            self.order = None;
        }
    }

    /// Its node is gone for good.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
        self.ending.get_or_insert(Ending::Exited(Exit::Lost));
        self.order = None;
    }

    /// It cannot be started.
    pub(crate) fn fail(&mut self, reason: String, retryable: bool) {
        self.ending.get_or_insert(Ending::StartFailed { reason, retryable });
        self.order = None;
    }

    /// Whether nothing is known, wanted or kept of it.
    pub(crate) fn is_over(&self) -> bool {
        self.pod.is_none() && self.is_forgotten && !self.is_busy
    }

    /// Whether nothing of it runs.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.is_some()
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
    pub(crate) fn news(&mut self, replica: ReplicaId) -> Option<Observation> {
        // A program that was quick has run all the same.
        let has_run = matches!(self.ending, Some(Ending::Exited(_))) && self.pod.as_ref().is_some_and(may_have_run);
        if has_run && !self.is_start_told {
            self.is_start_told = true;
            return Some(Observation::Started { replica });
        }
        let observation = self.observation(replica)?;
        self.is_start_told |= matches!(observation, Observation::Started { .. });
        (self.told.as_ref() != Some(&observation)).then(|| {
            self.told = Some(observation.clone());
            observation
        })
    }

    fn observation(&self, replica: ReplicaId) -> Option<Observation> {
        if let Some(ending) = &self.ending {
            return Some(ending.clone().observation(replica));
        }
        match stage(self.pod.as_ref()?) {
            Stage::Running => Some(Observation::Started { replica }),
            Stage::Waiting { reason } => Some(Observation::Pending { replica, reason }),
            Stage::Gated | Stage::Ended(_) => None,
        }
    }

    /// What is to be asked of the cluster now, or when to look again.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Step>, Instant> {
        if self.is_busy {
            return Ok(None);
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Err(at);
        }
        let Some(pod) = &self.pod else {
            return Ok(match (self.order.clone(), self.stop) {
                (Some(_), Some(_)) => {
                    self.ending = Some(Ending::Exited(Exit::Signal(TERM)));
                    self.order = None;
                    None
                }
                (Some(order), None) => Some(Step::Create(order)),
                (None, _) => None,
            });
        };
        if self.ending.is_some() {
            return Ok(match (is_deleted(pod), self.is_forgotten || self.is_abandoned) {
                (true, _) => is_pinned(pod).then_some(Step::Unpin),
                (false, true) => Some(Step::Delete { grace_s: 0 }),
                (false, false) => None,
            });
        }
        match (stage(pod), &mut self.stop) {
            (Stage::Gated, None) => Ok(Some(Step::Release { order: self.order.clone() })),
            (Stage::Gated | Stage::Waiting { .. }, Some(stop)) if !may_have_run(pod) => {
                let grace_s = u32::try_from(stop.grace.as_secs()).unwrap_or(u32::MAX).clamp(1, 3600);
                Ok((!is_deleted(pod)).then_some(Step::Delete { grace_s }))
            }
            (_, Some(stop)) => {
                let grace_ms = u64::try_from(stop.grace.as_millis()).unwrap_or(u64::MAX);
                if told_to_stop(pod) != Some(grace_ms) {
                    return Ok(Some(Step::Stop { grace_ms }));
                }
                let late = stop.at + stop.grace.saturating_add(LATE).min(Duration::from_secs(1 << 31));
                if late > now || stop.is_deleted {
                    return if stop.is_deleted { Ok(None) } else { Err(late) };
                }
                stop.is_deleted = true;
                Ok(Some(Step::Delete { grace_s: 1 }))
            }
            (_, None) => Ok(None),
        }
    }
}

/// Whether a kubelet knows of it.
fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

fn is_pinned(pod: &Pod) -> bool {
    pod.metadata.finalizers.as_deref().unwrap_or_default().iter().any(|finalizer| finalizer == FINALIZER)
}

fn told_to_stop(pod: &Pod) -> Option<u64> {
    pod.metadata.annotations.as_ref()?.get(STOP_ANNOTATION)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::names::GATE;

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
        json!({"finalizers": [FINALIZER]})
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

    fn next(replica: &mut Replica) -> Option<Step> {
        replica.next(Instant::now()).expect("nothing to wait for")
    }

    #[test]
    fn a_start_makes_a_pod_lets_it_go_and_tells_when_it_runs() {
        let mut replica = Replica::default();
        replica.start(&order());
        assert!(matches!(next(&mut replica), Some(Step::Create(_))));
        replica.see(gated());
        assert!(matches!(next(&mut replica), Some(Step::Release { order: Some(_) })));
        assert_eq!(replica.news(ID), None);
        replica.see(running(&pinned()));
        assert_eq!(next(&mut replica), None);
        assert_eq!(replica.news(ID), Some(Observation::Started { replica: ID }));
        assert_eq!(replica.news(ID), None);
        replica.start(&order());
        assert_eq!(replica.news(ID), Some(Observation::Started { replica: ID }));
    }

    #[test]
    fn a_stop_before_the_pod_is_there_makes_none() {
        let mut replica = Replica::default();
        replica.start(&order());
        replica.stop(Duration::ZERO, Instant::now());
        assert_eq!(next(&mut replica), None);
        assert_eq!(replica.news(ID), Some(Observation::Exited { replica: ID, exit: Exit::Signal(TERM) }));
    }

    #[test]
    fn a_pod_that_never_ran_is_deleted_and_ends_once_it_is() {
        let mut replica = Replica::default();
        replica.see(gated());
        replica.stop(Duration::from_secs(5), Instant::now());
        assert_eq!(next(&mut replica), Some(Step::Delete { grace_s: 5 }));
        let mut gone = gated();
        gone.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a moment");
        replica.see(gone);
        assert_eq!(next(&mut replica), Some(Step::Unpin));
        assert_eq!(replica.news(ID), Some(Observation::Exited { replica: ID, exit: Exit::Signal(TERM) }));
    }

    #[test]
    fn a_running_pod_is_told_and_told_again_when_the_grace_is_shorter() {
        let (mut replica, now) = (Replica::default(), Instant::now());
        replica.see(running(&pinned()));
        replica.stop(Duration::from_secs(600), now);
        assert_eq!(next(&mut replica), Some(Step::Stop { grace_ms: 600_000 }));
        let told = |ms: &str| running(&json!({"annotations": {STOP_ANNOTATION: ms}, "finalizers": [FINALIZER]}));
        replica.see(told("600000"));
        assert!(replica.next(now).is_err(), "it is waited for");
        replica.stop(Duration::ZERO, now);
        replica.stop(Duration::from_secs(600), now);
        assert_eq!(next(&mut replica), Some(Step::Stop { grace_ms: 0 }));
        replica.see(told("0"));
        assert!(replica.next(now).is_err());
        assert_eq!(replica.next(now + LATE), Ok(Some(Step::Delete { grace_s: 1 })));
    }

    #[test]
    fn what_has_ended_is_kept_until_it_is_forgotten() {
        let mut replica = Replica::default();
        replica.see(running(&pinned()));
        replica.forget();
        replica.see(ended(&pinned()));
        assert_eq!(next(&mut replica), None, "what was forgotten while it ran is kept");
        assert_eq!(replica.news(ID), Some(Observation::Started { replica: ID }), "however quick it was");
        assert_eq!(replica.news(ID), Some(Observation::Exited { replica: ID, exit: Exit::Code(3) }));
        replica.stop(Duration::ZERO, Instant::now());
        assert_eq!(replica.news(ID), Some(Observation::Exited { replica: ID, exit: Exit::Code(3) }));
        replica.forget();
        assert_eq!(next(&mut replica), Some(Step::Delete { grace_s: 0 }));
        let deleted = json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        replica.see(ended(&deleted));
        assert_eq!(next(&mut replica), Some(Step::Unpin));
        replica.lose();
        assert!(replica.is_over());
    }

    #[test]
    fn what_nobody_has_ordered_never_runs_and_is_not_kept() {
        let mut replica = Replica::default();
        replica.see(gated());
        replica.disown(Duration::from_secs(5), Instant::now());
        assert_eq!(next(&mut replica), Some(Step::Delete { grace_s: 5 }));
        replica.lose();
        assert!(replica.is_over());
    }

    #[test]
    fn a_replica_whose_node_is_gone_is_lost_and_its_pod_deleted() {
        let mut replica = Replica::default();
        replica.see(running(&pinned()));
        assert_eq!(replica.news(ID), Some(Observation::Started { replica: ID }));
        replica.abandon();
        assert_eq!(next(&mut replica), Some(Step::Delete { grace_s: 0 }));
        assert_eq!(replica.news(ID), Some(Observation::Exited { replica: ID, exit: Exit::Lost }));
    }

    #[test]
    fn a_pod_that_vanishes_while_it_runs_is_lost() {
        let mut replica = Replica::default();
        replica.see(running(&pinned()));
        replica.lose();
        assert_eq!(replica.news(ID), Some(Observation::Exited { replica: ID, exit: Exit::Lost }));
    }

    #[test]
    fn what_fails_is_tried_again_ever_more_rarely() {
        let (mut replica, now) = (Replica::default(), Instant::now());
        replica.start(&order());
        replica.failed(now);
        let first = replica.next(now).expect_err("it waits");
        replica.failed(now);
        assert!(replica.next(now).expect_err("it waits") > first);
        assert!(matches!(replica.next(now + RETRY_MAX), Ok(Some(Step::Create(_)))));
    }
}
