//! The scheduler with a backend that plays processes, killed wherever it could be.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod copying;
mod explanation;
mod kills;
mod life;
mod limits;
mod live;
mod nodes;
mod observations;
mod parity;
mod workers;
mod past;
// Shared with the tests of the REST interface, which use the rest of it.
#[allow(dead_code)]
mod world;
