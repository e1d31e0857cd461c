use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ReplicaId;

/// Who is told what a backend sees; it may be called from any thread, and must not block for long.
pub type Observer = Box<dyn Fn(Observation) + Send + Sync>;

/// What a backend has seen. It may come late, twice or out of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A node can take replicas.
    NodeUp {
        /// Its name.
        node: String,
        /// GPUs it has.
        gpus: u32,
        /// Their kind, as the node calls it.
        gpu_type: String,
    },
    /// A node is gone, and every replica on it.
    NodeGone {
        /// Its name.
        node: String,
    },
    /// A replica's program runs.
    Started {
        /// Which replica.
        replica: ReplicaId,
    },
    /// A replica's program could not be started; nothing of it runs.
    StartFailed {
        /// Which replica.
        replica: ReplicaId,
        /// One line that says why.
        reason: String,
        /// Whether another attempt makes sense, because the machine was short of something.
        retryable: bool,
    },
    /// A replica has ended, with everything that it started: its GPUs are free.
    Exited {
        /// Which replica.
        replica: ReplicaId,
        /// How it ended.
        exit: Exit,
    },
}

/// How a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Nobody knows: the machine went down, or whoever watched it was killed.
    Lost,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Lost => write!(f, "lost"),
        }
    }
}
