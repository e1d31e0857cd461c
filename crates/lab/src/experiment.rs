//! A question about schedulers, told in a file, answered in a table and a plot.
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

use crate::progress::Progress;
use crate::sim::runs::in_parallel;
use cases::Cases;
use data::Data;
pub use error::ExperimentError;
use file::{ExperimentFile, Source};
pub use grid::{Column, ColumnKind, Figure, Grid, Value};
use outcome::Outcome;
use report::Parts;
pub use report::{ExperimentReport, Fact};
use results::Results;

/// Where results go that must not be taken for those of recorded physics.
const UNRECORDED: &str = "target/experiments";

/// What is run, and where its results go.
#[derive(Clone, Debug, Default)]
pub struct ExperimentOptions {
    /// Folder of the experiment, with its experiment.toml.
    pub folder: PathBuf,
    /// Folder of recorded data; else `$POLLUX_DATA` or ../shared/data, where it may be missing.
    pub data: Option<PathBuf>,
    /// Where table and plot go; else results beside the experiment, or target/experiments without recorded data.
    pub out: Option<PathBuf>,
    /// Simulations at once; else one per core.
    pub threads: Option<u16>,
}

/// Runs the experiment, saves what came out and returns it.
pub fn experiment(
    options: &ExperimentOptions,
    on_progress: &(dyn Fn(Progress) + Sync),
) -> Result<ExperimentReport, ExperimentError> {
    let file = ExperimentFile::read(&options.folder)?;
    let folder = named(&options.folder);
    let data = Data::load(options.data.as_deref(), &file)?;
    let in_file = |error: ExperimentError| error.in_file(options.folder.join("experiment.toml"));
    let cases = Cases::resolve(&file, &folder, &data).map_err(in_file)?;
    // Before the work: minutes of simulation are a bad time to learn that nothing can be written.
    let out = prepare(options, &folder, data.has_all(&file))?;
    let works = cases.works();
    let jobs = works.iter().map(|(work, ..)| work.jobs()).sum();
    let outcomes = in_parallel(&works, options.threads, (jobs, on_progress), |(work, source, settings), progress| {
        work.simulate(settings, data.applications(source), progress)
    })?;
    let results = Results {
        file: &file,
        sources: cases.sources.iter().map(Source::name).collect(),
        policies: cases.policies.clone(),
        outcomes: by_case(outcomes, cases.lengths()),
        comparable: data.has_all(&file),
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
fn prepare(options: &ExperimentOptions, folder: &Path, has_all: bool) -> Result<PathBuf, ExperimentError> {
    let beside = || folder.parent().unwrap_or(folder).join("results");
    let default = || if has_all { beside() } else { PathBuf::from(UNRECORDED) };
    let out = options.out.clone().unwrap_or_else(default);
    fs::create_dir_all(&out).map_err(|reason| ExperimentError::Unwritable { path: out.clone(), reason })?;
    Ok(out)
}

fn by_case(outcomes: Vec<Outcome>, lengths: impl Iterator<Item = usize>) -> Vec<Vec<Outcome>> {
    let mut outcomes = outcomes.into_iter();
    lengths.map(|length| outcomes.by_ref().take(length).collect()).collect()
}
