//! `pollux sim`: workloads under policies, in virtual time.
//!
//! ```text
//!  arguments ──> Experiment ──> runs, one per policy and scenario ──> table, JSON, page
//!  files ───────────┘             (all cores)
//! ```

pub(crate) mod args;
mod error;
mod experiment;
mod page;
mod report;
pub(crate) mod runs;
mod text;
pub(crate) mod workloads;

use clap::Subcommand;

use args::SimArgs;
pub(crate) use error::SimError;
use experiment::Experiment;
use report::SimReport;

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

/// Simulates what was asked for; draws the page if there should be one.
pub(crate) fn run(command: &SimCommand) -> anyhow::Result<SimReport> {
    let args = command.args();
    let experiment = Experiment::resolve(args, command.default_policies())?;
    // Before the work: an hour of simulation is a bad time to learn that its page cannot be written.
    let page = args.report.as_deref().map(page::prepare).transpose()?;
    let outcomes = runs::simulate_all(&experiment.applications, &experiment.runs(), experiment.threads)?;
    if let Some(path) = page {
        page::write(&path, &experiment, &outcomes)?;
    }
    Ok(SimReport::new(&experiment, &outcomes))
}
