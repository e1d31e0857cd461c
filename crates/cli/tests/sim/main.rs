//! Runs the real binary on small workloads.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

#[path = "../binary/mod.rs"]
mod binary;

mod bad_input;
mod output;
mod page;

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use binary::{Run, fresh_folder, pollux, run};

fn command() -> Command {
    pollux("sim")
}

fn sim<S: AsRef<OsStr>>(args: &[S]) -> Run {
    run(command().args(args), b"")
}

/// A fresh folder for one test.
fn folder(test: &str) -> PathBuf {
    fresh_folder("sim", test)
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
