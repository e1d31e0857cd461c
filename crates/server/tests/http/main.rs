//! The REST interface over a scheduler whose backend plays processes.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod access;
mod bad_input;
mod calls;
mod dashboard;
mod jobs;
mod monitoring;
mod mutations;
mod openapi;
mod panics;
mod rights;
mod socket;
mod streams;
mod viewers;
mod what_if;
// Shared with the tests of the scheduler, which use the rest of it.
#[allow(dead_code)]
#[path = "../service/world.rs"]
mod world;
