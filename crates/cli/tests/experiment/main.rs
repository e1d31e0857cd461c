//! Runs the real binary on small experiments.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

#[path = "../binary/mod.rs"]
mod binary;

mod bad_input;
mod output;
mod recorded;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use binary::{Run, fresh_folder, pollux, run};

/// Two policies on a few generated jobs.
const SMALL: &str = r#"
title = "Small"
question = "Does it run?"
paper = "Nothing."
workloads = ["generated"]
seeds = [0, 1]
measures = ["avg_jct_h", "makespan_h"]
settings = { jobs = 6, cluster = "2x4" }
rows = [
  { label = "FIFO", policy = "fifo", expected = { avg_jct_h = 1 } },
  { label = "Tiresias", policy = { policy = "tiresias" }, requests = "realistic" },
]
plot = { kind = "bars", measures = ["avg_jct_h"] }
"#;

/// A fresh folder with an experiment in `small`.
fn experiment(test: &str, text: &str) -> PathBuf {
    let folder = fresh_folder("experiment", test);
    fs::create_dir(folder.join("small")).unwrap();
    fs::write(folder.join("small/experiment.toml"), text).unwrap();
    folder
}

/// `pollux experiment small` in a folder, on a machine without recorded data.
fn command(folder: &Path) -> Command {
    let mut command = pollux("experiment");
    command.current_dir(folder).env("POLLUX_DATA", folder.join("nowhere")).arg("small");
    command
}

fn run_in(folder: &Path, args: &[&str]) -> Run {
    run(command(folder).args(args), b"")
}
