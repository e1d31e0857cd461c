//! Nodes from Slurm: queues of allocations that are asked for when jobs are worth it, and given back.
//!
//! ```text
//!  demand of the cluster ──> decision ──> Queues::turn ──> sbatch, squeue, scancel (bounded child processes)
//!                                             │                  └─ on each node: `pollux node --join`
//!                                             └──> allocations.json: written before Slurm is asked
//! ```
//!
//! An allocation is one Slurm job of one or more whole nodes' worth of agents. It has a name that no other has, which is in
//! the journal before `sbatch` is called: whatever becomes of the scheduler, a look by that name tells whether it was asked for.
//! The crate knows neither jobs nor nodes of the cluster; [`Queues`] is told what they are worth. It needs the commands of
//! Slurm where the scheduler runs, and nothing of Slurm's own beside them: no database, no REST interface, no administrator.

#![warn(clippy::let_underscore_must_use)]

mod arguments;
mod process;
mod states;
mod listing;
mod script;
mod slurm;
mod queue;
mod decision;
mod journal;
mod queues;
mod turn;

pub use arguments::ArgumentError;
pub use decision::Demand;
pub use process::CommandError;
pub use queue::{Allocation, Happening, Queue, SpecError, Stage};
pub use queues::{Machine, MachineNode, Place, Queues, QueuesError, Wish};
pub use slurm::Rehearsal;
pub use turn::{Orders, Turn};
