//! Training jobs as resources of a Kubernetes cluster: `pollux operator`.
//!
//! ```text
//!  PolluxJob (custom resource) ──> Controller ──submit, pause, cancel──> Daemon (the same as of `pollux up`)
//!       ^                              │                                    │            │
//!       └── status, conditions, Events ┘          config maps (journal) <───┘            └──> KubeBackend: pods
//! ```
//!
//! Kubernetes holds everything: a job is its resource, and what the scheduler writes down is copied into config maps before
//! anything is done about it. The disk of the operator is a cache, which is made anew at every start. Who gets which GPUs is
//! decided by the same engine and policies as elsewhere. [`Operator`] is the main type.

mod error;
mod resource;
mod spec;
mod status;
mod journal;
mod salvage;
mod held;
mod certificates;
mod term;
mod group_secret;
mod leader;
mod taints;
mod cordons;
mod token_review;
mod figures;
mod forecast;
mod event_writer;
mod controller;
mod operator;

pub use error::OperatorError;
pub use operator::{Operator, OperatorSettings, Stop};
pub use resource::{Flexibility, PodsPer, PolluxJob, PolluxJobSpec, PolluxJobStatus, Work, definition};
