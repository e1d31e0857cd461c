use pollux_policy::{JobId, Reason, Timestamp};

use crate::{Engine, Job, JobState};

/// Why a job is where it is, and when that may change.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Explanation {
    /// What it waits for; nothing if it trains as planned, or has ended.
    pub wait: Option<Wait>,
    /// Why the last plan that included it gave it what it did.
    pub reason: Option<Reason>,
    /// When the next plan is made.
    pub next_round: Option<Timestamp>,
}

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Wait {
    /// The first round that includes it.
    Round,
    /// A plan that gives it GPUs: the reason tells why the last one did not.
    Gpus,
    /// The GPUs it was given, until those who had them are gone.
    Release,
    /// Its replicas, which do not train in their new group yet.
    Ready,
    /// Something outside of the cluster, without which its replicas cannot run: an image, another scheduler's queue.
    Pending,
    /// The end of its backoff after a failure.
    Backoff {
        /// When that is.
        until: Timestamp,
    },
    /// Other jobs, which have to end first.
    Jobs,
    /// Its user, who set it aside.
    Resume,
}

impl Engine {
    /// Why a job is where it is; `None` if it is not in the table.
    pub fn explain(&self, id: JobId) -> Option<Explanation> {
        let job = self.jobs.get(&id)?;
        Some(Explanation { wait: wait(job), reason: job.reason, next_round: self.next_round() })
    }
}

fn wait(job: &Job) -> Option<Wait> {
    match job.state {
        JobState::Queued { .. } if !job.waits_for.is_empty() => Some(Wait::Jobs),
        JobState::Queued { retry_at: Some(until) } => Some(Wait::Backoff { until }),
        JobState::Queued { retry_at: None } if !job.target.is_empty() => Some(Wait::Release),
        JobState::Queued { retry_at: None } if job.reason.is_none() => Some(Wait::Round),
        JobState::Queued { retry_at: None } => Some(Wait::Gpus),
        JobState::Resizing { .. } if job.group != job.target => Some(Wait::Release),
        JobState::Starting | JobState::Resizing { .. } if job.pending => Some(Wait::Pending),
        JobState::Starting | JobState::Resizing { .. } => Some(Wait::Ready),
        JobState::Paused => Some(Wait::Resume),
        JobState::Running | JobState::Succeeded | JobState::Failed { .. } | JobState::Cancelled => None,
    }
}
