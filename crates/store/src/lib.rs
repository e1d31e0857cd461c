//! What a cluster has acknowledged, on disk: it survives a kill at any instruction.
//!
//! ```text
//!  Batch { records, jobs, replicas, … } ──> Store::commit ──> one durable transaction
//!                                                                │
//!  Store::open ──> Recovered { snapshot, records after it, … } <─┘      Reader: ended jobs and history, beside it
//! ```
//!
//! The crate knows sequence numbers, snapshots, and the formats in which rows are or were written. It decides nothing:
//! whatever the engine and the server keep becomes text here, and what any version wrote becomes what they use today.
//! [`Store`] is the main type; one process at a time has it.

#![warn(clippy::let_underscore_must_use)]

mod error;
mod record;
mod v2;
mod v1;
mod format;
mod schema;
mod store;
mod batch_text;
mod recovery;
mod reader;

pub use error::StoreError;
pub use reader::{EndedQuery, Reader};
pub use record::{
    Batch, EndedJob, HistoryEntry, HistoryLine, JobRow, JobSummary, Record, ReplicaRow, Role, SubmittedJob,
    TokenHolder, TokenRow, UnreadableEvent, UserToken,
};
pub use recovery::{Recovered, Snapshot};
pub use store::Store;
pub use v2::{GroupRow, HistoryEvent, NodeRow, ReplicaExit};
