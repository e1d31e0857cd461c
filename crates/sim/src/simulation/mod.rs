//! A workload, a cluster and a policy in virtual time: the world around the engine.

mod fairness;
mod job;
mod outcome;
mod queue;
mod run;
mod settings;

pub use outcome::{ClusterSample, JobOutcome, JobSample, RunOutcome, Summary};
pub use run::{SimulationError, simulate};
pub use settings::{Failures, SettingError, SimulationSettings};
