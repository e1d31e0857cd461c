//! The live scheduler: one loop that drives engine, journal, fleet and backend, and may be killed at any instruction.
//!
//! ```text
//!  Handle ──Message──> Scheduler (one thread) ── 1. Store::commit: what was asked for and seen
//!    ^                    │    ^                 2. Engine::step, then a round if one is due
//!    │                    │    └─Observation──┐  3. Fleet: commands become orders for single replicas
//!    └─────answers────────┘                   │  4. Store::commit: the plan, replicas, groups
//!   Assignments: assignments, for workers           └─ 5. Backend::start, stop; answers; assignments
//! ```
//!
//! Nothing is acknowledged or done before it is durable, and what is durable is done again after a restart unless it is
//! known to have been done. The crate decides nothing about who runs where. [`Server`] starts it, [`Handle`] is how
//! everybody else speaks to it.

mod settings;
mod error;
mod clock;
mod journal_copy;
mod metrics;
mod event_log;
mod tokens;
mod files;
mod assignments;
mod reader_pool;
mod fleet;
mod node_registry;
mod orders;
mod retention;
mod history_event;
mod cluster;
pub mod views;
mod explanation;
mod series;
mod what_if;
mod demand;
mod handle;
mod scheduler;
mod recovery;
mod server;
pub mod http;
mod daemon;

pub use clock::ManualClock;
pub use cluster::Cluster;
pub use daemon::{Daemon, GROUP_SECRET_FILE, Stopper};
pub use error::{Refused, ServerError};
pub use explanation::{explain, explain_ended};
pub use handle::{Action, Answer, Handle, NodeAction};
pub(crate) use journal_copy::Copying;
pub use journal_copy::{CopyError, JournalCopy};
pub use metrics::Metrics;
pub use retention::Retention;
pub use series::{Sample, Series};
pub use server::Server;
pub use settings::ServerSettings;
pub use tokens::{Caller, User, random as random_token};
pub use what_if::{Foreseen, Outlook, WhatIfError};

/// Plain data of ours as it is kept.
fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("our own records have text for keys")
}
