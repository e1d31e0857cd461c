//! Commands that speak to a running scheduler.
//!
//! ```text
//!  arguments ──> Client ──> api types ──> table or JSON
//!  state folder ───┘ (address, token)
//! ```

mod act;
mod alloc;
mod dashboard;
mod describe;
mod doctor;
mod error;
mod events;
mod explain;
mod export;
mod room;
mod job_file;
mod log_lines;
mod logs;
mod lookup;
mod nodes;
mod priority;
mod prune;
mod ps;
mod reconnect;
mod sanitizer;
mod server_args;
mod size_args;
mod submit;
mod text;
mod token;
mod top;
mod treatment_args;
mod watch;
mod what_if;

use clap::Subcommand;
use pollux_client::{JobAction, NodeAction};

pub(crate) use error::LiveError;
pub(crate) use server_args::{ServerArgs, StateArgs};
pub(crate) use size_args::SizeArgs;
pub(crate) use submit::variable;
pub(crate) use text::count;
pub(crate) use treatment_args::TreatmentArgs;

/// What can be asked of a running scheduler.
#[derive(Debug, Subcommand)]
pub(crate) enum LiveCommand {
    /// Submit a job
    Submit(Box<submit::SubmitArgs>),
    #[command(flatten)]
    View(ViewCommand),
    /// Cancel jobs
    Cancel(act::JobsArgs),
    /// Pause jobs: they give up their GPUs until they are resumed
    Pause(act::JobsArgs),
    /// Resume paused jobs
    Resume(act::JobsArgs),
    /// Drain nodes: move jobs away, and start nothing new there
    Drain(act::NodesArgs),
    /// Use drained nodes again
    Undrain(act::NodesArgs),
    /// Delete old checkpoints of finished jobs
    Prune(prune::PruneArgs),
    /// Check what this machine has, and whether `pollux.torch` works on it
    Doctor(doctor::DoctorArgs),
    /// Show, create, list and revoke access tokens
    Token(token::TokenArgs),
    /// Have nodes asked of Slurm and given back, as jobs are worth them
    Alloc(Box<alloc::AllocArgs>),
}

/// What can be seen of a running scheduler.
#[derive(Debug, Subcommand)]
pub(crate) enum ViewCommand {
    /// List jobs
    Ps(ps::PsArgs),
    /// Show everything about a job
    Describe(describe::DescribeArgs),
    /// Explain why a job has its GPUs, and what more or fewer would change
    Explain(explain::ExplainArgs),
    /// Predict when jobs finish, as things are or with other jobs, nodes or policy
    WhatIf(Box<what_if::WhatIfArgs>),
    /// Print the logs of a job
    Logs(logs::LogsArgs),
    /// Print past events
    Events(events::EventsArgs),
    /// List nodes and the jobs on them, or remove machines that have joined
    Nodes(nodes::NodesArgs),
    /// Watch the cluster live
    Top(top::TopArgs),
    /// Print or open the link to the dashboard
    Dashboard(dashboard::DashboardArgs),
}

impl ViewCommand {
    /// Which scheduler it is about.
    pub(crate) fn server(&mut self) -> &mut ServerArgs {
        match self {
            Self::Ps(args) => &mut args.server,
            Self::Describe(args) => &mut args.server,
            Self::Explain(args) => &mut args.server,
            Self::WhatIf(args) => &mut args.server,
            Self::Logs(args) => &mut args.server,
            Self::Events(args) => &mut args.server,
            Self::Nodes(args) => &mut args.server,
            Self::Top(args) => &mut args.server,
            Self::Dashboard(args) => &mut args.server,
        }
    }
}

/// Asks, and prints the answer.
pub(crate) fn view(command: &ViewCommand) -> anyhow::Result<()> {
    match command {
        ViewCommand::Ps(args) => ps::run(args),
        ViewCommand::Describe(args) => describe::run(args),
        ViewCommand::Explain(args) => explain::run(args),
        ViewCommand::WhatIf(args) => what_if::run(args),
        ViewCommand::Logs(args) => logs::run(args),
        ViewCommand::Events(args) => events::run(args),
        ViewCommand::Nodes(args) => nodes::run(args),
        ViewCommand::Top(args) => top::run(args),
        ViewCommand::Dashboard(args) => dashboard::run(args),
    }
}

/// Asks, and prints the answer.
pub(crate) fn run(command: &LiveCommand) -> anyhow::Result<()> {
    match command {
        LiveCommand::Submit(args) => submit::run(args),
        LiveCommand::View(command) => view(command),
        LiveCommand::Cancel(args) => act::run_on_jobs(args, JobAction::Cancel),
        LiveCommand::Pause(args) => act::run_on_jobs(args, JobAction::Pause),
        LiveCommand::Resume(args) => act::run_on_jobs(args, JobAction::Resume),
        LiveCommand::Drain(args) => act::run_on_nodes(args, NodeAction::Drain),
        LiveCommand::Undrain(args) => act::run_on_nodes(args, NodeAction::Undrain),
        LiveCommand::Prune(args) => prune::run(args),
        LiveCommand::Doctor(args) => doctor::run(args),
        LiveCommand::Token(args) => token::run(args),
        LiveCommand::Alloc(args) => alloc::run(args),
    }
}
