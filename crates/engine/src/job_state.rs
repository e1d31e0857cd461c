use std::fmt;

use pollux_job::{JobId, Phase};
use pollux_policy::{Allocation, NodeId, Timestamp};

/// Numbers the worker groups of a job. Everything a worker says carries the one it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Revision(pub u64);

impl Revision {
    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {}", self.0)
    }
}

/// Where a job is in its life. Replicas that were told to leave may still be on their way out in any phase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum JobState {
    /// Has no group. It waits for a plan that gives it GPUs, or for those GPUs to be free.
    Queued {
        /// After a failure: plans leave it out until then.
        retry_at: Option<Timestamp>,
    },
    /// A whole group was launched and does not train yet.
    Starting,
    /// Every replica trains.
    Running,
    /// A new revision was announced: survivors train on until it is complete.
    Resizing {
        /// Replicas that carry the state over.
        survivors: Allocation,
        /// What it is resized for.
        cause: ResizeCause,
    },
    /// Set aside by its user, without GPUs.
    Paused,
    /// Done.
    Succeeded,
    /// Given up.
    Failed {
        /// Why.
        reason: FailureReason,
    },
    /// Ended by its user.
    Cancelled,
}

impl JobState {
    /// Waiting, with nothing to hold it back.
    pub(crate) const QUEUED: Self = Self::Queued { retry_at: None };

    /// The same in one word.
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Queued { .. } => Phase::Queued,
            Self::Starting => Phase::Starting,
            Self::Running => Phase::Running,
            Self::Resizing { .. } => Phase::Resizing,
            Self::Paused => Phase::Paused,
            Self::Succeeded => Phase::Succeeded,
            Self::Failed { .. } => Phase::Failed,
            Self::Cancelled => Phase::Cancelled,
        }
    }

    /// Whether nothing will happen to it any more.
    pub const fn is_ended(&self) -> bool {
        self.phase().is_ended()
    }

    /// Whether it has a group of replicas.
    pub const fn has_group(&self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Resizing { .. })
    }

    /// Whether plans include it, unless it waits for other jobs.
    pub(crate) const fn is_plannable(&self) -> bool {
        matches!(self, Self::Queued { retry_at: None }) || self.has_group()
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.phase().fmt(f)
    }
}

/// What a job is resized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ResizeCause {
    /// A plan gave it something else.
    Plan,
    /// It lost a node and goes on with what remains.
    NodeLoss,
}

/// Why a job was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum FailureReason {
    /// A failure that another attempt would repeat.
    Permanent {
        /// What failed.
        cause: FailureCause,
    },
    /// As many retries as the job allows.
    RetriesExhausted {
        /// Retries made.
        retries: u32,
        /// What failed last.
        cause: FailureCause,
    },
    /// As many failures in a row as machines may cause.
    MachineFailures {
        /// How many.
        failures: u32,
        /// What failed last.
        cause: FailureCause,
    },
    /// It has held GPUs for as long as its user allowed.
    TimeLimit {
        /// Seconds allowed.
        limit_s: u64,
    },
    /// A job that it waited for did not end as it had to.
    Dependency {
        /// Which job.
        job: JobId,
    },
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum FailureCause {
    /// A replica.
    Replica {
        /// Where it ran.
        node: NodeId,
    },
    /// The start of a replica.
    Launch {
        /// Where it should have run.
        node: NodeId,
    },
    /// The group did not train in time.
    Timeout,
}
