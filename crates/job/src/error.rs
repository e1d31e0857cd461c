use std::path::PathBuf;

use thiserror::Error;

/// Why no cluster could ever run a job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SpecError {
    /// A name that cannot be shown or stored safely.
    #[error(
        "a name of {bytes} bytes: expected 1 to {bytes_max}, no control characters or slashes, no leading full stop"
    )]
    Name {
        /// Its length.
        bytes: usize,
        /// Longest accepted.
        bytes_max: usize,
    },
    /// Bounds of replicas that contradict each other, or absurd ones.
    #[error(
        "replicas_min {min}, replicas {replicas}, replicas_max {max}: expected 1 <= min <= replicas <= max <= {limit}"
    )]
    Replicas {
        /// Fewest.
        min: u32,
        /// To begin with.
        replicas: u32,
        /// Most.
        max: u32,
        /// Most that any job may have.
        limit: u32,
    },
    /// More GPUs for a replica than a node has, or none.
    #[error("gpus_per_replica {gpus}: expected 1 to {limit}")]
    GpusPerReplica {
        /// The number given.
        gpus: u32,
        /// Most accepted.
        limit: u32,
    },
    /// A replica that needs no CPU needs not say so.
    #[error("{resource} 0: expected 1 or more, or no {resource} at all")]
    NoAmount {
        /// Which field.
        resource: String,
    },
    /// A type of GPU without a name, or too many of them.
    #[error("gpu_types: expected up to {limit} names of 1 to {bytes_max} bytes without control characters")]
    GpuTypes {
        /// How many there may be.
        limit: usize,
        /// Longest name.
        bytes_max: usize,
    },
    /// More retries than help.
    #[error("retries {retries}: expected 0 to {limit}")]
    Retries {
        /// The number given.
        retries: u32,
        /// Most accepted.
        limit: u32,
    },
    /// What it trains has no name, too long a one, or one that cannot be printed.
    #[error("application of {bytes} bytes: expected 1 to {bytes_max} bytes, without control characters")]
    Application {
        /// Length of the name given.
        bytes: usize,
        /// Longest accepted.
        bytes_max: usize,
    },
    /// A batch was fixed, but of nothing.
    #[error("batch_size 0: expected 1 or more samples, or no batch")]
    NoBatch,
    /// Work was declared, but none.
    #[error("declared work of 0: expected 1 or more epochs or steps, or no declaration")]
    NoWork,
    /// It would be over before it starts.
    #[error("time_limit {seconds} s: expected 1 s to {limit} s")]
    TimeLimit {
        /// The limit given.
        seconds: u64,
        /// Longest accepted.
        limit: u64,
    },
    /// More dependencies than anybody has.
    #[error("{count} jobs to wait for: expected {limit} or fewer")]
    Dependencies {
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Nothing to run.
    #[error("the command is empty: expected a program and its arguments")]
    NoCommand,
    /// A text that no program can be given.
    #[error("a NUL byte in the command, the working directory or a variable: expected text without")]
    Nul,
    /// Nobody knows where that would be.
    #[error("working_dir {}: expected an absolute path", .0.display())]
    WorkingDir(PathBuf),
    /// A name that cannot be one.
    #[error("variable {0:?}: expected a name without =")]
    Variable(String),
    /// What would be lost when the scheduler sets its own.
    #[error("variable {0:?} is set by Pollux for each replica: expected another name")]
    OwnVariable(String),
    /// Which of the two would count?
    #[error("variable {0:?} is both in env and in secrets: expected it in one of them")]
    VariableTwice(String),
    /// More than a system can start.
    #[error("a command and variables of {bytes} bytes: expected {limit} or fewer")]
    TooLong {
        /// Their length.
        bytes: usize,
        /// Longest accepted.
        limit: usize,
    },
}
