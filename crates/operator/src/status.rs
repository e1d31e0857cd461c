//! From what the scheduler knows of a job to the status of its resource.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pollux_api::{Explanation, Job};
use pollux_job::Phase;

use crate::PolluxJobStatus;
use crate::forecast::Moments;

/// Longest message of a status.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// Two moments that are less apart are the same; in the distance, a twentieth of it.
const NEAR_S: i64 = 30;

/// Kinds of condition. Each is always there, true or false.
const CONDITIONS: [&str; 6] = ["Admitted", "Running", "Resizing", "Suspended", "Succeeded", "Failed"];

/// Not one of those: it does not follow from the phase.
const CHECKPOINTS_KEPT: &str = "CheckpointsKept";

/// What is known of a job that the scheduler has.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) job: Job,
    /// Of a job that is not over, if it was asked for.
    pub(crate) explanation: Option<Explanation>,
    pub(crate) nodes: Vec<String>,
    /// Of a job that waits, if it is known.
    pub(crate) foreseen: Option<Moments>,
}

/// A phase as a status names it.
pub(crate) const fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Queued => "Queued",
        Phase::Starting => "Starting",
        Phase::Running => "Running",
        Phase::Resizing => "Resizing",
        Phase::Paused => "Suspended",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
        Phase::Cancelled => "Cancelled",
        Phase::Unknown => "Unknown",
    }
}

/// Why a job is in its phase, in a word that stays the same.
fn reason(seen: &Seen) -> &'static str {
    match seen.job.phase {
        Phase::Queued | Phase::Resizing => waiting(seen),
        Phase::Starting => "WaitingForPodsReady",
        Phase::Running => "Training",
        Phase::Paused => "Suspended",
        Phase::Succeeded => "Completed",
        Phase::Failed => "GivenUp",
        Phase::Cancelled => "Cancelled",
        Phase::Unknown => "Unknown",
    }
}

/// The words of Kueue where they mean the same.
fn waiting(seen: &Seen) -> &'static str {
    let explanation = seen.explanation.as_ref();
    match explanation.and_then(|explanation| explanation.wait.as_deref()) {
        Some("gpus") if explanation.and_then(|it| it.binding.as_deref()).is_some_and(no_node_could) => {
            "NoMatchingFlavor"
        }
        Some("gpus") if explanation.is_some_and(|it| it.payer.is_some()) => "BetterUsedElsewhere",
        Some("gpus") => "WaitingForGPUs",
        Some("release") => "WaitingForPreemptedWorkloads",
        Some("ready" | "pending") => "WaitingForPodsReady",
        Some("backoff") => "Backoff",
        Some("jobs") => "WaitingForJobs",
        Some("resume") => "Suspended",
        Some(_) | None => "PendingEvaluation",
    }
}

/// Whether what keeps a job from having GPUs would keep it from having them if all nodes were empty.
fn no_node_could(binding: &str) -> bool {
    matches!(binding, "no_such_type" | "too_large_for_a_node" | "not_enough_cpus" | "not_enough_memory" | "impossible")
}

/// The status of a job.
pub(crate) fn status(seen: &Seen, before: &PolluxJobStatus, generation: Option<i64>, now: &Time) -> PolluxJobStatus {
    let job = &seen.job;
    let (phase, reason) = (word(job.phase), reason(seen));
    let message = match (&job.failure, &seen.explanation) {
        (Some(failure), _) => failure.clone(),
        (None, Some(explanation)) => explanation.sentences.join(" "),
        (None, None) if job.ended_ms.is_some() => format!("it has {}", phase.to_lowercase()),
        (None, None) => before.message.clone(),
    };
    let foreseen = seen.foreseen.clone().unwrap_or_default();
    // Who trains tells it from its own speed; who waits has none.
    let end = match job.phase {
        Phase::Queued => foreseen.end,
        _ => job.remaining_s.and_then(|left| after(now, left)),
    };
    PolluxJobStatus {
        id: Some(job.id),
        replicas: job.replicas,
        gpus: job.gpus(),
        node_count: u32::try_from(seen.nodes.len()).unwrap_or(u32::MAX),
        nodes: seen.nodes.clone(),
        batch_size: job.batch_size,
        goodput: job.goodput.map(rounded),
        efficiency: job.efficiency.map(rounded),
        progress: job.progress.map(|progress| format!("{:.0}%", (progress * 100.0).floor())),
        restarts: job.restarts,
        start_time: job.started_ms.and_then(moment),
        completion_time: job.ended_ms.and_then(moment),
        estimated_start: steady(foreseen.start, before.estimated_start.as_ref(), now),
        estimated_end: steady(end, before.estimated_end.as_ref(), now),
        ..said(before, phase, reason, &message, generation, now)
    }
}

