use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a program cannot work under Pollux.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Some variables are there and others are not.
    #[error("{missing} is not set, but {present} is; expected both or neither")]
    HalfSet {
        /// One that is missing.
        missing: &'static str,
        /// One that is there.
        present: &'static str,
    },
    /// A variable that cannot be read.
    #[error("{name} is {value:?}; expected {accepted}")]
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
    /// The server's certificate is none that may be trusted.
    #[error(
        "{url} shows a certificate that cannot be trusted ({reason}); POLLUX_CA_FILE must name the authority of it"
    )]
    Untrusted {
        /// Where it is.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificates that cannot be used.
    #[error("POLLUX_CA_FILE is {:?} ({reason}); expected a PEM file with certificates", .file.display())]
    Authority {
        /// Which file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Signals cannot be caught.
    #[error("cannot listen for SIGTERM: {0}")]
    Signal(#[source] io::Error),
    /// Threads cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
