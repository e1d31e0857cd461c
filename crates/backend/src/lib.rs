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
//! server may die at any instruction; replicas run on, and the next one takes them over by [`Backend::adopt`].
//!
//! A new backend is a crate that implements the trait and passes [`conformance`].

mod replica;
mod observation;
mod backend;
pub mod conformance;

pub use backend::Backend;
pub use observation::{Exit, Observation, Observer};
pub use replica::{ReplicaId, ReplicaOrder};
