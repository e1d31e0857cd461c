use std::fmt;
use std::future::Future;
use std::pin::Pin;

use pollux_policy::JobId;
use thiserror::Error;

/// Whom a token of somebody else's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A user, who may do everything that can be done here.
    User(String),
    /// Somebody who may see the jobs of this owner.
    Viewer(String),
    /// Somebody who may read the numbers of the scheduler.
    Monitor(String),
    /// A worker of a job, which counts if the job has this owner.
    Worker {
        /// Which job.
        job: JobId,
        /// Whose it must be.
        owner: String,
    },
}

/// Nobody can be asked at the moment whom a token names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("whose token this is cannot be checked: {0}")]
pub struct Unverified(pub String);

/// What a token names, once it is known.
pub type Verification<'a> = Pin<Box<dyn Future<Output = Result<Option<Identity>, Unverified>> + Send + 'a>>;

/// Knows tokens that this server has not made.
pub trait Authenticator: Send + Sync + fmt::Debug {
    /// Whom a token names; nobody, if it is not valid here.
    fn verify<'a>(&'a self, token: &'a str) -> Verification<'a>;
}
