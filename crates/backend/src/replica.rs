use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use pollux_policy::JobId;
use serde::{Deserialize, Serialize};

use crate::Epoch;

/// A replica; a number is never used again in the same state folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.0)
    }
}

/// What a replica is to run, and where. Backends that keep orders read those of earlier versions, which lack the newer
/// fields, and of later ones, which have others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaOrder {
    /// The scheduler that gives the order.
    #[serde(default)]
    pub epoch: Epoch,
    /// Its number.
    pub replica: ReplicaId,
    /// The job it works for.
    pub job: JobId,
    /// The node it runs on, by the name under which the node was observed.
    pub node: String,
    /// GPUs it needs, all of that node.
    pub gpus: u32,
    /// CPUs it asked for, if it did.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Bytes of memory it asked for, if it did.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Whose GPUs it uses, instead of free ones.
    pub shares_with: Option<ReplicaId>,
    /// All that come and go with it, itself included, if it does not come alone: where replicas are pods, they are one. They
    /// are ordered together, for one node, and differ in their numbers and variables only.
    #[serde(default)]
    pub bundle: Vec<ReplicaId>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where the program starts; absolute.
    pub working_dir: PathBuf,
    /// Where its job saves: what [`Checkpoints::location`] says. The backend makes the folder before the program starts.
    ///
    /// [`Checkpoints::location`]: crate::Checkpoints::location
    #[serde(default)]
    pub checkpoint_dir: String,
    /// Whether its program goes on from there: its job begins or begins again, and no other replica has its state.
    #[serde(default)]
    pub restores: bool,
    /// Variables besides those that every program on the node has.
    pub environment: BTreeMap<String, String>,
    /// Variables that must not be written to any file.
    #[serde(skip)]
    pub secrets: BTreeMap<String, String>,
}
