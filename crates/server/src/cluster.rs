use std::collections::BTreeMap;
use std::path::PathBuf;

use pollux_api::Assignment;
use pollux_backend::{Backend, ReplicaId};
use pollux_engine::{Books, Engine, Phase, ReceivedReport};
use pollux_model::GpuType;
use pollux_policy::{JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::JobRequest;
use crate::fleet::Fleet;
use crate::roster::Roster;

/// The cluster as it is now, for questions.
pub struct Cluster<'a> {
    pub(crate) now: Timestamp,
    pub(crate) engine: &'a Engine,
    pub(crate) fleet: &'a Fleet,
    pub(crate) roster: &'a Roster,
    pub(crate) requests: &'a BTreeMap<JobId, JobRequest>,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) is_degraded: bool,
}

impl Cluster<'_> {
    /// By the cluster's clock.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Jobs, nodes, plans and reasons.
    pub const fn engine(&self) -> &Engine {
        self.engine
    }

    /// What the user of a live job asked for.
    pub fn request(&self, job: JobId) -> Option<&JobRequest> {
        self.requests.get(&job)
    }

    /// The newest group of a live job.
    pub fn assignment(&self, job: JobId) -> Option<Assignment> {
        self.fleet.group(job).map(|group| crate::orders::assignment(group, self.fleet, self.roster))
    }

    /// Replicas that work or worked for a live job, the oldest first; of very many the oldest are forgotten.
    pub fn replicas(&self, job: JobId) -> Vec<ReplicaId> {
        let past = self.fleet.group(job).into_iter().flat_map(|group| group.past.iter().copied());
        let present = self.fleet.replicas().filter(|(_, replica)| replica.job == job).map(|(id, _)| id);
        past.chain(present).collect()
    }

    /// What a replica has written, oldest first.
    pub fn log_files(&self, replica: ReplicaId) -> Vec<PathBuf> {
        self.backend.log_files(replica)
    }

    /// The name of a node.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.roster.name(node)
    }

    /// The name of a kind of GPU.
    pub fn gpu_type_name(&self, gpu_type: GpuType) -> &str {
        self.roster.kind(gpu_type)
    }

    /// Whether nothing can be made durable at the moment, so that nothing new is done.
    pub const fn is_degraded(&self) -> bool {
        self.is_degraded
    }
}

/// What is kept of a job that is over: the summary of its row, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    /// How it ended.
    pub phase: Phase,
    /// Its times and GPU-seconds.
    pub books: Books,
    /// What its agent said last.
    pub report: Option<ReceivedReport>,
    /// Replicas that worked for it, the oldest first; of very many the oldest are forgotten.
    pub replicas: Vec<ReplicaId>,
}
