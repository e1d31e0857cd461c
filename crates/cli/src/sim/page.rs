//! The page of `--report`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pollux_sim::{PageHeader, RunOutcome, report_page};

use super::SimError;
use super::experiment::Experiment;

/// Makes the folder and the file, so that what cannot be written is known at once.
pub(super) fn prepare(folder: &Path) -> Result<PathBuf, SimError> {
    let unwritable = |reason| SimError::ReportUnwritable { path: folder.to_owned(), reason };
    fs::create_dir_all(folder).map_err(unwritable)?;
    let path = folder.join("index.html");
    File::create(&path).map_err(unwritable)?;
    Ok(path)
}

/// Draws the outcomes.
pub(super) fn write(path: &Path, experiment: &Experiment, outcomes: &[RunOutcome]) -> Result<(), SimError> {
    let header = PageHeader { build: format!("pollux {}", env!("CARGO_PKG_VERSION")), settings: settings(experiment) };
    let unwritable = |reason| SimError::ReportUnwritable { path: path.to_owned(), reason };
    fs::write(path, report_page(&header, outcomes)).map_err(unwritable)
}

fn settings(experiment: &Experiment) -> Vec<(String, String)> {
    let shown = &experiment.shown;
    let mut settings = vec![
        ("cluster", format!("{} ({} GPUs)", shown.cluster, shown.gpus)),
        ("round", format!("{} s", shown.interval_s)),
        ("restart delay", format!("{} s", shown.restart_delay_s)),
        ("epochs declared", if shown.declare_epochs { "yes" } else { "no" }.to_owned()),
        ("physics", shown.physics.clone()),
    ];
    if shown.interference > 0.0 {
        settings.push(("interference", format!("{:.0}%", shown.interference * 100.0)));
    }
    if shown.failures_per_node_day > 0.0 {
        settings.push(("failures", format!("{} per node and day", shown.failures_per_node_day)));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
