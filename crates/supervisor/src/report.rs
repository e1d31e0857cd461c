use pollux_backend::{Exit, Observation, ReplicaId};
use serde::{Deserialize, Serialize};

/// What a supervisor leaves behind as its pod's termination message. Later versions may add fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How its program ended.
    pub ending: Ending,
    /// Bytes that the program wrote.
    #[serde(default)]
    pub written: Option<u64>,
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
    /// As it is told to a scheduler.
    pub fn observation(self, replica: ReplicaId) -> Observation {
        match self {
            Self::Exited(exit) => Observation::Exited { replica, exit },
            Self::StartFailed { reason, retryable } => Observation::StartFailed { replica, reason, retryable },
        }
    }
}
