//! `pollux demo`: two schedulers, the same trainings, side by side and for real.
//!
//! ```text
//!  scenario ──jobs──> cluster "pollux"        (elastic, tuned) ──┐
//!                └──> cluster "equal shares"  (2 GPUs each)    ──┴─ recording ──> screen, report
//! ```
//!
//! Both are `pollux up` in a temporary folder, with workers that pace their steps so that eight slots mean something on
//! a small machine. Gradients, noise, batches and resizes are real.

mod cluster;
mod error;
mod recording;
mod report;
mod scenario;
mod screen;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::OutputFormat;
use cluster::DemoCluster;
pub(crate) use error::DemoError;
use recording::Recording;
pub(crate) use report::DemoReport;
use scenario::{JOBS, Sharing};
use screen::Screen;

const LOOK: Duration = Duration::from_millis(500);
/// What is not done by then is told as such, and the whole stays within three minutes.
const TIME_MAX: Duration = Duration::from_secs(155);

/// Arguments of `pollux demo`.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// The program that trains [default: pollux-trainer beside pollux]
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,

    /// How to print the summary
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: OutputFormat,
}

/// Runs both clusters to their ends, and tells how they compare. Nothing is left behind.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<DemoReport> {
    let trainer = match &args.trainer {
        Some(trainer) => trainer.clone(),
        None => std::env::current_exe()?.with_file_name("pollux-trainer"),
    };
    if !trainer.is_file() {
        return Err(DemoError::NoTrainer { path: trainer }.into());
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let folder = tempfile::Builder::new().prefix("pollux-demo-").tempdir()?;
    let start = |sharing: Sharing| DemoCluster::start(&folder.path().join(sharing.folder()), sharing, &trainer);
    let clusters = [start(Sharing::Pollux)?, start(Sharing::Equal)?];
    let mut recordings = clusters.each_ref().map(|_| Recording::default());
    let outcome = watch(&clusters, &mut recordings, &interrupted).and_then(|()| clusters[0].pauses_s());
    std::thread::scope(|scope| {
        for cluster in clusters {
            scope.spawn(move || drop(cluster));
        }
    });
    let pauses_s = outcome?;
    let [pollux, equal] = recordings;
    Ok(DemoReport::new(&pollux, &equal, pauses_s))
}

/// Submits what arrives and looks at what becomes of it, until all of it is done.
fn watch(clusters: &[DemoCluster; 2], recordings: &mut [Recording; 2], interrupted: &AtomicBool) -> anyhow::Result<()> {
    let mut screen = Screen::open();
    let began = Instant::now();
    let mut submitted = 0;
    loop {
        let elapsed = began.elapsed();
        while let Some(job) = JOBS.get(submitted).filter(|job| f64::from(job.arrival_s) <= elapsed.as_secs_f64()) {
            for cluster in clusters {
                cluster.submit(job)?;
            }
            submitted += 1;
        }
        for (cluster, recording) in clusters.iter().zip(recordings.iter_mut()) {
            recording.add(elapsed.as_secs_f64(), cluster.jobs()?);
        }
        screen.draw(elapsed.as_secs_f64(), &recordings[0], &recordings[1]);
        let all_done = submitted == JOBS.len() && recordings.iter().all(Recording::is_over);
        if all_done || elapsed > TIME_MAX {
            return Ok(());
        }
        if interrupted.load(Ordering::Relaxed) {
            return Err(DemoError::Interrupted.into());
        }
        std::thread::sleep(LOOK.saturating_sub(began.elapsed() - elapsed));
    }
}
