use pollux_backend::{Exit, Observation, ReplicaId};
use serde::{Deserialize, Serialize};

use crate::EndedAlike;

/// What a supervisor leaves behind as its pod's termination message. Later versions may add fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How its program ended; of several the first that did not end well.
    pub ending: Ending,
    /// Bytes that the program wrote, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
    /// How each of several ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<EndedAlike>,
}

impl Report {
    /// How a replica ended and how much it wrote, if that is said; of a pod with one it is that one.
    pub fn of(&self, replica: ReplicaId) -> Option<(&Ending, Option<u64>)> {
        if self.replicas.is_empty() {
            return Some((&self.ending, self.written));
        }
        let all = self.replicas.iter().flat_map(|group| group.replicas.iter().map(|one| (&group.ending, one)));
        all.filter(|(_, (id, _))| *id == replica).map(|(ending, (_, written))| (ending, Some(*written))).next()
    }
}

/// How a replica ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Its program ran.
    Exited(Exit),
    /// Its program could not be run.
    StartFailed {
        /// One line that says why.
        reason: String,
        /// Whether another attempt makes sense.
        retryable: bool,
    },
}

impl Ending {
    /// Of a replica that was run to its end.
    pub(crate) fn of(observation: Observation) -> Self {
        match observation {
            Observation::Exited { exit, .. } => Self::Exited(exit),
            Observation::StartFailed { reason, retryable, .. } => Self::StartFailed { reason, retryable },
            other => unreachable!("a replica that was run to its end has none but {other:?}"),
        }
    }

    /// As it is told to a scheduler.
    pub fn observation(self, replica: ReplicaId) -> Observation {
        match self {
            Self::Exited(exit) => Observation::Exited { replica, exit },
            Self::StartFailed { reason, retryable } => Observation::StartFailed { replica, reason, retryable },
        }
    }
}
