use pollux_engine::{EngineState, RoundTimes, SavedApplication, SavedNode};
use pollux_job::JobId;
use pollux_model::{BatchLimits, Goodput, NoiseStatistics, ThroughputModel};
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
    /// Compute time on the second type against that on the first.
    #[serde(default)]
    pub(crate) type_ratios: Vec<(GpuTypeName, GpuTypeName, f64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) applications: Vec<Application>,
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
    pub(crate) end: Option<NodeEnd>,
    #[serde(default)]
    pub(crate) ending: bool,
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

/// When a node is to be empty, and is gone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct NodeEnd {
    drains_at: u64,
    #[serde(default)]
    ends_at: Option<u64>,
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
    Outcome is pollux_job::Phase { Queued, Starting, Running, Resizing, Paused, Succeeded, Failed, Cancelled, Unknown }
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

/// What is known of an application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Application {
    name: String,
    seen: u64,
    #[serde(default)]
    types: Vec<MeasuredType>,
    #[serde(default)]
    epoch_samples: Option<u64>,
    #[serde(default)]
    ended: Vec<EndedJob>,
}

/// A job of it that succeeded.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EndedJob {
    samples: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    samples_declared: Option<f64>,
}

/// What its jobs measured on a type of GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MeasuredType {
    gpu_type: GpuTypeName,
    model: ThroughputModel,
    noise: NoiseStatistics,
    limits: BatchLimits,
    replicas_profiled: u32,
}

impl From<&SavedApplication> for Application {
    fn from(known: &SavedApplication) -> Self {
        let measured = |measured: &pollux_engine::MeasuredType| MeasuredType {
            gpu_type: measured.gpu_type.clone(),
            model: measured.goodput.throughput,
            noise: measured.goodput.noise,
            limits: measured.goodput.limits,
            replicas_profiled: measured.replicas_profiled,
        };
        let ended = |&pollux_policy::EndedJob { samples, samples_declared }: &pollux_policy::EndedJob| EndedJob {
            samples,
            samples_declared,
        };
        Self {
            name: known.name.clone(),
            seen: known.seen.0,
            types: known.types.iter().map(measured).collect(),
            epoch_samples: known.epoch_samples,
            ended: known.ended.iter().map(ended).collect(),
        }
    }
}

impl From<Application> for SavedApplication {
    fn from(known: Application) -> Self {
        let measured = |measured: MeasuredType| pollux_engine::MeasuredType {
            gpu_type: measured.gpu_type,
            goodput: Goodput { throughput: measured.model, noise: measured.noise, limits: measured.limits },
            replicas_profiled: measured.replicas_profiled,
        };
        let ended = |EndedJob { samples, samples_declared }| pollux_policy::EndedJob { samples, samples_declared };
        Self {
            name: known.name,
            seen: Timestamp(known.seen),
            types: known.types.into_iter().map(measured).collect(),
            epoch_samples: known.epoch_samples,
            ended: known.ended.into_iter().map(ended).collect(),
        }
    }
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
            end: node.end.map(Into::into),
            ending: node.ending,
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
            type_ratios: state.type_ratios.clone(),
            applications: state.applications.iter().map(Into::into).collect(),
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
            end: node.end.map(Into::into),
            ending: node.ending,
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
            type_ratios: snapshot.type_ratios,
            applications: snapshot.applications.into_iter().map(Into::into).collect(),
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

impl From<pollux_policy::NodeEnd> for NodeEnd {
    fn from(end: pollux_policy::NodeEnd) -> Self {
        Self { drains_at: end.drains_at.0, ends_at: end.ends_at.map(|at| at.0) }
    }
}

impl From<NodeEnd> for pollux_policy::NodeEnd {
    fn from(end: NodeEnd) -> Self {
        Self { drains_at: Timestamp(end.drains_at), ends_at: end.ends_at.map(Timestamp) }
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
