use pollux_engine::{FailureReason, SettingsError};
use pollux_policy::JobId;
use thiserror::Error;

use crate::{ClusterError, PhysicsError, SimulationError};

/// What would become of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Live jobs in the order of submission, then newcomers in theirs.
    pub jobs: Vec<JobForecast>,
    /// Seconds that were simulated: until the last completion that is known, unless something cut it short.
    pub horizon_s: f64,
    /// Part of the GPUs that jobs hold in that time; nothing if there is no such time.
    pub gpu_utilisation: Option<f64>,
    /// What cut it short.
    pub cut: Option<Cut>,
}

/// When a job would be complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobForecast {
    /// Which; newcomers have the numbers that follow.
    pub id: JobId,
    /// Seconds from now.
    pub completion_s: Result<f64, Unforeseen>,
    /// Seconds from now until a job that has no GPUs gets some, if that is foreseen.
    pub start_s: Option<f64>,
}

/// Why nobody can say when a job will be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unforeseen {
    /// Nothing is known of it.
    #[error("no progress reported yet")]
    NoReport,
    /// Its agent has no model yet.
    #[error("its speed has not been measured yet")]
    NoModel,
    /// It goes on until somebody ends it.
    #[error("its total work is unknown")]
    NoWork,
    /// Its user has set it aside.
    #[error("it is paused")]
    Paused,
    /// Its user has ended it.
    #[error("it is cancelled")]
    Cancelled,
    /// There are too few GPUs for it, whoever has them.
    #[error("it needs {needed} GPU{}, and {usable} can be used", if *.needed == 1 { "" } else { "s" })]
    TooFewGpus {
        /// The fewest that it can run with.
        needed: u32,
        /// Those of nodes that take replicas.
        usable: u32,
    },
    /// No node may run it.
    #[error("no node that can be used has a type of GPU that it allows")]
    NoSuchType,
    /// One of its replicas fits on no node.
    #[error("no node that can be used has the {resource} of one of its replicas")]
    TooLarge {
        /// What it would need more of.
        resource: &'static str,
    },
    /// Others keep GPUs for as long as was looked ahead.
    #[error("it waits for GPUs of jobs with no known end")]
    Held,
    /// No plan has GPUs for it.
    #[error("the policy gives it no GPUs")]
    NoGpus,
    /// It would be stopped before it is complete.
    #[error("it reaches its time limit of {limit_s} s before it is complete")]
    TimeLimit {
        /// Seconds that it may hold GPUs.
        limit_s: u64,
    },
    /// A job that it waits for would not succeed.
    #[error("it waits for job {} to succeed, which it would not", .job.0)]
    Dependency {
        /// That job.
        job: JobId,
    },
    /// A job that it waits for goes on for as long as was looked ahead.
    #[error("it waits for job {}, which has no known end", .job.0)]
    Waits {
        /// That job.
        job: JobId,
    },
    /// It would fail too often.
    #[error("it would fail too often")]
    Failures,
    /// The simulation was cut short before.
    #[error("it is not complete within the time that was simulated")]
    Cut,
}

impl Unforeseen {
    /// Why a job that failed in the simulation is never complete.
    pub(super) const fn of(reason: &FailureReason) -> Self {
        match reason {
            FailureReason::TimeLimit { limit_s } => Self::TimeLimit { limit_s: *limit_s },
            FailureReason::Dependency { job } => Self::Dependency { job: *job },
            FailureReason::Permanent { .. }
            | FailureReason::RetriesExhausted { .. }
            | FailureReason::MachineFailures { .. } => Self::Failures,
        }
    }
}

/// What cuts a forecast short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing beyond a year is forecast.
    Horizon,
    /// Whoever asked has waited for long enough.
    Patience,
}

/// Why there is no forecast.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForecastError {
    /// A state that cannot be carried on with, or settings that no cluster can be run with.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A policy that has to be told what jobs will do.
    #[error("policy {policy} has to know what jobs will do: expected policies of live clusters")]
    NeedsOracle {
        /// Its name.
        policy: &'static str,
    },
    /// Nothing can happen.
    #[error("no node is up: expected a cluster with one or more")]
    NoNodes,
    /// More nodes than can be simulated.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An application that cannot train for so long.
    #[error(transparent)]
    Physics(#[from] PhysicsError),
    /// A change that the engine refuses.
    #[error("{0}")]
    Refused(String),
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}
