use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Epoch, ReplicaId};

/// Who is told what a backend sees; it may be called from any thread, and must not block for long.
pub type Observer = Box<dyn Fn(Observation) + Send + Sync>;

/// What a backend has seen. It may come late, twice or out of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A node can take replicas, for the first time or again.
    NodeUp(NodeInfo),
    /// A node does not answer. What runs there may run on, and its GPUs stay taken, until the node is up again or gone.
    NodeUnreachable {
        /// Its name.
        node: String,
    },
    /// A node is gone, and every replica on it.
    NodeGone {
        /// Its name.
        node: String,
    },
    /// A replica was accepted and cannot run yet: its image is pulled, or another scheduler has a queue. It may be told
    /// again with another reason, and is over when the replica starts or ends.
    Pending {
        /// Which replica.
        replica: ReplicaId,
        /// One line that says what it waits for.
        reason: String,
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
    /// An order was refused, because a scheduler of a higher epoch has given orders.
    Superseded {
        /// The epoch of that scheduler.
        by: Epoch,
    },
}

/// A node, as its backend sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// GPUs it has.
    pub gpus: u32,
    /// Their kind, as the node calls it.
    pub gpu_type: String,
    /// CPUs that its replicas may use together; `None` where nobody counts them.
    pub cpus: Option<u32>,
    /// Bytes of memory that its replicas may use together; `None` where nobody counts them.
    pub memory: Option<u64>,
    /// The host under which others reach it. Nodes of one address are parts of one machine.
    pub address: String,
    /// When it is to be empty, if its machine is given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<NodeEnd>,
}

/// When a node is to be empty, by the clock of the scheduler's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEnd {
    /// Milliseconds since 1970 from which on nothing is to be placed there.
    pub drains_at_ms: u64,
    /// Milliseconds since 1970 when its machine is gone, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_ms: Option<u64>,
}

/// How a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// It was killed because it used more memory than it may.
    OutOfMemory,
    /// Others have ended it, for reasons of their own: its machine was emptied, or somebody removed it.
    Evicted,
    /// Nobody knows: the machine went down, or whoever watched it was killed.
    Lost,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::OutOfMemory => write!(f, "killed for using more memory than it may"),
            Self::Evicted => write!(f, "evicted or removed by others"),
            Self::Lost => write!(f, "lost"),
        }
    }
}
