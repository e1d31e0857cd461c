use pollux_model::{GpuTypeName, ModelError};
use thiserror::Error;

/// What an agent refuses.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A value the model refuses.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A saved state whose noise statistics refer to another baseline batch.
    #[error("agent state of baseline batch {saved}: this job's baseline is {configured}; keep it, or start afresh")]
    BaselineChanged {
        /// Baseline of the saved state.
        saved: u32,
        /// Baseline in the settings.
        configured: u32,
    },
    /// Saved profiles that are not one per type of GPU, ordered by name.
    #[error("profile of GPU type {gpu_type} out of order in a saved agent state: expected one per type, ascending")]
    ProfileOrder {
        /// The type that is out of order.
        gpu_type: GpuTypeName,
    },
    /// A saved profile with more configurations than an agent remembers.
    #[error("{cells} configurations in a saved profile: expected at most {limit}")]
    CellCount {
        /// Configurations found.
        cells: usize,
        /// The most an agent remembers.
        limit: usize,
    },
    /// Saved configurations that are not in order, each once.
    #[error(
        "local batch {local_batch} on {replicas} replicas over {nodes} nodes out of order in a saved profile: expected \
        each configuration once, ascending"
    )]
    CellOrder {
        /// Nodes of the configuration.
        nodes: u32,
        /// Its replicas.
        replicas: u32,
        /// Its per-replica batch.
        local_batch: u32,
    },
    /// A saved configuration without step times, with too many, or with halves of some.
    #[error(
        "{compute} compute and {sync} synchronisation times for local batch {local_batch} on {replicas} replicas in a \
         saved profile: expected 1 to {limit}, as many of the one as of the other"
    )]
    CellTimes {
        /// Compute times found.
        compute: usize,
        /// Synchronisation times found.
        sync: usize,
        /// Per-replica batch of the configuration.
        local_batch: u32,
        /// Its replicas.
        replicas: u32,
        /// The most an agent remembers.
        limit: usize,
    },
    /// A saved tuning that no agent would have chosen.
    #[error(
        "local batch {local_batch} with {accumulation_steps} accumulation steps on {replicas} replicas in a saved agent \
         state: expected batches of 1 to 4294967295 samples"
    )]
    Tuning {
        /// Per-replica micro-batch.
        local_batch: u32,
        /// Accumulation steps.
        accumulation_steps: u32,
        /// Replicas it ran on.
        replicas: u32,
    },
    /// Saved losses that no agent would have written.
    #[error(
        "{points} losses {spacing} steps apart in a saved agent state: expected at most {limit}, in order of progress"
    )]
    Losses {
        /// Losses found.
        points: usize,
        /// Steps between them.
        spacing: f64,
        /// The most an agent remembers.
        limit: usize,
    },
    /// A rate that no training can have.
    #[error("{value} samples per second: expected finite numbers above 0")]
    Rate {
        /// The value given.
        value: f64,
    },
    /// A saved progress that no training can have.
    #[error("progress {value} in a saved agent state: expected finite numbers from 0")]
    Progress {
        /// The value found.
        value: f64,
    },
}
