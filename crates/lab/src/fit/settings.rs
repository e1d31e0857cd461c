use std::fmt;

use pollux_model::{BatchLimits, Parallelism};
use serde::Serialize;

use super::FitError;
use crate::measurements::{LOCAL_BATCH_MAX, Measurements, REPLICAS_MAX};

/// Beyond any data set; what is meant is infinite.
pub const NOISE_SCALE_MAX: f64 = 1e15;

/// What a fit is asked for; what is missing follows from the measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FitOptions {
    /// Baseline batch, which the learning rate was chosen for; else the smallest local batch.
    pub batch_size: Option<u32>,
    /// Largest total batch; else the largest local batch on all GPUs shown.
    pub max_batch_size: Option<u32>,
    /// Bounds of a GPU's micro-batch; else as measured.
    pub local_batch: LocalBatchRange,
    /// Gradient noise scale in samples; else infinite: every sample counts in full.
    pub noise_scale: Option<f64>,
    /// Show 1 to so many GPUs; else the most replicas measured.
    pub gpus: Option<u32>,
    /// GPUs that are filled on a node before the next is used; else the most replicas measured on one.
    pub gpus_per_node: Option<u32>,
    /// How the job spreads over its GPUs.
    pub parallelism: Parallelism,
}

/// Bounds of a local batch, either of which may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalBatchRange {
    /// The smallest.
    pub min: Option<u32>,
    /// The largest.
    pub max: Option<u32>,
}

impl FitOptions {
    fn check(&self) -> Result<(), FitError> {
        let LocalBatchRange { min, max } = self.local_batch;
        for (name, value, most) in [
            ("batch_size", self.batch_size, u32::MAX),
            ("max_batch_size", self.max_batch_size, u32::MAX),
            ("local_batch min", min, LOCAL_BATCH_MAX),
            ("local_batch max", max, LOCAL_BATCH_MAX),
            ("gpus", self.gpus, REPLICAS_MAX),
            ("gpus_per_node", self.gpus_per_node, REPLICAS_MAX),
        ] {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                let accepted = format!("whole numbers from 1 to {most}");
                return Err(FitError::Option { name, value: value.to_string(), accepted });
            }
        }
        match self.noise_scale {
            Some(value) if !(0.0..=NOISE_SCALE_MAX).contains(&value) && value != f64::INFINITY => {
                let accepted = "samples from 0 to 1e15, or inf".to_owned();
                Err(FitError::Option { name: "noise_scale", value: value.to_string(), accepted })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What a fit was made with: the options, and the measurements where an option is missing.
#[derive(Clone, Debug, Serialize)]
pub struct FitSettings {
    /// Where the measurements came from.
    pub files: Vec<String>,
    /// How the job spreads over its GPUs.
    pub parallelism: Parallelism,
    /// Bounds of the total and the local batch.
    #[serde(flatten)]
    pub limits: BatchLimits,
    /// In samples; infinite (`null` in JSON) where every sample counts in full.
    pub noise_scale: f64,
    /// Whether the caller gave the noise scale.
    #[serde(skip)]
    pub noise_scale_given: bool,
    /// Whether the caller gave the largest batch.
    #[serde(skip)]
    pub batch_size_max_given: bool,
    /// Counts from 1 to this one are shown.
    pub gpus: u32,
    /// GPUs that are filled on a node before the next is used.
    pub gpus_per_node: u32,
}

impl FitSettings {
    pub(super) fn resolve(
        options: &FitOptions,
        files: Vec<String>,
        measurements: &Measurements,
    ) -> Result<Self, FitError> {
        if measurements.rows() == 0 {
            return Err(FitError::NoSteps);
        }
        options.check()?;
        let gpus = options.gpus.unwrap_or_else(|| measurements.replicas_max());
        let (local_min, local_max) = local_batch(options.local_batch, measurements);
        ordered(&local_min, &local_max)?;
        let baseline = Bound::or("batch_size", options.batch_size, "the smallest local batch", local_min.value);
        // Unless told otherwise, a baseline beyond what the GPUs hold at once is reached by accumulation.
        let largest = local_max.value.saturating_mul(gpus).max(baseline.value);
        let batch_max = Bound::or("max_batch_size", options.max_batch_size, "the largest local batch x GPUs", largest);
        ordered(&baseline, &batch_max)?;
        Ok(Self {
            files,
            parallelism: options.parallelism,
            limits: BatchLimits::new(baseline.value, batch_max.value, local_min.value, local_max.value)?,
            noise_scale: options.noise_scale.unwrap_or(f64::INFINITY),
            noise_scale_given: options.noise_scale.is_some(),
            batch_size_max_given: options.max_batch_size.is_some(),
            gpus,
            gpus_per_node: options.gpus_per_node.unwrap_or_else(|| measurements.replicas_per_node_max()),
        })
    }
}

fn local_batch(given: LocalBatchRange, measurements: &Measurements) -> (Bound, Bound) {
    let LocalBatchRange { min, max } = given;
    (
        Bound::or("local_batch min", min, "the smallest local batch measured", measurements.local_batch_min()),
        Bound::or("local_batch max", max, "the largest local batch measured", measurements.local_batch_max()),
    )
}

fn ordered(low: &Bound, high: &Bound) -> Result<(), FitError> {
    if low.value > high.value {
        return Err(FitError::Bounds { low: low.clone(), high: high.clone() });
    }
    Ok(())
}

/// A bound and where it comes from.
#[derive(Clone, Debug)]
pub struct Bound {
    name: &'static str,
    value: u32,
    /// What it was derived from, where the user gave none.
    default: Option<&'static str>,
}

impl Bound {
    fn or(name: &'static str, given: Option<u32>, default_name: &'static str, default: u32) -> Self {
        match given {
            Some(value) => Self { name, value, default: None },
            None => Self { name, value: default, default: Some(default_name) },
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.name, self.value)?;
        self.default.map_or(Ok(()), |default| write!(out, " (by default {default})"))
    }
}
