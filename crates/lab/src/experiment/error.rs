use std::io;
use std::path::PathBuf;

use pollux_sim::{ClusterError, PhysicsError, WorkloadError};
use thiserror::Error;

use crate::plot::DrawError;
use crate::sim::SimError;

/// Why an experiment was not run. Reasons are part of the message, hence no sources.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// No file.
    #[error("{}: {reason}; expected a folder with an experiment.toml", path.display())]
    Unreadable {
        /// As given, or found there.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A line of it that cannot be read.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// As given, or found there.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A whole that makes no sense.
    #[error("{}: {reason}", path.display())]
    Sense {
        /// As given, or found there.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Settings of a row's policy.
    #[error("row {row:?}: {reason}")]
    Policy {
        /// Its label.
        row: String,
        /// What is wrong.
        reason: String,
    },
    /// An axis that is no setting of the world, nor of a row's policy.
    #[error(
        "axis setting {setting:?}: row {row:?} has none; expected load, scale, interval_s, restart_delay_s, interference, or a \
         setting of every row's policy"
    )]
    Axis {
        /// As written.
        setting: String,
        /// Its label.
        row: String,
    },
    /// A cluster that makes no sense.
    #[error("cluster: {0}")]
    Cluster(ClusterError),
    /// A folder without recorded data.
    #[error("data {}: no folder {part}; expected a folder that has one, or no data at all", path.display())]
    NoData {
        /// As given, or found there.
        path: PathBuf,
        /// What is missing there.
        part: &'static str,
    },
    /// Recorded data that is malformed.
    #[error("{0}")]
    Physics(PhysicsError),
    /// A workload that is missing or malformed.
    #[error("{0}")]
    Workload(WorkloadError),
    /// A job that a plot asks for.
    #[error("plot of job {job:?}: no such job in {workload}; expected the name of one")]
    Job {
        /// As written.
        job: String,
        /// Where it was looked for.
        workload: String,
    },
    /// Results that cannot be saved.
    #[error("out {}: {reason}; expected a folder that can be written", path.display())]
    Unwritable {
        /// As given, or found there.
        path: PathBuf,
        /// What is wrong.
        reason: io::Error,
    },
    /// A simulation that was refused or went wrong.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A plot that went wrong.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

impl ExperimentError {
    /// Whether the caller can mend it by asking for something else.
    pub const fn is_mistake(&self) -> bool {
        match self {
            Self::Sim(error) => error.is_mistake(),
            Self::Draw(_) => false,
            Self::Unreadable { .. }
            | Self::Line { .. }
            | Self::Sense { .. }
            | Self::Policy { .. }
            | Self::Axis { .. }
            | Self::Cluster(_)
            | Self::NoData { .. }
            | Self::Physics(_)
            | Self::Workload(_)
            | Self::Job { .. }
            | Self::Unwritable { .. } => true,
        }
    }

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
            | Self::Unwritable { .. }
            | Self::Sim(_)
            | Self::Draw(_) => self,
        }
    }
}
