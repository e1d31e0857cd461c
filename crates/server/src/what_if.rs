//! Questions about a future: what comes in becomes a question for the simulator, what it says becomes an answer.

mod answer;
mod outlook;
mod question;

use thiserror::Error;

pub use outlook::{Foreseen, Outlook};
pub(crate) use question::{JobTemplate, Question, question};

/// Why a question about the future has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// More changes than anybody would make at once.
    #[error("{changes} changes: expected {limit} or fewer")]
    TooMany {
        /// How many were given.
        changes: usize,
        /// How many may be.
        limit: usize,
    },
    /// Nodes that cannot be added.
    #[error("{count} nodes of {gpus} GPUs: expected 1 to {limit} of 1 to {limit}")]
    Nodes {
        /// How many.
        count: u32,
        /// GPUs of each.
        gpus: u32,
        /// How many may be, of each.
        limit: u32,
    },
    /// A type of GPU that no node has and no job was measured on: nobody knows how fast jobs would be there.
    #[error("gpu_type {gpu_type:?}: expected one that nodes have or jobs were measured on: {known}")]
    GpuType {
        /// The type given.
        gpu_type: String,
        /// Those known, divided by commas.
        known: String,
    },
    /// No policy has that name.
    #[error(transparent)]
    Policy(#[from] pollux_policy::UnknownPolicy),
    /// No application has that name.
    #[error(transparent)]
    Application(#[from] pollux_sim::UnknownApplication),
    /// A job that nobody can train like.
    #[error("job {job} has not reported any training: expected one that has")]
    Unlike {
        /// Which.
        job: u64,
    },
    /// What the simulator refuses.
    #[error("{0}")]
    Unforeseeable(String),
    /// Another question is being answered. Asking again later may work.
    #[error("another what-if is being answered: try again")]
    Busy,
    /// The simulator broke, which is our fault.
    #[error("the simulation of this cluster broke: the server itself is well")]
    Broken,
}
