use std::io;

use thiserror::Error;

/// Why a cluster cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KubeError {
    /// The system refused a thread.
    #[error("no thread for the cluster: {0}")]
    Thread(#[source] io::Error),
    /// What is known of the cluster makes no sense.
    #[error("the cluster cannot be spoken to: {0}")]
    Client(#[from] kube::Error),
}
