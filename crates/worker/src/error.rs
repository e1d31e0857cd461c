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
    /// Signals cannot be caught.
    #[error("cannot listen for SIGTERM: {0}")]
    Signal(#[source] io::Error),
    /// Threads cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
