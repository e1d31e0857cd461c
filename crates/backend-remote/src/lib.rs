//! Replicas on machines that join the scheduler by themselves.
//!
//! ```text
//!  scheduler's machine                                        a machine that has joined
//!  RemoteBackend ──> Nodes (members, routes) <── one ──> Agent ──> LocalBackend ──> shims ──> workers
//!       │               └─ nodes.json         connection   (epoch, replicas/, node.json in a folder of its own)
//!       └──> LocalBackend: the scheduler's own slots
//! ```
//!
//! An [`Agent`] keeps replicas of its machine by the same [`LocalBackend`] that a scheduler has for its own, and opens one
//! connection to the scheduler, outward, again and again. Nothing is queued for it on a disk: whoever connects says
//! which replicas it has, is told which of them are known, and observes each again, so that whatever was lost on the
//! way is told anew. Replicas outlive the agent, the connection and the scheduler.
//!
//! [`Nodes`] knows the machines, lets them in and routes; [`RemoteBackend`] is the scheduler's side of it. A machine without a
//! connection is unreachable and frees nothing; only [`Nodes::remove`] makes it gone. The crate decides nothing about who runs
//! where.
//!
//! [`LocalBackend`]: pollux_backend_local::LocalBackend

#![warn(clippy::let_underscore_must_use)]

pub mod protocol;
mod saved;
mod members;
mod routes;
mod nodes;
mod session;
mod backend;
mod agent;

pub use agent::{Agent, AgentDrainer, AgentEnd, AgentError, AgentSettings, AgentStopper, Lifetime, Scheduler};
pub use backend::RemoteBackend;
pub use members::NodeCaller;
pub use nodes::{Doorway, MachineView, Nodes, NodesError, Removal};
