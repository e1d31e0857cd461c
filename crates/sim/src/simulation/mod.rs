//! A workload, a cluster and a policy in virtual time: the world around the engine.

mod autoscaling;
mod brain;
mod commands;
mod disturbances;
mod error;
mod fairness;
mod forecast;
mod halving;
mod job;
mod lifetimes;
mod oracle;
mod outcome;
mod queue;
mod recording;
mod requests;
mod run;
mod script;
mod settings;
mod sweep;
mod trainee;

pub use error::SimulationError;
pub use forecast::{
    Change, Cut, Forecast, ForecastError, JobForecast, LiveCluster, Newcomer, Training, Unforeseen, forecast,
};
pub use outcome::{ClusterSample, JobOutcome, JobSample, RunOutcome, Summary};
pub use run::simulate;
pub use script::{PlannedRound, PlannedShare, Script, ScriptOutcome, ScriptedEvent, ScriptedJob, ScriptedLife, play};
pub use settings::{Autoscale, Failures, SettingError, SimulationSettings, TuneFor};
pub use sweep::{RungOutcome, Sweep, SweepOutcome, TrialOutcome, simulate_sweep};
pub use trainee::Trainee;
