//! What a training program links to be scheduled by Pollux: it hears of assignments and of the wish to stop, and tells
//! what its agent has learned.
//!
//! ```text
//!  training loop ── report, ready ──> Worker ── HTTP, in the background ──> server
//!                <── assignment, orders ──
//! ```
//!
//! No call on a [`Worker`] waits for the network, and no failure reaches a training that has begun: while the scheduler
//! is away the newest words are kept and told when it is back. Whoever wants to know whether anybody is there before the
//! first step asks [`Worker::answered`]. How ranks meet and move their state is the training program's own
//! affair; this crate knows nothing of gradients or processes.
//!
//! ```no_run
//! use pollux_worker::{Orders, Worker};
//!
//! // `None` where the program was started by hand.
//! let worker = Worker::from_env()?;
//! for _step in 0..1000 {
//!     // ... train one step ...
//!     if let Some(worker) = &worker {
//!         match worker.orders() {
//!             Orders::Train => {}
//!             Orders::Stop | Orders::Leave => break, // save first
//!         }
//!         if let Some(assignment) = worker.assignment() {
//!             println!("newest generation: {}", assignment.generation);
//!         }
//!     }
//! }
//! # Ok::<(), pollux_worker::WorkerError>(())
//! ```

mod environment;
mod worker;
mod mailbox;
mod client;
mod backoff;
mod termination;
mod error;

pub use environment::{Connection, Ranks, Token};
pub use error::WorkerError;
pub use pollux_api::{AssignedReplica, Assignment, AssignmentState, Endpoint, Rendezvous};
pub use pollux_model::{BatchMode, GpuTypeName};
pub use termination::Termination;
pub use worker::{Orders, Worker};
