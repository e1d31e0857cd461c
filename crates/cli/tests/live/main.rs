//! Runs the real binary against recorded answers of a scheduler.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

#[path = "../binary/mod.rs"]
mod binary;

mod bad_input;
mod commands;
mod recorded;
mod server;
mod submitting;
