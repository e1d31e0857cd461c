//! The REST interface over a scheduler whose backend plays processes.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod calls;
mod jobs;
// Shared with the tests of the scheduler, which use all of it.
#[allow(dead_code, unreachable_pub)]
#[path = "../service/world.rs"]
mod world;
