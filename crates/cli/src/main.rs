//! The `pollux` command: it parses arguments, runs one command and prints what that returns.
//!
//! ```text
//!  arguments ──> command ──> report ──> stdout (table or JSON)
//!  files ──────────┘           └──────> stderr (notes, progress, one line per mistake)
//! ```
//!
//! Decisions are made elsewhere: `pollux fit` asks `pollux-model`, `pollux sim` asks `pollux-sim`. Exit codes: 0 done, 2 for a mistake in arguments
//! or input, 1 for any other failure.

mod fit;
mod measurements;
mod output;
mod progress;
mod sim;
mod table;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Goodput-driven scheduling of deep-learning jobs on shared GPUs.
#[derive(Parser)]
#[command(name = "pollux", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fit a throughput model to measured steps: how many GPUs should this job get?
    Fit(fit::FitArgs),
    /// Simulate whole workloads under scheduling policies: what would this cluster do?
    #[command(subcommand)]
    Sim(sim::SimCommand),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Fit(args) => {
            let report = fit::run(args)?;
            for note in &report.notes {
                output::note(note);
            }
            output::print(args.output, &report, |out| report.write_text(out))
        }
        Command::Sim(command) => {
            let report = sim::run(command)?;
            output::print(command.args().output, &report, |out| report.write_text(out))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<fit::FitError>() || error.is::<sim::SimError>() { 2 } else { 1 }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
