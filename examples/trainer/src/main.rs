//! A small network, trained for real over as many processes as there are: the example of a program that works under
//! Pollux, the demo's workload, and the test bed of changing a group while it trains.
//!
//! ```text
//!  samples ──> network ──> gradients ──┐ every rank
//!                                      v
//!                         all-reduce through rank 0 ──> brain (agent): batch, learning rate
//!                                      │                  └──> coordinator: reports, checkpoints, audit
//!                                      v
//!                  optimiser, position in the epoch ── membership: who is in the group
//! ```
//!
//! It refuses to be clever about networks: everything a larger training program must do to be resized while it runs is
//! here, and little else. `docs/worker.md` tells the protocol. Start reading at `trainer.rs`.

mod args;
mod trainer;
mod coordinator;
mod brain;
mod step;
mod share;
mod network;
mod optimiser;
mod samples;
mod rng;
mod membership;
mod joining;
mod rendezvous;
mod group;
mod wire;
mod state;
mod checkpoint;
mod audit;
mod pace;
mod error;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::Args;
use crate::trainer::{Ending, train};

/// 128 + `SIGTERM`, as shells tell it.
const TERMINATED: u8 = 143;
/// `EX_TEMPFAIL`: another try makes sense.
const TRY_AGAIN: u8 = 75;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refuse(&error),
    };
    match args.check().and_then(train) {
        Ok(Ending::Finished) => ExitCode::SUCCESS,
        Ok(Ending::Stopped) => ExitCode::from(TERMINATED),
        Ok(Ending::Cut) => ExitCode::from(TRY_AGAIN),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints the help or the version if that is what was asked for, else what is wrong with the arguments, in one line.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Whoever asked for help and closed the pipe has read enough.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    eprintln!("{}", text.lines().next().unwrap_or_default());
    ExitCode::from(2)
}
