//! `pollux experiment`: a question about schedulers, told in a file, answered in a table and a plot.
//!
//! ```text
//!  experiment.toml ──> Cases ──> simulations ──> Results ──> table, CSV, Markdown, plot
//!  recorded data ───────┘        (all cores)
//! ```

mod cases;
mod commit;
mod data;
mod error;
mod file;
mod grid;
mod measure;
mod outcome;
mod plot;
mod report;
mod results;
mod timeline;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::output::{self, OutputFormat};
use crate::sim::args::threads;
use crate::sim::runs::in_parallel;
use cases::Cases;
use data::Data;
pub(crate) use error::ExperimentError;
use file::ExperimentFile;
use outcome::Outcome;
use report::{ExperimentReport, Parts};
use results::Results;

/// Where results go that must not be taken for those of recorded physics.
const UNRECORDED: &str = "target/experiments";

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
pub(crate) fn run(args: &ExperimentArgs) -> anyhow::Result<ExperimentReport> {
    let file = ExperimentFile::read(&args.folder)?;
    let folder = named(&args.folder);
    let data = Data::load(args.data.as_deref())?;
    let in_file = |error: ExperimentError| error.in_file(args.folder.join("experiment.toml"));
    let cases = Cases::resolve(&file, &folder, &data).map_err(in_file)?;
    // Before the work: minutes of simulation are a bad time to learn that nothing can be written.
    let out = prepare(args, &folder, &data)?;
    let works = cases.works();
    let jobs = works.iter().map(|(work, _)| work.jobs()).sum();
    let outcomes = in_parallel(&works, jobs, args.jobs, |(work, settings), progress| {
        work.simulate(settings, &data.applications, progress)
    })?;
    let results = Results {
        file: &file,
        sources: cases.sources.iter().map(report::source_name).collect(),
        policies: cases.policies.clone(),
        outcomes: by_case(outcomes, cases.lengths()),
        comparable: data.published.is_some(),
    };
    let svg = plot::draw(&results)?;
    let commit = commit::commit(&folder, &out);
    let table = results.grid();
    let report = ExperimentReport::new(Parts {
        folder: &folder,
        results: &out,
        file: &file,
        data: &data,
        cases: &cases,
        commit,
        table,
    });
    report.save(&svg)?;
    if data.published.is_none() {
        output::note(&"no recorded data (POLLUX_DATA, --data): generated jobs on the profiles that ship");
    }
    Ok(report)
}

/// The folder with a name of its own, which `.` is not.
fn named(folder: &Path) -> PathBuf {
    match folder.file_name() {
        Some(_) => folder.to_owned(),
        None => folder.canonicalize().unwrap_or_else(|_| folder.to_owned()),
    }
}

/// Makes the folder of the results.
fn prepare(args: &ExperimentArgs, folder: &Path, data: &Data) -> Result<PathBuf, ExperimentError> {
    let beside = || folder.parent().unwrap_or(folder).join("results");
    let default = || if data.published.is_some() { beside() } else { PathBuf::from(UNRECORDED) };
    let out = args.out.clone().unwrap_or_else(default);
    fs::create_dir_all(&out).map_err(|reason| ExperimentError::Unwritable { path: out.clone(), reason })?;
    Ok(out)
}

fn by_case(outcomes: Vec<Outcome>, lengths: impl Iterator<Item = usize>) -> Vec<Vec<Outcome>> {
    let mut outcomes = outcomes.into_iter();
    lengths.map(|length| outcomes.by_ref().take(length).collect()).collect()
}
