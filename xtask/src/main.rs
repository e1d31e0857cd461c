//! `cargo xtask`: the checks and measurements of this workspace that are programs of their own.

mod bench;
mod connections;
mod deny;
mod instances;
mod load;
mod reference;
mod rounds;
mod simulations;
mod tidy;

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check layout, purity, manifests and leftovers; exit code 1 if something is found
    Tidy {
        /// Root of the workspace to check
        #[arg(default_value_os_t = root(), hide_default_value = true)]
        root: PathBuf,
    },
    /// Check licenses, versions and sources of all dependencies against deny.toml; exit code 1 if something is found
    Deny {
        /// Root of the workspace to check
        #[arg(default_value_os_t = root(), hide_default_value = true)]
        root: PathBuf,
    },
    /// Compare our model with the published implementation's recorded results, as one JSON object
    Reference {
        /// Folder with any of fits.json, goodput.json and instances.json
        #[arg(default_value_os_t = root().join("../shared/reference"), hide_default_value = true)]
        folder: PathBuf,
    },
    /// Measure fit and best batch beside the recorded results
    Bench {
        /// Folder with any of fits.json, goodput.json and instances.json
        #[arg(default_value_os_t = root().join("../shared/reference"), hide_default_value = true)]
        folder: PathBuf,
    },
    /// Let 10,000 workers hold long polls of a scheduler, and measure it
    Connections {
        /// The pollux to run
        program: PathBuf,
        /// A state folder, which must not exist
        state: PathBuf,
    },
    /// Fill a state folder with 100,000 finished jobs, for measurements of what shows them
    Crowd {
        /// The pollux to run one of them with
        program: PathBuf,
        /// The state folder
        state: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Tidy { root } => tidy::tidy(&root).map(|findings| report("tidy", &findings)),
        Command::Deny { root } => deny::deny(&root).map(|findings| report("deny", &findings)),
        Command::Reference { folder } => reference(&folder),
        Command::Crowd { program, state } => load::finish_jobs(&program, &state).map(|()| ExitCode::SUCCESS),
        Command::Connections { program, state } => connections::measure(&program, &state, connections::WORKERS)
            .map(|cost| connections::print(&cost))
            .map(|()| ExitCode::SUCCESS),
        Command::Bench { folder } => bench::bench(&root(), &folder, &data()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// The workspace whose cargo runs this binary.
fn root() -> PathBuf {
    // Asked at run time first: checkouts that share a target folder share the compiled binary.
    let built_in = || env!("CARGO_MANIFEST_DIR").into();
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(built_in)).join("..")
}

/// Where recorded traces and workloads are.
fn data() -> PathBuf {
    env::var_os("POLLUX_DATA").map_or_else(|| root().join("../shared/data"), PathBuf::from)
}

/// Prints what a check found, one a line.
fn report(check: &str, findings: &[impl Display]) -> ExitCode {
    for finding in findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {check} findings: {}", findings.len());
    ExitCode::FAILURE
}

fn reference(folder: &Path) -> anyhow::Result<ExitCode> {
    println!("{}", serde_json::to_string_pretty(&reference::compare(folder)?)?);
    Ok(ExitCode::SUCCESS)
}
