//! A deterministic optimiser for any objective that is a sum over jobs.
//!
//! ```text
//!  Problem (per job: the value of every option) ──> relaxation ──> price of a GPU, upper bound
//!                                                      │
//!                        packing <── construct <───────┘
//!                           │
//!                        improve (free a few nodes, refill, keep what is better)
//! ```
//!
//! Where GPUs are of several kinds there is a price for each; every job gets the kind that it would choose at these,
//! each kind is packed as above by itself, and what came out is improved all together.
//!
//! A throughput model tells apart only replicas on one node from replicas over several, so a job has few options and
//! the problem is a multiple-choice knapsack with a packing on top. Nothing is random; ties go to the lower index.

mod prices;
mod problem;
mod relaxation;
mod buckets;
mod packing;
mod ceiling;
mod improve;
mod hulls;
mod mixed;
mod by_kind;
mod solve;

pub(crate) use problem::{JobOptions, Keep, Problem, ProblemNode};
pub(crate) use solve::{Solution, solve};
