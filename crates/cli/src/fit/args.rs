use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pollux_lab::{FitOptions, LOCAL_BATCH_MAX, LocalBatchRange, NOISE_SCALE_MAX, REPLICAS_MAX};
use pollux_model::Parallelism;

use crate::output::OutputFormat;

/// What `pollux fit` takes. Numbers may start with a hyphen, so that a negative one is refused as what it is.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct FitArgs {
    /// CSV files of measured steps, pooled; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,

    /// Baseline batch, which the learning rate was chosen for [default: smallest local batch]
    #[arg(long, value_name = "M0", allow_hyphen_values = true, value_parser = whole_number::<{ u32::MAX }>)]
    batch_size: Option<u32>,

    /// Largest total batch [default: largest local batch x GPUs shown]
    #[arg(long, value_name = "M", allow_hyphen_values = true, value_parser = whole_number::<{ u32::MAX }>)]
    max_batch_size: Option<u32>,

    /// Bounds of a GPU's micro-batch, either may be left out [default: as measured]
    #[arg(long, value_name = "MIN..MAX", allow_hyphen_values = true, value_parser = local_batch_range)]
    local_batch: Option<LocalBatchRange>,

    /// Gradient noise scale in samples [default: inf, every sample counts in full]
    #[arg(long, value_name = "PHI", allow_hyphen_values = true, value_parser = noise_scale)]
    noise_scale: Option<f64>,

    /// Show 1 to N GPUs [default: most replicas measured]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole_number::<REPLICAS_MAX>)]
    gpus: Option<u32>,

    /// GPUs that are filled on a node before the next is used [default: most replicas measured on one]
    #[arg(long, value_name = "G", allow_hyphen_values = true, value_parser = whole_number::<REPLICAS_MAX>)]
    gpus_per_node: Option<u32>,

    /// How the job spreads over its GPUs
    #[arg(long, value_enum, default_value_t = ParallelismArg::DataParallel)]
    parallelism: ParallelismArg,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub(crate) output: OutputFormat,

    /// Also draw measured against predicted throughput, and goodput
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Columns are found by name, others are ignored:
  num_nodes,num_replicas,local_bsz,step_time,sync_time
  placement,local_bsz,step_time,sync_time
Times are in seconds; sync_time is the part of step_time after the last local gradient.
A placement is the replicas on each node as digits: 1, 22, 444.";

impl FitArgs {
    pub(super) fn options(&self) -> FitOptions {
        FitOptions {
            batch_size: self.batch_size,
            max_batch_size: self.max_batch_size,
            local_batch: self.local_batch.unwrap_or_default(),
            noise_scale: self.noise_scale,
            gpus: self.gpus,
            gpus_per_node: self.gpus_per_node,
            parallelism: self.parallelism.into(),
        }
    }
}

/// A whole number from 1 to `MAX`.
fn whole_number<const MAX: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
    number.ok_or_else(|| format!("expected whole numbers from 1 to {MAX}"))
}

/// `MIN..MAX`, either of which may be left out.
fn local_batch_range(text: &str) -> Result<LocalBatchRange, String> {
    let bound = |text: &str| match text.trim() {
        "" => Some(None),
        number => number.parse().ok().filter(|number| (1..=LOCAL_BATCH_MAX).contains(number)).map(Some),
    };
    let range = text.split_once("..").and_then(|(min, max)| Some((bound(min)?, bound(max)?)));
    range
        .map(|(min, max)| LocalBatchRange { min, max })
        .ok_or_else(|| format!("expected MIN..MAX with whole numbers from 1 to {LOCAL_BATCH_MAX}, like 8..256 or 8.."))
}

/// A gradient noise scale in samples; it may be infinite.
fn noise_scale(text: &str) -> Result<f64, &'static str> {
    // Only the word is infinite: numbers that overflow are read as infinite too.
    if text.eq_ignore_ascii_case("inf") {
        return Ok(f64::INFINITY);
    }
    let number = text.parse().ok().filter(|number| (0.0..=NOISE_SCALE_MAX).contains(number));
    number.ok_or("expected samples from 0 to 1e15, or inf")
}

/// How a job spreads over its GPUs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ParallelismArg {
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
        let range = local_batch_range;
        assert_eq!(range("8..256"), Ok(LocalBatchRange { min: Some(8), max: Some(256) }));
        assert_eq!(range("8.."), Ok(LocalBatchRange { min: Some(8), max: None }));
        assert_eq!(range("..256"), Ok(LocalBatchRange { min: None, max: Some(256) }));
        for wrong in ["8", "8-256", "0..8", "a..b", "1..99999999", "-1..8", "1...8"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_noise_scale_is_never_negative_and_always_a_number() {
        assert_eq!(noise_scale("inf"), Ok(f64::INFINITY));
        assert_eq!(noise_scale("1e3"), Ok(1000.0));
        for wrong in ["nan", "-1", "-inf", "1e16", "1e400", "infinite", "many", ""] {
            assert!(noise_scale(wrong).is_err(), "{wrong}");
        }
    }
}
