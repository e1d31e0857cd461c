use std::io;

use pollux_backend_local::LocalError;
use pollux_server::ServerError;
use pollux_store::StoreError;
use thiserror::Error;

/// Why a scheduler does not start, or had to end.
#[derive(Debug, Error)]
pub(crate) enum UpError {
    /// A policy that cannot be used.
    #[error("--policy: {0}")]
    Policy(String),
    /// What the server says, and what to do about it.
    #[error("{error}{}", advice(.error))]
    Server {
        /// Why.
        error: ServerError,
    },
}

impl UpError {
    /// Whether something has to be asked for differently.
    pub(crate) fn is_mistake(&self) -> bool {
        match self {
            Self::Policy(_) => true,
            Self::Server { error } => match error {
                ServerError::Insecure { .. } | ServerError::Tls { .. } => true,
                ServerError::Settings(_) | ServerError::NeedsOracle { .. } => true,
                ServerError::Backend(reason) => matches!(reason.downcast_ref(), Some(LocalError::Layout { .. })),
                // The rest is no matter of what was asked for.
                _ => false,
            },
        }
    }
}

impl From<ServerError> for UpError {
    fn from(error: ServerError) -> Self {
        Self::Server { error }
    }
}

/// The next step, where the message has none.
fn advice(error: &ServerError) -> &'static str {
    match error {
        ServerError::Listen { reason, .. } if reason.kind() == io::ErrorKind::AddrInUse => {
            "; `pollux top` shows the scheduler if it is one, another address is given by --listen"
        }
        ServerError::Listen { .. } => "; give an address of this machine by --listen",
        ServerError::Store(StoreError::Folder { .. }) | ServerError::File { .. } => {
            "; make it writable, or give another folder by --state"
        }
        ServerError::Store(StoreError::NewerVersion { .. }) => {
            "; take that version of pollux, or give another folder by --state"
        }
        ServerError::Tls { .. } => "; expected a certificate and its key in PEM files",
        // The others say it themselves, or there is none.
        _ => "",
    }
}
