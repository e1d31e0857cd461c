//! A real Slurm on this machine: `munged`, `slurmctld` and several `slurmd`, each a node with an address of its own, and the
//! daemon that asks it for nodes. For tests and a demonstration; nothing here is part of the product.
//!
//! It needs Debian's packages `slurmctld`, `slurmd`, `slurm-client` and `munge`, and root; where they are missing, that is said.
//! The binaries are those of the same build.

// Whatever goes wrong here is a test that fails, or the end of a demonstration.
#![allow(clippy::unwrap_used)]

mod bed;
mod site;

pub use bed::{Bed, eventually, ports};
pub use site::{Site, program};
