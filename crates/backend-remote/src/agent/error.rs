use std::io;
use std::path::PathBuf;

use pollux_backend_local::LocalError;
use thiserror::Error;

/// Why a machine does not join, or does not go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The state folder cannot be used.
    #[error("{}: {reason}", .path.display())]
    State {
        /// Which file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An address at which no scheduler can be.
    #[error("--join {url}: {reason}")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A token that is none.
    #[error("{}: no token to join: expected what `pollux token create --node` prints", .file.display())]
    Token {
        /// Where it was read.
        file: PathBuf,
    },
    /// Authorities that cannot be used.
    #[error("--ca {}: {reason}", .file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Replicas cannot run here.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The system gives nothing to wait with.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    /// The scheduler does not want it.
    #[error("the scheduler refuses this machine: {reason}")]
    Refused {
        /// Why, as the scheduler says.
        reason: String,
    },
    /// It is no machine of the scheduler's any more.
    #[error("{reason}; nothing runs here any more")]
    Removed {
        /// What happened.
        reason: String,
    },
}

impl AgentError {
    /// Whether something has to be asked for differently.
    pub const fn is_mistake(&self) -> bool {
        matches!(
            self,
            Self::Address { .. } | Self::Token { .. } | Self::Authority { .. } | Self::Local(LocalError::Layout { .. })
        )
    }
}
