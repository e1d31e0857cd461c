use pollux_agent::AgentError;
use pollux_lab::{DrawError, ExperimentError, FitError, MeasurementError, SimError};
use pollux_model::ModelError;
use pollux_policy::{PolicySettingError, UnknownPolicy};
use pollux_sim::PhysicsError;
use pollux_worker::WorkerError;
use pyo3::PyErr;
use thiserror::Error;

pyo3::create_exception!(
    pollux,
    PolluxError,
    pyo3::exceptions::PyValueError,
    "What Pollux refuses: the message says what was read and what would be accepted."
);

/// Whatever may go wrong below Python; all of it is a `PolluxError` there.
#[derive(Debug, Error)]
pub(crate) enum NativeError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error(transparent)]
    PolicySetting(#[from] PolicySettingError),
    #[error(transparent)]
    Physics(#[from] PhysicsError),
    #[error(transparent)]
    Sim(#[from] SimError),
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    #[error(transparent)]
    Fit(#[from] FitError),
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// A whole number that is too small or too large.
    #[error("{name} is {value}; expected whole numbers from 0 to {}", u32::MAX)]
    Count { name: &'static str, value: i64 },
    /// A word that means nothing here.
    #[error("{name} is {value:?}; expected {accepted}")]
    Word { name: &'static str, value: String, accepted: &'static str },
    /// A length of time that cannot be.
    #[error("{name} is {value}; expected seconds from 0")]
    Seconds { name: &'static str, value: f64 },
    /// Text that is not what it should be.
    #[error("{name}: {reason}; expected {accepted}")]
    Json { name: &'static str, reason: serde_json::Error, accepted: &'static str },
}

impl From<NativeError> for PyErr {
    fn from(error: NativeError) -> Self {
        PolluxError::new_err(error.to_string())
    }
}
