//! Runs the real binary on small files.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

#[path = "../binary/mod.rs"]
mod binary;

mod bad_input;
mod notes;
mod output;
mod traces;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use binary::{Run, fresh_folder, pollux, run};

fn command() -> Command {
    pollux("fit")
}

fn fit<S: AsRef<OsStr>>(args: &[S]) -> Run {
    run(command().args(args), b"")
}

/// A fresh folder for one test.
fn folder(test: &str) -> PathBuf {
    fresh_folder("fit", test)
}

/// Steps of a job with 10 ms overhead, 1 ms per sample, and synchronisation that nothing hides: 5 ms within a node and
/// 20 ms between nodes, each 1 ms more for a further GPU.
fn measured_job() -> String {
    let mut csv = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n".to_owned();
    for (nodes, replicas) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (2, 8), (4, 16)] {
        for local_batch in [16, 32, 64] {
            let compute_s = 0.010 + 0.001 * f64::from(local_batch);
            let further = 0.001 * f64::from(replicas - 2);
            let sync_s = match (nodes, replicas) {
                (_, 1) => 0.0,
                (1, _) => 0.005 + further,
                _ => 0.020 + further,
            };
            csv += &format!("{nodes},{replicas},{local_batch},{},{sync_s}\n", compute_s + sync_s);
        }
    }
    csv
}
