use pollux_model::ModelError;
use thiserror::Error;

use super::ApplicationName;
use crate::TableError;

/// Why a description of an application cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PhysicsError {
    /// A trace file is missing or malformed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A trace folder cannot be listed.
    #[error("{folder}: {source}")]
    Folder {
        /// Path as given.
        folder: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A trace folder without training statistics.
    #[error("{folder}: no validation-<batch>.csv; expected one file or more per application")]
    NoValidation {
        /// Path as given.
        folder: String,
    },
    /// A run that was recorded for too short a time.
    #[error("{file}: {rows} epochs; expected {epochs} or more for {application}")]
    FewEpochs {
        /// Path as given.
        file: String,
        /// Rows read.
        rows: usize,
        /// Epochs of a whole run.
        epochs: usize,
        /// Whose run.
        application: ApplicationName,
    },
    /// Shapes that span no volume, so that nothing lies between them.
    #[error("{file}: {shapes} measured shapes; expected shapes that differ in nodes, replicas and local batch")]
    FlatShapes {
        /// Path as given.
        file: String,
        /// How many there are.
        shapes: usize,
    },
    /// Limits or statistics that no job can have.
    #[error("{application}: {source}")]
    Model {
        /// Whose.
        application: ApplicationName,
        /// What the model refuses.
        source: ModelError,
    },
    /// A profile that is no TOML or lacks a field.
    #[error("{application}: {reason}; expected the fields of the profiles shipped with the simulator")]
    Profile {
        /// Whose.
        application: ApplicationName,
        /// What the reader stumbled over.
        reason: String,
    },
    /// A profile value out of its range.
    #[error("{application}: {name} {value}; expected {accepted}")]
    ProfileValue {
        /// Whose.
        application: ApplicationName,
        /// Which field.
        name: &'static str,
        /// What it said.
        value: f64,
        /// What would be accepted.
        accepted: &'static str,
    },
}
