//! Runs the real binary on small workloads.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod output;
mod page;

use std::ffi::OsStr;
use std::fs;
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
    command.arg("sim").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env_remove("CLICOLOR").stdin(Stdio::null());
    command
}

fn sim<S: AsRef<OsStr>>(args: &[S]) -> Run {
    let output = command().args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A fresh folder for one test.
fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sim").join(test);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Three jobs that are done within the hour.
const WORKLOAD: &str = "name,time,application,num_replicas,batch_size\n\
    first,0,cifar10,4,1024\nsecond,30,ncf,1,32768\nthird,600,cifar10,2,512\n";

/// A file of that name in a fresh folder.
fn workload(test: &str, text: &str) -> PathBuf {
    let path = folder(test).join("jobs.csv");
    fs::write(&path, text).unwrap();
    path
}
