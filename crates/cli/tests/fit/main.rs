//! Runs the real binary on small files.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod notes;
mod output;
mod traces;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a run left behind.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("stdout is JSON")
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.arg("fit").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("CLICOLOR");
    command
}

fn fit<S: AsRef<OsStr>>(args: &[S]) -> Run {
    run(command().args(args), b"")
}

fn run(command: &mut Command, stdin: &[u8]) -> Run {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses its arguments never reads its input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A fresh folder for one test.
fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
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
