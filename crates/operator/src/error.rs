use pollux_backend_kube::KubeError;
use pollux_server::ServerError;
use pollux_store::StoreError;
use thiserror::Error;

/// Why an operator cannot start, or go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The cluster cannot be reached, or refuses something.
    #[error("the cluster: {0}")]
    Cluster(#[from] kube::Error),
    /// No configuration says where the cluster is.
    #[error("no cluster is configured: {0}; expected a pod with a service account, or KUBECONFIG")]
    Configuration(#[from] kube::config::InferConfigError),
    /// The scheduler cannot start, or go on.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The backend cannot start.
    #[error(transparent)]
    Backend(#[from] KubeError),
    /// Whether this scheduler may act is not known.
    #[error(transparent)]
    Epoch(#[from] pollux_backend_kube::Refused),
    /// What was copied cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was copied is not all there.
    #[error("the copy of the journal is damaged: {0}")]
    Journal(String),
    /// The cluster does not keep what is written.
    #[error("the journal cannot be kept: {0}")]
    NotKept(String),
    /// A certificate cannot be made.
    #[error("certificate: {0}")]
    Certificate(String),
    /// What the keys of groups are made from is not to be had.
    #[error("secret of groups: {0}")]
    Secret(String),
    /// The disk refuses something.
    #[error("{file}: {reason}")]
    File {
        /// Which file.
        file: String,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The system gives no threads.
    #[error("no threads: {0}")]
    Thread(std::io::Error),
    /// Another replica of the operator leads.
    #[error("another replica leads now: {0}")]
    NotLeader(String),
}
