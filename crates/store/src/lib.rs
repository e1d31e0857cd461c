//! What a cluster has acknowledged, on disk: it survives a kill at any instruction.
//!
//! ```text
//!  Batch { records, jobs, replicas, … } ──> Store::commit ──> one durable transaction
//!                                                                │
//!  Store::open ──> Recovered { snapshot, records after it, … } <─┘      Reader: ended jobs and history, beside it
//! ```
//!
//! The crate knows sequence numbers, snapshots and schema versions. It decides nothing and interprets nothing: what
//! jobs asked for and how they ended are texts of its callers, of which it reads names alone, to search for them. [`Store`] is the main type; one process at a time has it.

mod error;
mod record;
mod schema;
mod store;
mod recovery;
mod reader;

pub use error::StoreError;
pub use reader::{EndedQuery, Reader};
pub use record::{Batch, EndedJob, HistoryEntry, JobRow, Record, ReplicaRow, SubmittedJob, TokenRow};
pub use recovery::{Recovered, Snapshot};
pub use store::Store;
