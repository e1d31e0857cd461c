use std::io;
use std::path::PathBuf;

use pollux_policy::UnknownPolicy;
use pollux_sim::{ClusterError, PhysicsError, SimulationError, WorkloadError};
use thiserror::Error;

/// Why nothing was simulated. Reasons are part of the message, hence no sources.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimError {
    /// No policy at all.
    #[error("no policy is given; expected one or more")]
    NoPolicy,
    /// A policy that does not exist.
    #[error("policy: {0}")]
    Policy(UnknownPolicy),
    /// A file of a policy's settings.
    #[error("{}: {reason}; expected policy = \"pollux\" (or another name) and settings of that policy", path.display())]
    PolicyFile {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The same thing twice.
    #[error("{option} {value} is given more than once; expected once")]
    Repeated {
        /// What kind of thing.
        option: &'static str,
        /// As given.
        value: String,
    },
    /// A cluster that makes no sense.
    #[error("cluster: {0}")]
    Cluster(ClusterError),
    /// Traces that are missing or malformed.
    #[error("traces: {0}")]
    Physics(PhysicsError),
    /// A folder of traces that is none.
    #[error("traces {}: {reason}; expected a folder with a folder for each application", path.display())]
    Traces {
        /// As given.
        path: PathBuf,
        /// Why it cannot be read.
        reason: io::Error,
    },
    /// A workload that is missing or malformed.
    #[error("{0}")]
    Workload(WorkloadError),
    /// A workload that cannot be opened.
    #[error("workload {}: {reason}; expected a CSV file", path.display())]
    WorkloadUnreadable {
        /// As given.
        path: PathBuf,
        /// Why it cannot be read.
        reason: io::Error,
    },
    /// A setting that cannot be simulated.
    #[error("{0}")]
    Setting(SimulationError),
    /// A job that cannot be simulated.
    #[error("{workload}: {reason}")]
    Job {
        /// Whose job.
        workload: String,
        /// What is wrong with it.
        reason: SimulationError,
    },
    /// A page that cannot be saved.
    #[error("report {}: {reason}; expected a folder that can be written", path.display())]
    ReportUnwritable {
        /// As given.
        path: PathBuf,
        /// Why it cannot be written.
        reason: io::Error,
    },
    /// A run that went wrong through no fault of the caller's.
    #[error("cannot simulate {workload} under {policy}: {reason}")]
    Run {
        /// What was simulated.
        workload: String,
        /// The policy's name.
        policy: &'static str,
        /// What went wrong.
        reason: SimulationError,
    },
    /// A machine without threads to spare.
    #[error("cannot start threads: {reason}")]
    Threads {
        /// What the system said.
        reason: String,
    },
}

impl SimError {
    /// Whether the caller can mend it by asking for something else.
    pub const fn is_mistake(&self) -> bool {
        !matches!(self, Self::Run { .. } | Self::Threads { .. })
    }
}
