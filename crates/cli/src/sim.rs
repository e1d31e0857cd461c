//! `pollux sim`: workloads under policies, in virtual time.

mod args;
mod text;

use clap::Subcommand;
use pollux_lab::{SimError, SimOptions, SimReport, labelled_policy};

use args::SimArgs;
pub(crate) use args::threads;
pub(crate) use text::write_text;

use crate::progress::JobsBar;

/// What `pollux sim` can do. Both take the same arguments and differ in the policies that are simulated by default.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Simulate workloads under one policy: pollux, unless another is asked for
    Run(SimArgs),
    /// Simulate workloads under several policies, side by side
    Compare(SimArgs),
}

impl SimCommand {
    /// What was asked for.
    pub(crate) const fn args(&self) -> &SimArgs {
        match self {
            Self::Run(args) | Self::Compare(args) => args,
        }
    }

    const fn default_policies(&self) -> &'static [&'static str] {
        match self {
            Self::Run(_) => &["pollux"],
            Self::Compare(_) => &["pollux", "castor", "tiresias", "srtf", "fifo"],
        }
    }
}

/// Simulates what was asked for, and draws the page if there should be one.
pub(crate) fn run(command: &SimCommand) -> Result<SimReport, SimError> {
    let args = command.args();
    let given: Vec<&str> = args.policy.iter().map(String::as_str).collect();
    let names = if given.is_empty() { command.default_policies() } else { &given };
    let policies = names.iter().map(|name| labelled_policy(name)).collect::<Result<_, _>>()?;
    let bar = JobsBar::start();
    pollux_lab::simulate(&SimOptions { policies, ..args.options() }, &|progress| bar.show(progress))
}
