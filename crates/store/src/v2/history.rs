use pollux_engine::{JobState, StopReason};
use serde::{Deserialize, Serialize};

use super::job;

/// Something that happened, as it is kept for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "happened", rename_all = "snake_case")]
pub enum HistoryEvent {
    /// A job was submitted.
    Submitted {
        /// Its name.
        name: String,
    },
    /// A group, or additions to one, were ordered.
    Launched {
        /// How many replicas.
        replicas: u32,
        /// On how many nodes.
        nodes: usize,
    },
    /// A group is to become another.
    Resized {
        /// Replicas that stay.
        kept: u32,
        /// Replicas that leave.
        removed: u32,
        /// Replicas that come.
        added: u32,
    },
    /// All of a group trains.
    Ready {
        /// Seconds that the training stood still, if it told.
        pause_s: Option<f64>,
    },
    /// All of a group runs, and nothing of it has said a word.
    Silent,
    /// A group was told to leave.
    Stopped {
        /// How many replicas.
        replicas: u32,
        /// What for.
        #[serde(with = "stop_reason")]
        why: StopReason,
    },
    /// A replica ended.
    Exited {
        /// Which.
        replica: u64,
        /// How.
        exit: ReplicaExit,
    },
    /// A replica could not be started.
    NotStarted {
        /// Which.
        replica: u64,
        /// One line that says why.
        reason: String,
    },
    /// A job is over, and nothing of it runs any more.
    Ended {
        /// How it ended.
        #[serde(with = "job_state")]
        phase: JobState,
    },
    /// A user set a job aside.
    Paused,
    /// A user wants it to go on.
    Resumed,
    /// A user ended it.
    Cancelled,
    /// A node came up.
    NodeJoined {
        /// Its name.
        node: String,
    },
    /// A node is gone.
    NodeLost {
        /// Its name.
        node: String,
    },
    /// A node is not used any more, because its machine has become another.
    NodeRetired {
        /// Its name.
        node: String,
    },
    /// A node does not answer.
    NodeUnreachable {
        /// Its name.
        node: String,
    },
    /// A node answers again.
    NodeReachable {
        /// Its name.
        node: String,
    },
    /// A replica cannot run yet.
    Pending {
        /// Which.
        replica: u64,
        /// What it waits for.
        reason: String,
    },
    /// A user wants a node to be emptied.
    NodeDrained {
        /// Its name.
        node: String,
    },
    /// A user wants a node to be used again.
    NodeUndrained {
        /// Its name.
        node: String,
    },
    /// The last record of the journal made no sense when a scheduler began: it was set aside.
    Damaged {
        /// Its number.
        record: u64,
    },
    /// What a policy remembered was of no use when a scheduler began: another policy follows it, or it was written by
    /// another version.
    PolicyForgot {
        /// Its name.
        policy: String,
    },
    /// A policy made a plan that could not be used.
    PlanRejected {
        /// What is wrong with it.
        error: String,
    },
}

/// How a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was killed because it used more memory than it may.
    OutOfMemory,
    /// Others have ended it.
    Evicted,
    /// Nobody knows.
    Lost,
}

/// Written in the words of this format, whatever the engine calls it.
mod stop_reason {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{StopReason, job};

    pub(super) fn serialize<S: Serializer>(why: &StopReason, to: S) -> Result<S::Ok, S::Error> {
        job::StopReason::from(*why).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StopReason, D::Error> {
        Ok(job::StopReason::deserialize(from)?.into())
    }
}

/// Written in the words of this format, whatever the engine calls it.
mod job_state {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{JobState, job};

    pub(super) fn serialize<S: Serializer>(state: &JobState, to: S) -> Result<S::Ok, S::Error> {
        job::Phase::from(state).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobState, D::Error> {
        Ok(job::Phase::deserialize(from)?.into())
    }
}
