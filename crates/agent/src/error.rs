use pollux_model::ModelError;
use thiserror::Error;

/// What an agent refuses.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// A value the model refuses.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A saved state written by a newer agent.
    #[error("agent state version {found}: accepted is {supported}")]
    StateVersion {
        /// Version found.
        found: u32,
        /// Version this agent writes.
        supported: u32,
    },
    /// A saved state whose noise statistics refer to another baseline batch.
    #[error("agent state of baseline batch {saved}: this job's baseline is {configured}; keep it, or start afresh")]
    BaselineChanged {
        /// Baseline of the saved state.
        saved: u32,
        /// Baseline in the settings.
        configured: u32,
    },
    /// A saved profile with a configuration that was never measured.
    #[error("no step times for local batch {local_batch} on {replicas} replicas in a saved agent state")]
    EmptyCell {
        /// Per-replica batch of the configuration.
        local_batch: u32,
        /// Its replicas.
        replicas: u32,
    },
    /// A saved progress that no training can have.
    #[error("progress {value} in a saved agent state: accepted are finite numbers from 0")]
    Progress {
        /// The value found.
        value: f64,
    },
}
