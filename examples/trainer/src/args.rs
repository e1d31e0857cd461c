use std::env;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use pollux_model::BatchLimits;

use crate::brain::BrainSettings;
use crate::error::TrainerError;
use crate::optimiser::OptimiserKind;
use crate::pace::Pace;
use crate::state::Recipe;

/// Train a small network on a generated data set, over as many processes as there are.
///
/// Started alone it trains in one process; under a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT it
/// trains with the others; under Pollux it also grows, shrinks and re-tunes its batch as it goes.
#[derive(Parser, Debug)]
#[command(name = "pollux-trainer", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Epochs to train
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,

    /// What N epochs mean: passes over the data, or as much progress as N passes at the baseline batch make
    #[arg(long, value_enum, default_value_t = GoalKind::Passes)]
    until: GoalKind,

    /// Samples of the data set
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    samples: u32,

    /// Share of the labels that are drawn at random, from 0 to 0.9
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = label_noise)]
    label_noise: f64,

    /// Units of the hidden layer
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    width: u32,

    /// What data set, first parameters and order of samples depend on
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How parameters follow gradients
    #[arg(long, value_enum, default_value_t = OptimiserKind::Sgd)]
    optimiser: OptimiserKind,

    /// Learning rate at the baseline batch [default: 0.02 with sgd, 0.001 with adam]
    #[arg(long, value_name = "RATE", value_parser = positive)]
    learning_rate: Option<f64>,

    /// Baseline batch, which the learning rate is meant for
    #[arg(long, value_name = "M0", default_value_t = 64)]
    batch_size: u32,

    /// Largest total batch
    #[arg(long, value_name = "M", default_value_t = 1024)]
    max_batch_size: u32,

    /// Bounds of a GPU's micro-batch
    #[arg(long, value_name = "MIN..MAX", default_value = "1..128")]
    local_batch: LocalBatch,

    /// Keep the baseline batch (rounded up to the number of GPUs) instead of tuning it
    #[arg(long)]
    fixed_batch: bool,

    /// Make steps as long as a throughput model says, by sleeping: good, medium, poor or a file
    #[arg(long, value_name = "NAME|FILE.toml")]
    pace: Option<String>,

    /// Where to save the training and to carry on from [default: POLLUX_CHECKPOINT_DIR, or nowhere]
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,

    /// Seconds between two checkpoints
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = positive)]
    checkpoint_every: f64,

    /// Append a line per finished epoch: its number, how many samples it saw and their checksum
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    /// Print nothing but mistakes
    #[arg(short, long)]
    quiet: bool,
}

const AFTER_HELP: &str = "\
Exit codes: 0 trained to the end, 143 saved and left after SIGTERM, 75 another rank was lost (start the group again and
it carries on from its last checkpoint), 2 a mistake in the arguments, 1 any other failure.
A paced trainer computes real gradients, then sleeps: its times are those of the model, not of this machine.";

/// What a number of epochs means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum GoalKind {
    /// Passes over the data
    Passes,
    /// Statistical progress, in passes at the baseline batch; the training ends with a whole pass
    Progress,
}

/// Bounds of a micro-batch.
#[derive(Clone, Copy, Debug)]
struct LocalBatch {
    min: u32,
    max: u32,
}

impl FromStr for LocalBatch {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let accepted = "expected two whole numbers like 1..128";
        let (min, max) = text.split_once("..").ok_or(accepted)?;
        Ok(Self { min: min.parse().map_err(|_| accepted)?, max: max.parse().map_err(|_| accepted)? })
    }
}

/// Everything a training is told, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) recipe: Recipe,
    pub(crate) epochs: u32,
    pub(crate) until: GoalKind,
    pub(crate) learning_rate: f64,
    pub(crate) brain: BrainSettings,
    pub(crate) pace: Option<Pace>,
    pub(crate) checkpoint_dir: Option<PathBuf>,
    pub(crate) checkpoint_every: Duration,
    pub(crate) audit: Option<PathBuf>,
    pub(crate) quiet: bool,
}

impl Args {
    pub(crate) fn check(self) -> Result<Settings, TrainerError> {
        let LocalBatch { min, max } = self.local_batch;
        let limits = BatchLimits::new(self.batch_size, self.max_batch_size, min, max)
            .map_err(|error| TrainerError::Setting(error.to_string()))?;
        Ok(Settings {
            recipe: Recipe {
                seed: self.seed,
                samples: self.samples,
                label_noise: self.label_noise,
                width: self.width as usize,
                optimiser: self.optimiser,
                batch_size: self.batch_size,
            },
            epochs: self.epochs,
            until: self.until,
            learning_rate: self.learning_rate.unwrap_or(self.optimiser.learning_rate()),
            brain: BrainSettings {
                limits,
                optimiser: self.optimiser,
                epoch_samples: self.samples,
                fixed: self.fixed_batch,
            },
            pace: self.pace.as_deref().map(Pace::find).transpose()?,
            checkpoint_dir: self.checkpoint_dir.or_else(|| env::var_os("POLLUX_CHECKPOINT_DIR").map(PathBuf::from)),
            checkpoint_every: Duration::from_secs_f64(self.checkpoint_every.min(1e9)),
            audit: self.audit,
            quiet: self.quiet,
        })
    }
}

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or("expected numbers above 0")
}

fn label_noise(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.0..=0.9).contains(share)).ok_or("expected numbers from 0 to 0.9")
}
