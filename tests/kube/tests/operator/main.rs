//! The operator on a real cluster, installed by its chart, with real trainings: it is killed, paused and cut off, and everything
//! around it breaks. After each fault nothing is lost, no GPU was given twice, and the status says why.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod training;
mod world;

mod certificates;
mod control_plane;
mod growth;
mod leaders;
mod nodes;
mod pods;
mod pods_per_node;
