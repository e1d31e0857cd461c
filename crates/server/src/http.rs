//! The REST interface: what comes in is checked, handed to the scheduler, and answered in the words of `pollux-api`.
//!
//! ```text
//!  socket ──> serve ──> gate: host, origin, token, rate ──> scope: user, viewer, or the job itself ──> handler ──> Handle
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
mod routes;
mod scope;
mod series;
mod serve;
mod state;
mod tail;
mod tls;
mod tokens;
mod what_if;
mod workers;

pub(crate) use allocation_turns::take_turns;
pub use authenticator::{Authenticator, Identity, Unverified, Verification};
pub(crate) use checkpoints::prune_regularly;
pub use hosts::Hosts;
pub(crate) use listeners::Listeners;
pub use listeners::{AllocationSettings, HttpSettings, TlsFiles};
pub use routes::{app, app_with, openapi};
pub(crate) use series::sample;
pub(crate) use serve::serve;
pub use state::AppState;
