use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use pollux_model::{BatchLimits, Parallelism};
use serde::Serialize;

use super::{FitArgs, FitError, display_name};
use crate::measurements::{LOCAL_BATCH_MAX, Measurements};

/// Beyond any data set; what is meant is infinite.
const NOISE_SCALE_MAX: f64 = 1e15;

/// What a fit was made with: the arguments, and the measurements where an argument is missing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Where the measurements came from.
    pub(crate) files: Vec<String>,
    /// How the job spreads over its GPUs.
    pub(crate) parallelism: Parallelism,
    /// Bounds of the total and the local batch.
    #[serde(flatten)]
    pub(crate) limits: BatchLimits,
    /// In samples; infinite (`null` in JSON) where every sample counts in full.
    pub(crate) noise_scale: f64,
    /// Whether the user gave the noise scale.
    #[serde(skip)]
    pub(crate) noise_scale_given: bool,
    /// Whether the user gave the largest batch.
    #[serde(skip)]
    pub(crate) batch_size_max_given: bool,
    /// Counts from 1 to this one are shown.
    pub(crate) gpus: u32,
    /// GPUs that are filled on a node before the next is used.
    pub(crate) gpus_per_node: u32,
}

impl Settings {
    pub(super) fn resolve(args: &FitArgs, measurements: &Measurements) -> Result<Self, FitError> {
        let gpus = args.gpus.unwrap_or_else(|| measurements.replicas_max());
        let (local_min, local_max) = local_batch(args.local_batch, measurements);
        ordered(&local_min, &local_max)?;
        let baseline = Bound::or("--batch-size", args.batch_size, "the smallest local batch", local_min.value);
        // Unless told otherwise, a baseline beyond what the GPUs hold at once is reached by accumulation.
        let largest = local_max.value.saturating_mul(gpus).max(baseline.value);
        let batch_max = Bound::or("--max-batch-size", args.max_batch_size, "the largest local batch x GPUs", largest);
        ordered(&baseline, &batch_max)?;
        Ok(Self {
            files: args.files.iter().map(|path| display_name(path)).collect(),
            parallelism: args.parallelism.into(),
            limits: BatchLimits::new(baseline.value, batch_max.value, local_min.value, local_max.value)?,
            noise_scale: args.noise_scale.map_or(f64::INFINITY, |noise_scale| noise_scale.0),
            noise_scale_given: args.noise_scale.is_some(),
            batch_size_max_given: args.max_batch_size.is_some(),
            gpus,
            gpus_per_node: args.gpus_per_node.unwrap_or_else(|| measurements.replicas_per_node_max()),
        })
    }
}

fn local_batch(given: Option<LocalBatchRange>, measurements: &Measurements) -> (Bound, Bound) {
    let LocalBatchRange { min, max } = given.unwrap_or_default();
    (
        Bound::or("--local-batch MIN", min, "the smallest local batch measured", measurements.local_batch_min()),
        Bound::or("--local-batch MAX", max, "the largest local batch measured", measurements.local_batch_max()),
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
pub(crate) struct Bound {
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

/// A whole number from 1 to `MAX`.
pub(super) fn whole_number<const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("accepted are whole numbers from 1 to {MAX}"))
}

/// `MIN..MAX`, either of which may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalBatchRange {
    min: Option<u32>,
    max: Option<u32>,
}

impl FromStr for LocalBatchRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bound = |text: &str| match text.trim() {
            "" => Some(None),
            number => number.parse().ok().filter(|number| (1..=LOCAL_BATCH_MAX).contains(number)).map(Some),
        };
        text.split_once("..").and_then(|(min, max)| Some(Self { min: bound(min)?, max: bound(max)? })).ok_or_else(
            || format!("accepted are MIN..MAX with whole numbers from 1 to {LOCAL_BATCH_MAX}, like 8..256 or 8.."),
        )
    }
}

/// A gradient noise scale in samples; it may be infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NoiseScale(f64);

impl FromStr for NoiseScale {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        // Only the word is infinite: numbers that overflow are read as infinite too.
        if text.eq_ignore_ascii_case("inf") {
            return Ok(Self(f64::INFINITY));
        }
        let number = text.parse().ok().filter(|number| (0.0..=NOISE_SCALE_MAX).contains(number)).map(Self);
        number.ok_or("accepted are samples from 0 to 1e15, or inf")
    }
}

/// How a job spreads over its GPUs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ParallelismArg {
    /// Replicated parameters, gradients reduced once a step
    DataParallel,
    /// Sharded parameters (FSDP, ZeRO-3), which every micro-batch communicates
    Sharded,
}

impl From<ParallelismArg> for Parallelism {
    fn from(arg: ParallelismArg) -> Self {
        match arg {
            ParallelismArg::DataParallel => Self::DataParallel,
            ParallelismArg::Sharded => Self::Sharded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_batch_range_may_be_open_on_either_side() {
        let range = |text: &str| text.parse::<LocalBatchRange>();
        assert_eq!(range("8..256"), Ok(LocalBatchRange { min: Some(8), max: Some(256) }));
        assert_eq!(range("8.."), Ok(LocalBatchRange { min: Some(8), max: None }));
        assert_eq!(range("..256"), Ok(LocalBatchRange { min: None, max: Some(256) }));
        for wrong in ["8", "8-256", "0..8", "a..b", "1..99999999", "-1..8", "1...8"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_noise_scale_is_never_negative_and_always_a_number() {
        assert_eq!("inf".parse(), Ok(NoiseScale(f64::INFINITY)));
        assert_eq!("1e3".parse(), Ok(NoiseScale(1000.0)));
        for wrong in ["nan", "-1", "-inf", "1e16", "1e400", "infinite", "many", ""] {
            assert!(wrong.parse::<NoiseScale>().is_err(), "{wrong}");
        }
    }
}
