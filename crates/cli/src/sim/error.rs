use std::io;
use std::path::PathBuf;

use pollux_policy::UnknownPolicy;
use pollux_sim::{ClusterError, PhysicsError, SimulationError, WorkloadError};
use thiserror::Error;

/// What the user has to change before a simulation can be run. Reasons are part of the message, hence no sources.
#[derive(Debug, Error)]
pub(crate) enum SimError {
    /// A policy that does not exist.
    #[error("--policy: {0}")]
    Policy(UnknownPolicy),
    /// A file of a policy's settings.
    #[error("{}: {reason}; accepted: policy = \"pollux\" (or another name) and settings of that policy", path.display())]
    PolicyFile {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The same thing twice.
    #[error("{option} {value} is given more than once; accepted is once")]
    Repeated { option: &'static str, value: String },
    /// A cluster that makes no sense.
    #[error("--cluster: {0}")]
    Cluster(ClusterError),
    /// Traces that are missing or malformed.
    #[error("--traces: {0}")]
    Physics(PhysicsError),
    /// A folder of traces that is none.
    #[error("--traces {}: {reason}; accepted is a folder with a folder for each application", path.display())]
    Traces { path: PathBuf, reason: io::Error },
    /// A workload that is missing or malformed.
    #[error("{0}")]
    Workload(WorkloadError),
    /// A workload that cannot be opened.
    #[error("--workload {}: {reason}; accepted is a CSV file", path.display())]
    WorkloadUnreadable { path: PathBuf, reason: io::Error },
    /// A setting that cannot be simulated.
    #[error("{0}")]
    Setting(SimulationError),
    /// A job that cannot be simulated.
    #[error("{workload}: {reason}")]
    Job { workload: String, reason: SimulationError },
    /// A page that cannot be saved.
    #[error("--report {}: {reason}; accepted is a folder that can be written", path.display())]
    ReportUnwritable { path: PathBuf, reason: io::Error },
}
