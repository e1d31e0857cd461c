use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use pollux_policy::JobId;
use serde::{Deserialize, Serialize};

/// A replica; a number is never used again in the same state folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.0)
    }
}

/// What a replica is to run, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaOrder {
    /// Its number.
    pub replica: ReplicaId,
    /// The job it works for.
    pub job: JobId,
    /// The node it runs on, by the name under which the node was observed.
    pub node: String,
    /// GPUs it needs.
    pub gpus: u32,
    /// Whose GPUs it uses, instead of free ones.
    pub shares_with: Option<ReplicaId>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where the program starts; absolute.
    pub working_dir: PathBuf,
    /// Variables besides those that every program on the node has.
    pub environment: BTreeMap<String, String>,
    /// Variables that must not be written to any file.
    #[serde(skip)]
    pub secrets: BTreeMap<String, String>,
}
