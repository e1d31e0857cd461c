//! Runs the real scheduler with the real binary.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

#[path = "../binary/mod.rs"]
mod binary;

mod bad_input;
mod checkpoints;
mod daemon;
mod doctor;
mod gpus;
mod life;
mod logging;
mod surroundings;
mod users;
