//! The `pollux` command: it parses arguments, runs one command and prints what that returns.
//!
//! ```text
//!  arguments ──> command ──> report ──> stdout (table or JSON)
//!  files ──────────┘           └──────> stderr (notes, progress, one line per mistake)
//! ```
//!
//! Decisions are made elsewhere: `pollux fit`, `pollux sim` and `pollux experiment` ask `pollux-lab`, `pollux up` runs `pollux-server`, and what speaks to a running scheduler does so through
//! `pollux-client`. Called `kubectl-pollux`, it is a plugin of kubectl, which reaches an operator by `pollux-kubectl`. Exit codes: 0 done, 2 for a mistake in arguments or input, 130 for
//! an interruption, 1 for any other failure.

mod completions;
mod demo;
mod experiment;
mod fit;
mod live;
mod node;
mod operator;
mod output;
mod plugin;
mod progress;
mod sim;
mod table;
mod up;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;
use std::{env, io};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use pollux_backend_remote::AgentError;
use pollux_client::ClientError;
use pollux_kubectl::KubectlError;
use pollux_lab::{ExperimentError, SimError};

/// Goodput-driven scheduling of deep-learning jobs on shared GPUs.
#[derive(Parser)]
#[command(name = "pollux", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Schedule training jobs on this machine
    Up(up::UpArgs),
    /// Lend this machine's GPUs to a scheduler on another machine
    Node(Box<node::NodeArgs>),
    /// Schedule training jobs on a Kubernetes cluster; runs in a pod of it
    Operator(Box<operator::OperatorArgs>),
    #[command(flatten)]
    Live(live::LiveCommand),
    /// Watch real trainings grow, shrink and re-tune, beside the same ones under fixed equal shares
    Demo(demo::DemoArgs),
    /// Fit a throughput model to measured steps: how many GPUs should this job get?
    Fit(fit::FitArgs),
    /// Simulate whole workloads under scheduling policies: what would this cluster do?
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Answer a question about schedulers with a table and a plot: run an experiment's file
    Experiment(experiment::ExperimentArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Watch over one replica; started by the daemon.
    #[command(hide = true)]
    Shim { arguments: Vec<OsString> },
    /// Run the program of a pod; started by Kubernetes.
    #[command(hide = true)]
    Supervise(operator::SuperviseArgs),
}

fn main() -> ExitCode {
    if plugin::is_called() {
        return match plugin::Plugin::parse_arguments() {
            Ok(plugin) => conclude(plugin::run(plugin)),
            Err(error) => refuse(&error, plugin::Plugin::command()),
        };
    }
    match Cli::try_parse() {
        // Its exit code is that of its program.
        Ok(Cli { command: Command::Supervise(args) }) => operator::supervise(&args),
        Ok(Cli { command }) => conclude(run(&command)),
        Err(error) => refuse(&error, Cli::command()),
    }
}

/// How a command has ended, for whoever called it.
fn conclude(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is::<up::Logged>() {
                output::complain(&format!("{error:#}"));
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Prints the help or the version if that is what was asked for, else what is wrong with the arguments.
fn refuse(error: &clap::Error, mut pollux: clap::Command) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Whoever asked for help and closed the pipe has read enough.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
        // Every other kind is a mistake.
        _ => {
            pollux.build();
            let mut command = &pollux;
            for name in env::args_os().skip(1) {
                match command.find_subcommand(name) {
                    Some(subcommand) => command = subcommand,
                    None => break,
                }
            }
            output::complain(&usage::message(error, command));
            ExitCode::from(2)
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
            output::print(args.output, &report, |out| fit::write_text(&report, out))
        }
        Command::Sim(command) => {
            let report = sim::run(command)?;
            for note in &report.notes {
                output::note(note);
            }
            output::print(command.args().output, &report, |out| sim::write_text(&report, out))
        }
        Command::Experiment(args) => {
            let report = experiment::run(args)?;
            for note in &report.notes {
                output::note(note);
            }
            output::print(args.output, &report, |out| experiment::write_text(&report, out))
        }
        Command::Up(args) => up::run(args),
        Command::Node(args) => node::run(args),
        Command::Operator(args) => operator::run(args),
        Command::Live(command) => live::run(command),
        Command::Completions(args) => completions::run(args, &mut Cli::command()),
        Command::Demo(args) => {
            let report = demo::run(args)?;
            output::print(args.output, &report, |out| report.write_text(out))?;
            Ok(report.check()?)
        }
        Command::Shim { arguments } => Ok(pollux_backend_local::shim(arguments)?),
        Command::Supervise(_) => unreachable!("it was run before"),
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<live::LiveError>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<demo::DemoError>() {
        return error.exit_code();
    }
    let mistake = error.is::<fit::FitCommandError>()
        || error.downcast_ref::<SimError>().is_some_and(SimError::is_mistake)
        || error.downcast_ref::<ExperimentError>().is_some_and(ExperimentError::is_mistake)
        || error.downcast_ref::<up::UpError>().is_some_and(up::UpError::is_mistake)
        || error.downcast_ref::<AgentError>().is_some_and(AgentError::is_mistake)
        || error.downcast_ref::<KubectlError>().is_some_and(KubectlError::is_mistake)
        || error.downcast_ref::<ClientError>().is_some_and(ClientError::is_mistake);
    if mistake { 2 } else { 1 }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
