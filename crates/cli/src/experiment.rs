//! `pollux experiment`: a question about schedulers, told in a file, answered in a table and a plot.

mod text;

use std::path::PathBuf;

use clap::Args;
use pollux_lab::{ExperimentError, ExperimentOptions, ExperimentReport};

pub(crate) use text::write_text;

use crate::output::OutputFormat;
use crate::progress::JobsBar;
use crate::sim::threads;

/// What `pollux experiment` takes.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ExperimentArgs {
    /// Folder of the experiment, with its experiment.toml
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Recorded data [default: $POLLUX_DATA or ../shared/data, where it is]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Where table and plot go [default: results beside the experiment; target/experiments without recorded data]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Simulations to run at once [default: one per core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    jobs: Option<u16>,

    /// Print for people or for programs
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub(crate) output: OutputFormat,
}

const AFTER_HELP: &str = "\
Without recorded data, jobs are generated and behave as the profiles that ship say; expected figures are left out.
How to write an experiment, or add a row to one: docs/experiments.md.";

/// Runs the experiment, saves what came out and returns it.
pub(crate) fn run(args: &ExperimentArgs) -> Result<ExperimentReport, ExperimentError> {
    let options = ExperimentOptions {
        folder: args.folder.clone(),
        data: args.data.clone(),
        out: args.out.clone(),
        threads: args.jobs,
    };
    let bar = JobsBar::start();
    pollux_lab::experiment(&options, &|progress| bar.show(progress))
}
