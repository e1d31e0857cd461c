use std::io;
use std::path::PathBuf;

use pollux_agent::AgentError;
use pollux_worker::WorkerError;
use thiserror::Error;

use crate::samples::Tally;
use crate::state::StateError;

/// Why a training ends before its end.
#[derive(Debug, Error)]
pub(crate) enum TrainerError {
    /// Settings that make no sense.
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Environment(#[from] WorkerError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A rank is gone, or never came; the group starts again from its last checkpoint.
    #[error("a rank is lost: {0}; the group can be started again from its last checkpoint")]
    Lost(#[source] io::Error),
    #[error("{}: {source}; expected a place that can be read and written", path.display())]
    Checkpoint { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    State { path: PathBuf, source: StateError },
    #[error("--audit {}: {source}", path.display())]
    Audit { path: PathBuf, source: io::Error },
    /// The sample counts of an epoch do not add up: a bug of ours.
    #[error("epoch {epoch} ended with {found:?}; each sample once is {expected:?}")]
    Epoch { epoch: u32, found: Tally, expected: Tally },
    /// A state that rank 0 sent makes no sense.
    #[error("rank 0 sent a state that cannot be used: {0}")]
    Welcome(#[source] StateError),
}

impl TrainerError {
    /// 2 for mistakes of the user, 75 (`EX_TEMPFAIL`) where another try makes sense, 1 for the rest.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Setting(_) | Self::Environment(_) => 2,
            Self::Lost(_) => 75,
            Self::Agent(_)
            | Self::Checkpoint { .. }
            | Self::State { .. }
            | Self::Audit { .. }
            | Self::Epoch { .. }
            | Self::Welcome(_) => 1,
        }
    }
}
