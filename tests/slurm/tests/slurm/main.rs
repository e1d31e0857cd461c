//! The real daemon asks a real Slurm for nodes: `slurmctld` and several `slurmd` of this machine, each a node with an address
//! of its own, and agents that Slurm starts there.
//!
//! It needs Debian's packages `slurmctld`, `slurmd`, `slurm-client` and `munge`, and root; where they are missing, each test says
//! that it is skipped. The binaries are those of the same build: `cargo test --workspace` makes them first.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod allocations;
mod faults;
