//! A workload, a cluster and a policy in virtual time: the world around the engine.

mod disturbances;
mod error;
mod fairness;
mod job;
mod oracle;
mod outcome;
mod queue;
mod recording;
mod run;
mod settings;

pub use error::SimulationError;
pub use outcome::{ClusterSample, JobOutcome, JobSample, RunOutcome, Summary};
pub use run::simulate;
pub use settings::{Failures, SettingError, SimulationSettings};
