use std::cell::OnceCell;
use std::collections::BTreeMap;

use pollux_api::Assignment;
use pollux_backend::{Checkpoints, Epoch, ReplicaId};
use pollux_engine::{Engine, FairShare};
use pollux_job::JobSpec;
use pollux_model::{GpuType, GpuTypeName};
use pollux_policy::{JobId, NodeId, Timestamp};

use crate::ServerSettings;
use crate::fleet::Fleet;
use crate::node_registry::NodeRegistry;

/// The cluster as it is now, for questions.
pub struct Cluster<'a> {
    pub(crate) now: Timestamp,
    pub(crate) settings: &'a ServerSettings,
    pub(crate) engine: &'a Engine,
    pub(crate) fleet: &'a Fleet,
    pub(crate) registry: &'a NodeRegistry,
    pub(crate) specs: &'a BTreeMap<JobId, JobSpec>,
    pub(crate) checkpoints: &'a dyn Checkpoints,
    /// How the last replica of a job ended that failed.
    pub(crate) last_failures: &'a BTreeMap<JobId, String>,
    pub(crate) epoch: Epoch,
    pub(crate) is_degraded: bool,
    pub(crate) last_event: u64,
    pub(crate) journal_records: u64,
    /// Found out when it is asked for first.
    pub(crate) equal_share: OnceCell<Option<FairShare>>,
}

impl Cluster<'_> {
    /// By the cluster's clock.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// How it is run.
    pub const fn settings(&self) -> &ServerSettings {
        self.settings
    }

    /// Jobs, nodes, plans and reasons.
    pub const fn engine(&self) -> &Engine {
        self.engine
    }

    /// What an equal share of the cluster would be; nothing without jobs.
    pub fn equal_share(&self) -> Option<&FairShare> {
        self.equal_share.get_or_init(|| self.engine.equal_share()).as_ref()
    }

    /// What the user of a live job asked for.
    pub fn spec(&self, job: JobId) -> Option<&JobSpec> {
        self.specs.get(&job)
    }

    /// The newest group of a live job.
    pub fn assignment(&self, job: JobId) -> Option<Assignment> {
        let batch = crate::orders::batch_mode(self.settings, self.engine.job(job));
        self.fleet.group(job).map(|group| crate::orders::assignment(job, group, self.fleet, self.registry, batch))
    }

    /// Replicas that work or worked for a live job, the oldest first; of very many the oldest are forgotten.
    pub fn replicas(&self, job: JobId) -> Vec<ReplicaId> {
        let past = self.fleet.group(job).into_iter().flat_map(|group| group.past.iter().copied());
        let present = self.fleet.replicas().filter(|(_, replica)| replica.job == job).map(|(id, _)| id);
        let mut replicas: Vec<ReplicaId> = past.chain(present).collect();
        replicas.sort_unstable();
        replicas
    }

    /// Jobs that are not over, paused ones included.
    pub fn live_jobs(&self) -> impl Iterator<Item = JobId> {
        self.specs.keys().copied()
    }

    /// What orders of this scheduler carry.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Where a job saves.
    pub fn checkpoint_dir(&self, job: JobId) -> String {
        self.checkpoints.location(job)
    }

    /// The name of a node.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.registry.name(node)
    }

    /// A node that is up, by its name.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.registry.current(name)
    }

    /// The name of a type of GPU.
    pub fn gpu_type_name(&self, gpu_type: GpuType) -> &str {
        self.engine.gpu_type_name(gpu_type).map_or("", GpuTypeName::as_str)
    }

    /// Number of the newest line of history.
    pub const fn last_event(&self) -> u64 {
        self.last_event
    }

    /// Records that a restart would have to replay.
    pub const fn journal_records(&self) -> u64 {
        self.journal_records
    }

    /// Whether nothing can be made durable at the moment, so that nothing new is done.
    pub const fn is_degraded(&self) -> bool {
        self.is_degraded
    }
}
