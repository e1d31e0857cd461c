//! The real daemon with real workers, seen from outside: commands, processes, files and the REST interface.
//!
//! The binaries are those of the same build: `cargo test --workspace` makes them first.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod daemon;
mod faults;
mod kills;
mod machines;
mod nodes;
mod partitions;
mod processes;
mod upgrade;
mod workers;
