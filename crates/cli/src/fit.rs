//! `pollux fit`: from files of measured steps to what each number of GPUs is worth.

mod note;
mod plot;
mod report;
mod settings;
mod text;

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use pollux_model::{Goodput, ModelError, NoiseStatistics, fit};
use thiserror::Error;

use crate::measurements::{MeasurementError, Measurements, REPLICAS_MAX};
use crate::output::OutputFormat;
use crate::progress::Progress;
use report::Report;
use settings::{Bound, LocalBatchRange, NoiseScale, ParallelismArg, Settings, whole_number};

/// What `pollux fit` takes. Numbers may start with a hyphen, so that a negative one is refused as what it is.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct FitArgs {
    /// CSV files of measured steps, pooled; - is stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Baseline batch, which the learning rate was chosen for [default: smallest local batch]
    #[arg(long, value_name = "M0", allow_hyphen_values = true, value_parser = whole_number::<{ u32::MAX }>)]
    batch_size: Option<u32>,

    /// Largest total batch [default: largest local batch x GPUs shown]
    #[arg(long, value_name = "M", allow_hyphen_values = true, value_parser = whole_number::<{ u32::MAX }>)]
    max_batch_size: Option<u32>,

    /// Bounds of a GPU's micro-batch, either may be left out [default: as measured]
    #[arg(long, value_name = "MIN..MAX", allow_hyphen_values = true)]
    local_batch: Option<LocalBatchRange>,

    /// Gradient noise scale in samples [default: inf, every sample counts in full]
    #[arg(long, value_name = "PHI", allow_hyphen_values = true)]
    noise_scale: Option<NoiseScale>,

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
    plot: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Columns are found by name, others are ignored:
  num_nodes,num_replicas,local_bsz,step_time,sync_time
  placement,local_bsz,step_time,sync_time
Times are in seconds; sync_time is the part of step_time after the last local gradient.
A placement is the replicas on each node as digits: 1, 22, 444.";

/// What the user has to change before a fit can be made.
#[derive(Debug, Error)]
pub(crate) enum FitError {
    /// Files or their contents.
    #[error(transparent)]
    Measurements(#[from] MeasurementError),
    /// Stdin can be read once.
    #[error("- (stdin) is given {times} times; accepted is once")]
    RepeatedStdin { times: usize },
    /// A lower bound above its upper bound.
    #[error("{low} is above {high}; accepted are bounds in order")]
    Bounds { low: Bound, high: Bound },
    /// Limits that no number of GPUs can keep.
    #[error(
        "no batch fits 1 to {gpus} GPUs: GPUs x local batch ({local_min}..{local_max}) x micro-batches never falls \
         within the batch size {batch_min}..{batch_max}; accepted are wider bounds, like a larger --max-batch-size"
    )]
    NoFeasibleBatch { gpus: u32, local_min: u32, local_max: u32, batch_min: u32, batch_max: u32 },
    /// What the model refuses of it all.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A plot in a format that is not drawn.
    #[error("--plot {}: accepted are file names that end in .svg", path.display())]
    PlotName { path: PathBuf },
    /// A plot that cannot be saved.
    #[error("--plot {}: {reason}; accepted is a file that can be written", path.display())]
    PlotUnwritable { path: PathBuf, reason: io::Error },
}

/// Reads the files, fits the model and reports what each number of GPUs is worth; draws the plot if asked to.
pub(crate) fn run(args: &FitArgs) -> anyhow::Result<Report> {
    if let Some(path) = args.plot.as_deref().filter(|path| path.extension().is_none_or(|extension| extension != "svg"))
    {
        return Err(FitError::PlotName { path: path.to_owned() }.into());
    }
    let measurements = read(&args.files)?;
    let settings = Settings::resolve(args, &measurements)?;
    let fitted = fit(settings.parallelism, &measurements.configurations(), None).map_err(FitError::Model)?;
    let baseline = settings.limits.batch_size_baseline();
    let noise = NoiseStatistics::from_noise_scale(settings.noise_scale, baseline).map_err(FitError::Model)?;
    let goodput = Goodput { throughput: fitted.model, noise, limits: settings.limits };
    let report = Report::new(settings, &measurements, &goodput, fitted.objective)?;
    if let Some(path) = &args.plot {
        let svg = plot::draw(&report, &measurements, &goodput.throughput)?;
        fs::write(path, svg).map_err(|reason| FitError::PlotUnwritable { path: path.clone(), reason })?;
    }
    Ok(report)
}

fn read(files: &[PathBuf]) -> Result<Measurements, FitError> {
    let times = files.iter().filter(|path| is_stdin(path)).count();
    if times > 1 {
        return Err(FitError::RepeatedStdin { times });
    }
    let mut measurements = Measurements::default();
    let mut progress = Progress::start();
    for path in files {
        let name = display_name(path);
        let mut on_progress = |rows| progress.rows(rows, &name);
        if is_stdin(path) {
            measurements.read(&name, io::stdin().lock(), &mut on_progress)?;
        } else {
            measurements.read(&name, open(path, &name)?, &mut on_progress)?;
        }
    }
    Ok(measurements)
}

fn open(path: &Path, name: &str) -> Result<BufReader<File>, MeasurementError> {
    let unreadable = |reason| MeasurementError::Unreadable { file: name.to_owned(), reason };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(MeasurementError::Directory { file: name.to_owned() });
    }
    Ok(BufReader::with_capacity(1 << 16, file))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What messages and reports call a file.
fn display_name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}
