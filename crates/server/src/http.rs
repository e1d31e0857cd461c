//! The REST interface: what comes in is checked, handed to the scheduler, and answered in the words of `pollux-api`.
//!
//! ```text
//!  socket ──> serve ──> gate: host, origin, token, rate ──> rights: who may do what ──> handler ──> Handle
//! ```
//!
//! [`app`] is all routes, and can be called without a socket. A handler takes a request apart, asks the [`crate::Handle`]
//! and converts the answer; it decides nothing. What is refused is told in one line.

mod allocation_turns;
mod allocations;
mod assets;
mod authenticator;
mod checkpoints;
mod cluster;
mod events;
mod extract;
mod failure;
mod feed;
mod gate;
mod hosts;
mod jobs;
mod listeners;
mod logs;
mod metrics;
mod nodes;
mod timeout_stream;
mod plan;
mod rates;
mod rights;
mod routes;
mod scope;
mod series;
mod serve;
mod state;
mod tail;
mod tls;
mod tokens;
mod unix_socket;
mod what_if;
mod workers;

pub(crate) use allocation_turns::take_turns;
pub use authenticator::{Authenticator, Identity, Unverified, Verification};
pub(crate) use checkpoints::prune_regularly;
pub use hosts::Hosts;
pub(crate) use listeners::Listeners;
pub use listeners::{AllocationSettings, HttpSettings, TlsFiles, Visibility};
pub use rights::{Need, RIGHTS};
pub use routes::{app, app_with, openapi};
pub(crate) use series::sample;
pub(crate) use serve::{serve, serve_socket};
pub use state::AppState;
pub use unix_socket::SocketFile;
pub(crate) use unix_socket::UnixSocket;