/// A moment that is only a little other than it was is the same for people, and is not written again.
fn steady(moment: Option<Time>, before: Option<&Time>, now: &Time) -> Option<Time> {
    // What has not come true is not foreseen any more.
    let moment = moment.filter(|moment| moment.0 > now.0)?;
    let left_s = moment.0.duration_since(now.0).as_secs();
    let is_near = |old: &&Time| moment.0.duration_since(old.0).as_secs().abs() < NEAR_S.max(left_s / 20);
    Some(before.filter(|old| old.0 > now.0).filter(is_near).cloned().unwrap_or(moment))
}

/// A phase, a reason and conditions that follow from them.
pub(crate) fn said(
    before: &PolluxJobStatus,
    phase: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> PolluxJobStatus {
    let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    let follows = |kind: &str| {
        let holds = match kind {
            "Admitted" => matches!(phase, "Starting" | "Running" | "Resizing"),
            "Running" => matches!(phase, "Running" | "Resizing"),
            "Failed" => matches!(phase, "Failed" | "Cancelled" | "Invalid"),
            kind => kind == phase,
        };
        condition(before, kind, if holds { "True" } else { "False" }, reason, &message, generation, now)
    };
    PolluxJobStatus {
        id: before.id,
        phase: phase.to_owned(),
        reason: reason.to_owned(),
        observed_generation: generation,
        conditions: CONDITIONS.map(follows).to_vec(),
        message,
        ..PolluxJobStatus::default()
    }
}

/// Whether what a job saves is there when all its pods have changed. A warning: the job runs all the same.
pub(crate) fn checkpoints_kept(
    holds: bool,
    before: &PolluxJobStatus,
    generation: Option<i64>,
    now: &Time,
) -> Condition {
    let (status, reason, message) = match holds {
        true => ("True", "CheckpointVolume", "what it saves is on a volume of its own"),
        false => (
            "False",
            "NoCheckpointClaim",
            "it has no checkpointClaim: whenever it is moved or suspended, it begins anew; expected a claim that all its \
             pods can write to",
        ),
    };
    condition(before, CHECKPOINTS_KEPT, status, reason, message, generation, now)
}

/// One that keeps the moment at which it changed.
fn condition(
    before: &PolluxJobStatus,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: &Time,
) -> Condition {
    let earlier = before.conditions.iter().find(|earlier| earlier.type_ == kind && earlier.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: earlier.map_or_else(|| now.clone(), |earlier| earlier.last_transition_time.clone()),
    }
}

/// Whether a status is about a job that is over.
pub(crate) fn is_over(status: &PolluxJobStatus) -> bool {
    matches!(status.phase.as_str(), "Succeeded" | "Failed" | "Cancelled")
}

/// Three digits, so that what stays nearly the same is not written again and again.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powf(2.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

fn moment(ms: u64) -> Option<Time> {
    jiff::Timestamp::from_second(i64::try_from(ms / 1000).ok()?).ok().map(Time)
}

pub(crate) fn after(now: &Time, seconds: f64) -> Option<Time> {
    if !(0.0..1e9).contains(&seconds) {
        return None;
    }
    jiff::Timestamp::from_second(now.0.as_second() + seconds as i64).ok().map(Time)
}

/// Now, in whole seconds.
pub(crate) fn now() -> Time {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    moment(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)).unwrap_or(Time(jiff::Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(phase: &str, wait: Option<&str>) -> Seen {
        let job = json!({
            "id": 3, "name": "a", "phase": phase, "phase_since_ms": 0, "submitted_ms": 0, "started_ms": 1000,
            "ended_ms": null, "replicas": 2, "gpus_per_replica": 4, "nodes": 1, "batch_size": 64, "learning_rate_factor": 1.0,
            "samples_per_s": 10.0, "efficiency": 0.98765, "goodput": 1234.56, "epochs": 1, "progress": 0.257,
            "remaining_s": 60.0, "attained_gpu_s": 0.0, "queued_s": 0.0, "restarts": 1, "retries": 0, "failure": null,
        });
        let explanation = json!({
            "id": 3, "name": "a", "phase": phase, "replicas": 2, "sentences": ["It waits.", "For GPUs."], "wait": wait,
            "binding": null, "one_more": null, "one_fewer": null, "payer": null, "fair_share": null,
            "next_round_ms": null, "sizes": [],
        });
        Seen {
            job: serde_json::from_value(job).unwrap(),
            explanation: Some(serde_json::from_value(explanation).unwrap()),
            nodes: vec!["node-1".to_owned()],
            foreseen: None,
        }
    }

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn condition<'a>(status: &'a PolluxJobStatus, kind: &str) -> &'a Condition {
        status.conditions.iter().find(|condition| condition.type_ == kind).unwrap()
    }

    #[test]
    fn a_status_tells_what_a_job_has_and_why() {
        let status = status(&seen("running", None), &PolluxJobStatus::default(), Some(2), &at(100));
        assert_eq!((status.phase.as_str(), status.reason.as_str()), ("Running", "Training"));
        assert_eq!((status.gpus, status.node_count, status.batch_size), (8, 1, Some(64)));
        assert_eq!((status.goodput, status.efficiency), (Some(1230.0), Some(0.988)));
        assert_eq!((status.progress.as_deref(), status.message.as_str()), (Some("25%"), "It waits. For GPUs."));
        assert_eq!((status.start_time, status.estimated_end), (Some(at(1)), Some(at(160))));
        assert_eq!(status.observed_generation, Some(2));
    }

    #[test]
    fn a_job_is_admitted_for_as_long_as_it_has_gpus() {
        for (phase, expected) in [
            ("queued", "False"),
            ("starting", "True"),
            ("running", "True"),
            ("resizing", "True"),
            ("paused", "False"),
            ("succeeded", "False"),
        ] {
            let status = status(&seen(phase, None), &PolluxJobStatus::default(), None, &at(100));
            assert_eq!(condition(&status, "Admitted").status, expected, "{phase}");
        }
    }

    #[test]
    fn a_job_that_waits_tells_when_it_would_start_and_end() {
        let foreseen = |start: i64| Some(Moments { start: Some(at(start)), end: Some(at(start + 1_000)) });
        let waits = |start: i64| Seen { foreseen: foreseen(start), ..seen("queued", Some("gpus")) };
        let moments = |status: &PolluxJobStatus| (status.estimated_start.clone(), status.estimated_end.clone());
        let first = status(&waits(400), &PolluxJobStatus::default(), None, &at(100));
        assert_eq!(moments(&first), (Some(at(400)), Some(at(1_400))));
        let second = status(&waits(420), &first, None, &at(110));
        assert_eq!(moments(&second), moments(&first), "nearly the same is not written again");
        let third = status(&waits(500), &second, None, &at(120));
        assert_eq!(moments(&third), (Some(at(500)), Some(at(1_500))));
        let late = status(&waits(510), &third, None, &at(505));
        assert_eq!(late.estimated_start, Some(at(510)), "a moment that is over is none that is estimated");
        let over = status(&waits(400), &first, None, &at(400));
        assert_eq!(moments(&over), (None, Some(at(1_400))), "what should have begun by now is not foreseen");
        assert_eq!(moments(&status(&waits(400), &first, None, &at(1_401))), (None, None), "nor what should be over");
        let unknown = status(&seen("queued", Some("gpus")), &third, None, &at(130));
        assert_eq!(moments(&unknown), (None, None), "what nobody knows is left out");
        assert_eq!(status(&seen("running", None), &third, None, &at(130)).estimated_start, None);
    }

    #[test]
    fn reasons_are_the_words_that_others_use() {
        for (wait, expected) in [
            (Some("round"), "PendingEvaluation"),
            (Some("gpus"), "WaitingForGPUs"),
            (Some("release"), "WaitingForPreemptedWorkloads"),
            (Some("pending"), "WaitingForPodsReady"),
            (None, "PendingEvaluation"),
        ] {
            assert_eq!(reason(&seen("queued", wait)), expected);
        }
        for (binding, expected) in [
            ("no_such_type", "NoMatchingFlavor"),
            ("too_large_for_a_node", "NoMatchingFlavor"),
            ("not_enough_cpus", "NoMatchingFlavor"),
            ("not_enough_memory", "NoMatchingFlavor"),
            ("impossible", "NoMatchingFlavor"),
            ("contention", "WaitingForGPUs"),
        ] {
            let mut seen = seen("queued", Some("gpus"));
            seen.explanation.as_mut().unwrap().binding = Some(binding.to_owned());
            assert_eq!(reason(&seen), expected, "{binding}");
            seen.explanation.as_mut().unwrap().wait = Some("round".to_owned());
            assert_eq!(reason(&seen), "PendingEvaluation", "{binding}");
        }
    }

    #[test]
    fn a_job_that_would_begin_anew_is_warned() {
        let (before, later) = (PolluxJobStatus::default(), at(200));
        let warned = checkpoints_kept(false, &before, Some(1), &at(100));
        assert_eq!((warned.status.as_str(), warned.reason.as_str()), ("False", "NoCheckpointClaim"));
        let before = PolluxJobStatus { conditions: vec![warned.clone()], ..before };
        assert_eq!(checkpoints_kept(false, &before, Some(1), &later), warned);
        assert_eq!(checkpoints_kept(true, &before, Some(1), &later).last_transition_time, later);
    }

    #[test]
    fn a_condition_keeps_the_moment_at_which_it_changed() {
        let first = status(&seen("running", None), &PolluxJobStatus::default(), None, &at(100));
        let second = status(&seen("resizing", None), &first, None, &at(200));
        assert_eq!(condition(&second, "Running").last_transition_time, at(100));
        assert_eq!(condition(&second, "Resizing").last_transition_time, at(200));
        let third = status(&seen("paused", None), &second, None, &at(300));
        let running = condition(&third, "Running");
        assert_eq!((running.status.as_str(), &running.last_transition_time), ("False", &at(300)));
        assert_eq!(condition(&third, "Suspended").status, "True");
    }
}
