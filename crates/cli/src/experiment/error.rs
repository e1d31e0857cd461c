use std::io;
use std::path::PathBuf;

use pollux_sim::{ClusterError, PhysicsError, WorkloadError};
use thiserror::Error;

/// What the user has to change before an experiment can be run. Reasons are part of the message, hence no sources.
#[derive(Debug, Error)]
pub(crate) enum ExperimentError {
    /// No file.
    #[error("{}: {reason}; accepted is a folder with an experiment.toml", path.display())]
    Unreadable { path: PathBuf, reason: String },
    /// A line of it that cannot be read.
    #[error("{}:{line}: {reason}", path.display())]
    Line { path: PathBuf, line: usize, reason: String },
    /// A whole that makes no sense.
    #[error("{}: {reason}", path.display())]
    Sense { path: PathBuf, reason: String },
    /// Settings of a row's policy.
    #[error("row {row:?}: {reason}")]
    Policy { row: String, reason: String },
    /// An axis that is no setting of the world, nor of a row's policy.
    #[error(
        "axis setting {setting:?}: row {row:?} has none; accepted are load, interval_s, restart_delay_s, interference, or a \
         setting of every row's policy"
    )]
    Axis { setting: String, row: String },
    /// A cluster that makes no sense.
    #[error("cluster: {0}")]
    Cluster(ClusterError),
    /// A folder without recorded data.
    #[error("--data {}: no folder osdi21; accepted is a folder that has one, or no --data at all", path.display())]
    NoData { path: PathBuf },
    /// Recorded data that is malformed.
    #[error("{0}")]
    Physics(PhysicsError),
    /// A workload that is missing or malformed.
    #[error("{0}")]
    Workload(WorkloadError),
    /// A job that a plot asks for.
    #[error("plot of job {job:?}: no such job in {workload}; accepted is the name of one")]
    Job { job: String, workload: String },
    /// Results that cannot be saved.
    #[error("--out {}: {reason}; accepted is a folder that can be written", path.display())]
    Unwritable { path: PathBuf, reason: io::Error },
}

impl ExperimentError {
    /// What is wrong with what a file says, told with the file.
    pub(super) fn in_file(self, path: PathBuf) -> Self {
        match self {
            Self::Policy { .. } | Self::Axis { .. } | Self::Cluster(_) | Self::Workload(_) | Self::Job { .. } => {
                Self::Sense { path, reason: self.to_string() }
            }
            Self::Unreadable { .. }
            | Self::Line { .. }
            | Self::Sense { .. }
            | Self::NoData { .. }
            | Self::Physics(_)
            | Self::Unwritable { .. } => self,
        }
    }
}
