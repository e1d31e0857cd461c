use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use pollux_backend::Epoch;
use pollux_engine::{Refusal, SettingsError};
use pollux_job::{After, Dependency, JobId, Phase, SpecError};
use pollux_store::StoreError;
use thiserror::Error;

use crate::WhatIfError;

/// Why a server cannot start, or go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The journal cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Settings that no cluster can be run with.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A policy for simulations.
    #[error("policy {policy} has to know what jobs will do, which only a simulator does: choose another")]
    NeedsOracle {
        /// Its name.
        policy: String,
    },
    /// The backend cannot be used.
    #[error("{0}")]
    Backend(Box<dyn std::error::Error + Send + Sync>),
    /// The system gives no random numbers, and there are no tokens without.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
    /// The system gives no thread.
    #[error("the scheduler's thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// The scheduler's thread panicked.
    #[error("the scheduler broke; the state folder holds all that was acknowledged")]
    Broken,
    /// Everybody could read along.
    #[error("listening on {listen} without TLS is refused: give --tls-cert and --tls-key, or listen on 127.0.0.1")]
    Insecure {
        /// The address given.
        listen: SocketAddr,
    },
    /// Workers could not reach it, or others could read along.
    #[error(
        "worker URL {url}: expected https:// addresses with --tls-cert and --tls-key, or http:// ones of this machine"
    )]
    WorkerUrl {
        /// The address given.
        url: String,
    },
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address given.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// A socket that cannot be made.
    #[error("socket {}: {reason}", .file.display())]
    Socket {
        /// Where.
        file: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A certificate or key that cannot be used.
    #[error("{}: {reason}", .file.display())]
    Tls {
        /// Which file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A small file of the state folder cannot be read or written.
    #[error("{}: {reason}", .file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// Another scheduler writes the second copy of the journal.
    #[error("another scheduler has taken over the journal")]
    CopySuperseded,
    /// The user's token is none.
    #[error("{} holds no token: expected 32 or more characters; delete it, and another one is made", .file.display())]
    NoToken {
        /// Which file.
        file: PathBuf,
    },
    /// The user's token cannot be made known.
    #[error("the token of the state folder cannot be used: {0}")]
    Token(Refused),
    /// Somebody else gives orders now.
    #[error("{epoch} of this scheduler is over: one of {by} has taken over, and this one does nothing any more")]
    Superseded {
        /// Of this one.
        epoch: Epoch,
        /// Of the other one.
        by: Epoch,
    },
    /// A test ended it.
    #[doc(hidden)]
    #[error("halted")]
    Halted,
}

/// Why something that was asked for is not done.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// It makes no sense to the engine.
    #[error(transparent)]
    Engine(#[from] Refusal),
    /// A job that cannot be run.
    #[error(transparent)]
    Request(#[from] SpecError),
    /// It waits for the success of a job that did not succeed.
    #[error("depends_on {}: it is {phase}; expected a job that is not over or has succeeded, or {}:end", .job.0, .job.0)]
    Dependency {
        /// The job to be waited for.
        job: JobId,
        /// How it ended.
        phase: String,
    },
    /// A question about the future that has no answer.
    #[error(transparent)]
    WhatIf(#[from] WhatIfError),
    /// Words of a group that is not current.
    #[error("generation {generation} of {job} is not listened to: the current one is {current}")]
    Stale {
        /// Which job.
        job: JobId,
        /// The generation that spoke.
        generation: u64,
        /// The newest one; 0 for none.
        current: u64,
    },
    /// A place where nobody can be reached.
    #[error("rendezvous {address:?}, port {port}: expected a host name or address and a port above 0")]
    Rendezvous {
        /// The host given.
        address: String,
        /// The port given.
        port: u16,
    },
    /// No node of that name is up.
    #[error("{name} is no node that is up")]
    UnknownNode {
        /// The name given.
        name: String,
    },
    /// A label that no token can have.
    #[error("label {label:?}: expected 1 to 64 letters, digits, -, _ or full stops")]
    Label {
        /// The label given.
        label: String,
    },
    /// A token has that label.
    #[error("{label} has a token already: revoke that one, or give another name")]
    LabelUsed {
        /// The label given.
        label: String,
    },
    /// No token has that label.
    #[error("nobody called {label} has a token")]
    UnknownLabel {
        /// The label given.
        label: String,
    },
    /// The token without which nobody would get in.
    #[error("the token {label} is the one in the state folder, and cannot be deleted")]
    LocalToken {
        /// Its label.
        label: String,
    },
    /// A time for which no token is good.
    #[error("expires_s {expires_s}: expected 1 second to 3650 days")]
    TokenLifetime {
        /// The seconds given.
        expires_s: u64,
    },
    /// More tokens than anybody needs.
    #[error("{limit} tokens exist already: delete some")]
    TooManyTokens {
        /// How many there may be.
        limit: usize,
    },
    /// The system gives no random numbers, and there are no tokens without.
    #[error("the system gives no random numbers: try again")]
    NoRandom,
    /// Whatever made the answer panicked.
    #[error("this could not be answered because of an error of the scheduler, which runs on: its log says more")]
    Broken,
    /// The journal does not let itself be read.
    #[error("{0}")]
    Unreadable(String),
    /// It could not be made durable. Asking again later may work.
    #[error("the disk of the state folder is full: free some space and try again")]
    Full,
    /// It is durable here, and not yet where the copy of the journal is. Asking again later may work.
    #[error("the copy of the journal cannot be written now: try again")]
    NotCopied,
    /// Too many wait for an answer. Asking again later may work.
    #[error("{limit} requests wait already: try again")]
    Busy {
        /// How many may.
        limit: usize,
    },
    /// The scheduler has ended, or does so before it can answer. What was asked for may have been done.
    #[error("the scheduler is shutting down")]
    Away,
}

impl Refused {
    /// Whether a job that ended in a phase did so as another that depends on it needs.
    pub(crate) fn unless_met(dependency: Dependency, phase: &str) -> Result<(), Self> {
        match dependency.after {
            After::Success if phase != Phase::Succeeded.word() => {
                Err(Self::Dependency { job: dependency.job, phase: phase.to_owned() })
            }
            After::Success | After::End => Ok(()),
        }
    }
}
