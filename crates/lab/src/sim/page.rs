//! The page that draws everything.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use pollux_sim::{Autoscale, PageHeader, RunOutcome, report_page};

use super::SimError;
use super::comparison::Comparison;

/// Where the page goes. What stands there stays until the new page is complete.
pub(super) struct PageFile {
    path: PathBuf,
    draft: PathBuf,
}

/// Makes the folder and tries to write in it, so that what cannot be written is known at once.
pub(super) fn prepare(folder: &Path) -> Result<PageFile, SimError> {
    // Runs that share a folder must not share a draft.
    let draft = folder.join(format!(".index.html.{}", process::id()));
    let page = PageFile { path: folder.join("index.html"), draft };
    let attempt = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        if page.path.exists() {
            OpenOptions::new().write(true).open(&page.path)?;
        }
        File::create(&page.draft)?;
        // Nothing is left behind where the simulation fails or is interrupted.
        fs::remove_file(&page.draft)
    };
    attempt().map_err(|reason| SimError::ReportUnwritable { path: folder.to_owned(), reason })?;
    Ok(page)
}

/// Draws the outcomes.
pub(super) fn write(page: &PageFile, comparison: &Comparison, outcomes: &[RunOutcome]) -> Result<(), SimError> {
    let header = PageHeader { build: format!("pollux {}", env!("CARGO_PKG_VERSION")), settings: settings(comparison) };
    let written = fs::write(&page.draft, report_page(&header, outcomes));
    written.and_then(|()| fs::rename(&page.draft, &page.path)).map_err(|reason| {
        // The reason is what matters; a draft that cannot be removed either adds nothing to it.
        let _ = fs::remove_file(&page.draft);
        SimError::ReportUnwritable { path: page.path.clone(), reason }
    })
}

fn settings(comparison: &Comparison) -> Vec<(String, String)> {
    let shown = &comparison.shown;
    let mut settings = vec![
        ("cluster", shown.cluster_text()),
        ("round", format!("{} s", shown.interval_s)),
        ("restart delay", format!("{} s", shown.restart_delay_s)),
        ("epochs declared", if shown.declare_epochs { "yes" } else { "no" }.to_owned()),
        ("physics", shown.physics.clone()),
    ];
    if let Some(resize_delay_s) = shown.resize_delay_s {
        settings.push(("resize delay", format!("{resize_delay_s} s, in place")));
    }
    if let Some(resume_delay_s) = shown.resume_delay_s {
        settings.push(("resume delay", format!("{resume_delay_s} s")));
    }
    if let Some(random) = &shown.random_jobs {
        settings.push(("jobs", random.text()));
    }
    if shown.interference > 0.0 {
        settings.push(("interference", format!("{:.0}%", shown.interference * 100.0)));
    }
    if shown.failures_per_node_day > 0.0 {
        settings.push(("failures", format!("{} per node and day", shown.failures_per_node_day)));
    }
    if let Some(Autoscale { settings: band, .. }) = &shown.autoscale {
        settings.push(("utility", format!("{} to {}", band.utility_low, band.utility_high)));
    }
    if let Some(seed) = shown.failure_seed {
        settings.push(("failure seed", seed.to_string()));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
