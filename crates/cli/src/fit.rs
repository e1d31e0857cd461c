//! `pollux fit`: from files of measured steps to what each number of GPUs is worth.

mod args;
mod text;

use std::path::{Path, PathBuf};
use std::{fs, io};

use pollux_lab::{FitError, FitReport, MeasurementError, Measurements};
use thiserror::Error;

pub(crate) use args::FitArgs;
pub(crate) use text::write_text;

use crate::progress::Progress;

/// What the user has to change before a fit can be made.
#[derive(Debug, Error)]
pub(crate) enum FitCommandError {
    /// Files or their contents.
    #[error(transparent)]
    Measurements(#[from] MeasurementError),
    /// Stdin can be read once.
    #[error("- (stdin) is given {times} times; expected once")]
    RepeatedStdin { times: usize },
    /// What the measurements do not allow.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A plot in a format that is not drawn.
    #[error("--plot {}: expected file names that end in .svg", path.display())]
    PlotName { path: PathBuf },
    /// A plot that cannot be saved.
    #[error("--plot {}: {reason}; expected a file that can be written", path.display())]
    PlotUnwritable { path: PathBuf, reason: io::Error },
}

/// Reads the files, fits the model and reports what each number of GPUs is worth; draws the plot if asked to.
pub(crate) fn run(args: &FitArgs) -> anyhow::Result<FitReport> {
    if let Some(path) = args.plot.as_deref().filter(|path| path.extension().is_none_or(|extension| extension != "svg"))
    {
        return Err(FitCommandError::PlotName { path: path.to_owned() }.into());
    }
    let measurements = read(&args.files)?;
    let sources = args.files.iter().map(|path| display_name(path)).collect();
    let report = pollux_lab::fit(&measurements, sources, &args.options()).map_err(FitCommandError::Fit)?;
    if let Some(path) = &args.plot {
        let svg = report.plot(&measurements)?;
        fs::write(path, svg).map_err(|reason| FitCommandError::PlotUnwritable { path: path.clone(), reason })?;
    }
    Ok(report)
}

fn read(files: &[PathBuf]) -> Result<Measurements, FitCommandError> {
    let times = files.iter().filter(|path| is_stdin(path)).count();
    if times > 1 {
        return Err(FitCommandError::RepeatedStdin { times });
    }
    let mut measurements = Measurements::default();
    let mut progress = Progress::start();
    for path in files {
        let name = display_name(path);
        let mut on_progress = |rows| progress.rows(rows, &name);
        if is_stdin(path) {
            measurements.read(&name, io::stdin().lock(), &mut on_progress)?;
        } else {
            measurements.read_file(path, &mut on_progress)?;
        }
    }
    Ok(measurements)
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What messages and reports call a file.
fn display_name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}
