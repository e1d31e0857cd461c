use std::io;

use thiserror::Error;

/// Why a program cannot work under Pollux.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Some variables are there and others are not.
    #[error("{missing} is not set, but {present} is; accepted are both or neither")]
    HalfSet {
        /// One that is missing.
        missing: &'static str,
        /// One that is there.
        present: &'static str,
    },
    /// A variable that cannot be read.
    #[error("{name} is {value:?}; accepted is {accepted}")]
    Variable {
        /// Which.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it could say.
        accepted: &'static str,
    },
    /// The scheduler does not know this worker.
    #[error(
        "{url} does not let job {job} in (status {status}); POLLUX_TOKEN and POLLUX_JOB_ID must be what it gave: start \
         the program with `pollux submit`, or unset POLLUX_JOB_ID to train alone"
    )]
    Refused {
        /// Where it is.
        url: String,
        /// What it said.
        status: u16,
        /// The job that the worker spoke for.
        job: String,
    },
    /// Nobody has answered.
    #[error("no server at {url} ({reason}); start one with `pollux up`, or unset POLLUX_JOB_ID to train alone")]
    NoServer {
        /// Where it should be.
        url: String,
        /// What came instead.
        reason: String,
    },
    /// Signals cannot be caught.
    #[error("cannot listen for SIGTERM: {0}")]
    Signal(#[source] io::Error),
    /// Threads cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
