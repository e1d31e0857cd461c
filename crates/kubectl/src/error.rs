use std::io;

use thiserror::Error;

/// Why something cannot be done in a cluster.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KubectlError {
    /// Nothing says where the cluster is.
    #[error("no cluster: {0}; expected a kubeconfig, by --kubeconfig, KUBECONFIG or in ~/.kube/config")]
    Configuration(#[from] kube::config::KubeconfigError),
    /// The API server says no, and why.
    #[error("the API server refuses it: {message}")]
    Refused {
        /// As HTTP has it.
        code: u16,
        /// In the words of the API server.
        message: String,
    },
    /// The API server cannot be asked.
    #[error("the API server does not answer: {0}")]
    Away(kube::Error),
    /// The user may not have a token of this service account.
    #[error(
        "no token of the service account {account} in namespace {namespace}: {message}; expected the right to create \
         serviceaccounts/token there, as the roles edit and admin have it, or another --namespace or --service-account"
    )]
    Token {
        /// Where.
        namespace: String,
        /// Which.
        account: String,
        /// In the words of the API server.
        message: String,
    },
    /// An operator that cannot be one.
    #[error("--operator is {0:?}; expected NAMESPACE/NAME of its Service")]
    OperatorName(String),
    /// A job that pods cannot run as it is described.
    #[error("{0}")]
    Job(String),
    /// The system gives no threads, ports or random numbers.
    #[error("the system refuses {what}: {reason}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it says.
        reason: io::Error,
    },
}

impl KubectlError {
    /// Whether something has to be asked for differently, for the same will be refused again.
    pub const fn is_mistake(&self) -> bool {
        match self {
            Self::Configuration(_) | Self::Token { .. } | Self::OperatorName(_) | Self::Job(_) => true,
            Self::Refused { code, .. } => matches!(code, 400 | 403 | 404 | 409 | 422),
            Self::Away(_) | Self::System { .. } => false,
        }
    }
}

impl From<kube::Error> for KubectlError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { code: status.code, message: status.message },
            other => Self::Away(other),
        }
    }
}
