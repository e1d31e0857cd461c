use std::io;

use pollux_model::Shape;
use thiserror::Error;

use super::records::RecordError;

/// How much of a value or a header a message repeats.
const QUOTED_CHARS_MAX: usize = 80;

/// Why files of measurements were refused.
#[derive(Debug, Error)]
pub enum MeasurementError {
    /// The file cannot be opened or read.
    #[error("{file}: {reason}; expected readable CSV files, or - for stdin")]
    Unreadable {
        /// What messages call it.
        file: String,
        /// What is wrong.
        reason: io::Error,
    },
    /// A folder was given.
    #[error("{file}: is a directory; expected CSV files, or - for stdin")]
    Directory {
        /// What messages call it.
        file: String,
    },
    /// There is nothing in the file.
    #[error("{file}: is empty; expected a header followed by rows")]
    Empty {
        /// What messages call it.
        file: String,
    },
    /// There is a header but nothing below it.
    #[error("{file}: has no rows below its header; expected one row or more")]
    NoRows {
        /// What messages call it.
        file: String,
    },
    /// The header does not name the columns.
    #[error("{file}:{line}: {problem}")]
    Header {
        /// What messages call it.
        file: String,
        /// Counted from 1.
        line: u64,
        /// What is wrong there.
        problem: HeaderProblem,
    },
    /// A row is not a measured step.
    #[error("{file}:{line}: {problem}")]
    Row {
        /// What messages call it.
        file: String,
        /// Counted from 1.
        line: u64,
        /// What is wrong there.
        problem: RowProblem,
    },
}

/// What is wrong with a header.
#[derive(Debug, Error)]
pub enum HeaderProblem {
    /// The line itself cannot be split.
    #[error(transparent)]
    Record(RecordError),
    /// It names neither form.
    #[error(
        "header {header} is unknown; expected the columns placement (or num_nodes and num_replicas), local_bsz, \
         step_time, sync_time"
    )]
    Unknown {
        /// As read.
        header: String,
    },
    /// It lacks a column of its form.
    #[error(
        "header {header} has no column {name}; expected the columns placement (or num_nodes and num_replicas), \
         local_bsz, step_time, sync_time"
    )]
    Missing {
        /// The column.
        name: &'static str,
        /// As read.
        header: String,
    },
    /// It names a column twice.
    #[error("header has the column {name} more than once; expected once")]
    Repeated {
        /// The column.
        name: &'static str,
    },
}

impl HeaderProblem {
    pub(super) fn unknown(header: &[u8]) -> Self {
        Self::Unknown { header: quoted(header) }
    }

    pub(super) fn missing(name: &'static str, header: &[u8]) -> Self {
        Self::Missing { name, header: quoted(header) }
    }
}

/// What is wrong with a row.
#[derive(Debug, Error)]
pub enum RowProblem {
    /// The line itself cannot be split.
    #[error(transparent)]
    Record(RecordError),
    /// More or fewer fields than the header names.
    #[error("the row has {found} fields; expected {expected}, as many as the header has")]
    FieldCount {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A field that cannot be what its column holds.
    #[error("column {column} is {value}; expected {accepted}")]
    Value {
        /// Which one.
        column: &'static str,
        /// As read.
        value: String,
        /// What would do.
        accepted: &'static str,
    },
    /// A field that is not a whole number within its bounds.
    #[error("column {column} is {value}; expected whole numbers from 1 to {max}")]
    Whole {
        /// Which one.
        column: &'static str,
        /// As read.
        value: String,
        /// The most that are accepted.
        max: u32,
    },
    /// A synchronisation that leaves no time to compute.
    #[error("column sync_time is {value} where step_time is {step_s}; expected seconds from 0 to below step_time")]
    SyncTime {
        /// As read.
        value: String,
        /// In this row.
        step_s: f64,
    },
    /// A node without a replica.
    #[error("column num_nodes is \"{nodes}\" where num_replicas is {replicas}; expected 1 to {replicas} nodes")]
    NodesAboveReplicas {
        /// As read.
        nodes: u32,
        /// As read.
        replicas: u32,
    },
    /// A placement beside counts of another shape.
    #[error(
        "column placement is {placement} where num_nodes is {} and num_replicas is {}; expected the placement of \
         these counts",
        counted.nodes(),
        counted.replicas()
    )]
    Disagreement {
        /// As read.
        placement: String,
        /// By the other columns.
        counted: Shape,
    },
    /// The same configuration with times that cannot belong to one job.
    #[error(
        "column step_time is \"{step_s}\" where the same configuration also took {other_s} s; expected times within \
         a factor of 100"
    )]
    Contradiction {
        /// In this row.
        step_s: f64,
        /// In another row.
        other_s: f64,
    },
    /// More different configurations than are kept.
    #[error("the row is a new configuration after {max} others; expected at most {max} different ones")]
    TooManyCells {
        /// The most that are accepted.
        max: usize,
    },
}

impl RowProblem {
    pub(super) fn value(column: &'static str, field: &[u8], accepted: &'static str) -> Self {
        Self::Value { column, value: quoted(field), accepted }
    }

    pub(super) fn whole(column: &'static str, field: &[u8], max: u32) -> Self {
        Self::Whole { column, value: quoted(field), max }
    }

    pub(super) fn disagreement(placement: &[u8], counted: Shape) -> Self {
        Self::Disagreement { placement: quoted(placement), counted }
    }

    pub(super) fn sync_time(field: &[u8], step_s: f64) -> Self {
        Self::SyncTime { value: quoted(field), step_s }
    }
}

/// In quotes, on one line and short, whatever the bytes are.
fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}
