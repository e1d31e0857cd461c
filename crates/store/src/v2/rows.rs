use pollux_engine::Revision;
use pollux_policy::{JobId, NodeId};
use serde::{Deserialize, Serialize};

use crate::ReplicaRow;

/// What is kept of a replica that may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replica {
    pub(crate) node: u32,
    pub(crate) shares_with: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bundle: Option<u64>,
}

impl From<&ReplicaRow> for Replica {
    fn from(row: &ReplicaRow) -> Self {
        Self { node: row.node.0, shares_with: row.shares_with, bundle: row.bundle }
    }
}

impl Replica {
    /// The row of one with this number.
    pub(crate) const fn row(self, id: u64, job: JobId) -> ReplicaRow {
        ReplicaRow { id, job, node: NodeId(self.node), shares_with: self.shares_with, bundle: self.bundle }
    }
}

/// The replicas of a job that train together, in the order of their ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    /// Of the newest membership.
    pub generation: u64,
    /// The engine's revision that it belongs to, or is on its way to.
    pub revision: Revision,
    /// The oldest membership whose words count, with its revision.
    pub heard: (u64, Revision),
    /// Who belongs to it.
    pub members: Vec<u64>,
    /// Host and port, once its leader has told.
    #[serde(default)]
    pub rendezvous: Option<(String, u16)>,
    /// Whether members of this revision are still to be launched.
    pub awaits_additions: bool,
    /// Whether members left since the newest membership was announced.
    pub shrunk: bool,
    /// Whether all of it is to save and leave.
    pub stopping: bool,
    /// Who led it when it was told to leave, though it could have gone on.
    pub last_leader: Option<u64>,
    /// Replicas that are gone, the newest last.
    pub past: Vec<u64>,
}

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// What its backend calls it.
    pub name: String,
    /// The type of its GPUs.
    pub gpu_type: String,
    /// GPUs it has.
    pub gpus: u32,
    /// Of its machine; empty if it is not known.
    #[serde(default)]
    pub address: String,
}
