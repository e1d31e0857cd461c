//! Where replicas run: what every backend does, and the suite that says whether one does it.
//!
//! ```text
//!            adopt, start, stop, forget
//!  server ──────────────────────────────> Backend ──> processes, pods, steps
//!     ^                                      │
//!     └──────── Observation (late, twice, ───┘
//!               in any order, any thread)
//! ```
//!
//! A [`Backend`] starts and stops single replicas and tells what it sees of them and of the nodes. It knows nothing of
//! groups, ranks or generations, and never hears of goodput or fairness: who runs where is decided elsewhere. The
//! server may die at any instruction; replicas run on, and the next one takes them over by [`Backend::adopt`]. Should
//! two servers ever live at once, the one of the lower [`Epoch`] is refused.
//!
//! Whoever only reads has a handle of its own, beside the thread that gives orders: [`LogReader`] for what replicas
//! write, [`Checkpoints`] for what jobs save.
//!
//! A new backend is a crate that implements the trait and passes [`conformance`]. One that needs no machine is [`memory`].

#![warn(clippy::let_underscore_must_use)]

mod epoch;
mod replica;
mod observation;
mod log;
mod checkpoint;
mod checkpoint_folder;
mod backend;
pub mod conformance;
pub mod memory;

pub use backend::Backend;
pub use checkpoint::{CheckpointAnswer, Checkpoints, SavedCheckpoints};
pub use checkpoint_folder::CheckpointFolder;
pub use epoch::Epoch;
pub use log::{LogAnswer, LogChunk, LogReader, LogStart};
pub use observation::{Exit, NodeEnd, NodeInfo, Observation, Observer};
pub use replica::{ReplicaId, ReplicaOrder};
