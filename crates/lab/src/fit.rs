//! From measured steps to what each number of GPUs is worth.

mod note;
mod plot;
mod report;
mod settings;

use pollux_model::{Goodput, ModelError, NoiseStatistics};
use thiserror::Error;

use crate::measurements::Measurements;
pub use note::{Note, Placed};
pub use report::{Best, FitReport, PredictionError, Recommendation, Row, SCALING_EFFICIENCY_MIN, percent};
pub use settings::{Bound, FitOptions, FitSettings, LocalBatchRange, NOISE_SCALE_MAX};

/// What the caller has to change before a fit can be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FitError {
    /// Nothing was measured.
    #[error("no measured steps; expected one or more")]
    NoSteps,
    /// An option out of its range.
    #[error("{name} is {value}; expected {accepted}")]
    Option {
        /// Which one.
        name: &'static str,
        /// As given.
        value: String,
        /// What would do.
        accepted: String,
    },
    /// A lower bound above its upper bound.
    #[error("{low} is above {high}; expected bounds in order")]
    Bounds {
        /// The lower one.
        low: Bound,
        /// The upper one.
        high: Bound,
    },
    /// Limits that no number of GPUs can keep.
    #[error(
        "no batch fits 1 to {gpus} GPUs: GPUs x local batch ({local_min}..{local_max}) x micro-batches never falls \
         within the batch size {batch_min}..{batch_max}; expected wider bounds, like a larger max_batch_size"
    )]
    NoFeasibleBatch {
        /// The most that are shown.
        gpus: u32,
        /// Smallest local batch.
        local_min: u32,
        /// Largest local batch.
        local_max: u32,
        /// Baseline batch.
        batch_min: u32,
        /// Largest batch.
        batch_max: u32,
    },
    /// What the model refuses of it all.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Fits the model to measured steps and reports what each number of GPUs is worth. The report calls the steps by where
/// they came from, `sources`.
pub fn fit(measurements: &Measurements, sources: Vec<String>, options: &FitOptions) -> Result<FitReport, FitError> {
    let settings = FitSettings::resolve(options, sources, measurements)?;
    let fitted = pollux_model::fit(settings.parallelism, &measurements.configurations(), None)?;
    let noise = NoiseStatistics::from_noise_scale(settings.noise_scale, settings.limits.batch_size_baseline())?;
    let goodput = Goodput { throughput: fitted.model, noise, limits: settings.limits };
    FitReport::new(settings, measurements, goodput, fitted.objective)
}
