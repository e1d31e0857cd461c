use pollux_engine::{EngineState, RoundTimes, SavedNode};
use pollux_job::JobId;
use pollux_policy::{NodeId, PolicyState, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;

use super::{GpuTypeName, Job, words};

/// Everything an engine knew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) now: u64,
    pub(crate) jobs: Vec<Job>,
    pub(crate) last_job: Option<u64>,
    pub(crate) nodes: Vec<ClusterNode>,
    pub(crate) last_node: Option<u32>,
    /// Types of GPU, in the order of their numbers.
    #[serde(default)]
    pub(crate) gpu_types: Vec<GpuTypeName>,
    pub(crate) rounds: Rounds,
    pub(crate) succeeded: Vec<SucceededJob>,
    /// How the last jobs ended.
    #[serde(default)]
    pub(crate) outcomes: Vec<(u64, Outcome)>,
    #[serde(default)]
    pub(crate) policy: Option<Memory>,
}

/// A node that is not lost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClusterNode {
    pub(crate) id: u32,
    pub(crate) gpus: u32,
    pub(crate) gpu_type: GpuTypeName,
    #[serde(default)]
    pub(crate) cpus: Option<u32>,
    #[serde(default)]
    pub(crate) memory: Option<u64>,
    pub(crate) draining: bool,
    #[serde(default)]
    pub(crate) unreachable: bool,
    #[serde(default)]
    pub(crate) retired: bool,
    pub(crate) cooling_until: Option<u64>,
    pub(crate) held: u32,
    pub(crate) crowding: u32,
    #[serde(default)]
    pub(crate) cpus_held: u32,
    #[serde(default)]
    pub(crate) memory_held: u64,
    pub(crate) waiting: Vec<u64>,
    pub(crate) failures: Vec<(u64, u64)>,
}

/// Rounds that were and will be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Rounds {
    last: Option<u64>,
    timer: u64,
    requested: Option<u64>,
}

words! {
    /// Where a job is in its life, in one word.
    Outcome is pollux_job::Phase { Queued, Starting, Running, Resizing, Paused, Succeeded, Failed, Cancelled }
}

/// A job that has succeeded since the last round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SucceededJob {
    id: u64,
    attained_gpu_s: f64,
    executed_s: f64,
}

/// What a policy remembers, in its own words and with a version of its own: what cannot be read of it is dropped, and the
/// policy begins anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    name: String,
    version: u32,
    memory: Value,
}

impl From<&EngineState> for Snapshot {
    fn from(state: &EngineState) -> Self {
        let node = |node: &SavedNode| ClusterNode {
            id: node.id.0,
            gpus: node.gpus,
            gpu_type: node.gpu_type.clone(),
            cpus: node.cpus,
            memory: node.memory,
            draining: node.draining,
            unreachable: node.unreachable,
            retired: node.retired,
            cooling_until: node.cooling_until.map(|at| at.0),
            held: node.held,
            crowding: node.crowding,
            cpus_held: node.cpus_held,
            memory_held: node.memory_held,
            waiting: node.waiting.iter().map(|job| job.0).collect(),
            failures: node.failures.iter().map(|(job, at)| (job.0, at.0)).collect(),
        };
        let RoundTimes { last, timer, requested } = state.rounds;
        Self {
            now: state.now.0,
            jobs: state.jobs.iter().map(Into::into).collect(),
            last_job: state.last_job.map(|job| job.0),
            nodes: state.nodes.iter().map(node).collect(),
            last_node: state.last_node.map(|node| node.0),
            gpu_types: state.gpu_types.clone(),
            rounds: Rounds { last: last.map(|at| at.0), timer: timer.0, requested: requested.map(|at| at.0) },
            succeeded: state.succeeded.iter().copied().map(Into::into).collect(),
            outcomes: state.outcomes.iter().map(|&(job, phase)| (job.0, phase.into())).collect(),
            policy: state.policy.as_ref().map(Into::into),
        }
    }
}

impl From<&PolicyState> for Memory {
    fn from(state: &PolicyState) -> Self {
        // Plain data is always JSON; if it were not, the policy would begin anew.
        let memory = serde_json::to_value(state).unwrap_or_default();
        Self { name: state.policy().to_owned(), version: PolicyState::VERSION, memory }
    }
}

impl Snapshot {
    /// The state, and the name of a policy whose memory cannot be read.
    pub(crate) fn into_state(mut self) -> (EngineState, Option<String>) {
        let (policy, unreadable) = match self.policy.take() {
            Some(memory) if memory.version == PolicyState::VERSION => match serde_json::from_value(memory.memory) {
                Ok(state) => (Some(state), None),
                Err(error) => {
                    warn!(policy = memory.name, %error, "what the policy remembers cannot be read");
                    (None, Some(memory.name))
                }
            },
            Some(memory) => {
                let (found, expected) = (memory.version, PolicyState::VERSION);
                warn!(policy = memory.name, found, expected, "what the policy remembers is of another version");
                (None, Some(memory.name))
            }
            None => (None, None),
        };
        (EngineState { policy, ..self.into() }, unreadable)
    }
}

/// All but what its policy remembers.
impl From<Snapshot> for EngineState {
    fn from(snapshot: Snapshot) -> Self {
        let node = |node: ClusterNode| SavedNode {
            id: NodeId(node.id),
            gpus: node.gpus,
            gpu_type: node.gpu_type,
            cpus: node.cpus,
            memory: node.memory,
            draining: node.draining,
            unreachable: node.unreachable,
            retired: node.retired,
            cooling_until: node.cooling_until.map(Timestamp),
            held: node.held,
            crowding: node.crowding,
            cpus_held: node.cpus_held,
            memory_held: node.memory_held,
            waiting: node.waiting.into_iter().map(JobId).collect(),
            failures: node.failures.into_iter().map(|(job, at)| (JobId(job), Timestamp(at))).collect(),
        };
        let nodes = snapshot.nodes.into_iter().map(node).collect();
        let Rounds { last, timer, requested } = snapshot.rounds;
        Self {
            now: Timestamp(snapshot.now),
            jobs: snapshot.jobs.into_iter().map(Into::into).collect(),
            last_job: snapshot.last_job.map(JobId),
            nodes,
            last_node: snapshot.last_node.map(NodeId),
            gpu_types: snapshot.gpu_types,
            rounds: RoundTimes {
                last: last.map(Timestamp),
                timer: Timestamp(timer),
                requested: requested.map(Timestamp),
            },
            succeeded: snapshot.succeeded.into_iter().map(Into::into).collect(),
            outcomes: snapshot.outcomes.into_iter().map(|(job, outcome)| (JobId(job), outcome.into())).collect(),
            policy: None,
        }
    }
}

impl From<pollux_policy::SucceededJob> for SucceededJob {
    fn from(job: pollux_policy::SucceededJob) -> Self {
        Self { id: job.id.0, attained_gpu_s: job.attained_gpu_s, executed_s: job.executed_s }
    }
}

impl From<SucceededJob> for pollux_policy::SucceededJob {
    fn from(job: SucceededJob) -> Self {
        Self { id: JobId(job.id), attained_gpu_s: job.attained_gpu_s, executed_s: job.executed_s }
    }
}
