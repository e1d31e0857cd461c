//! Workloads under policies, in virtual time.
//!
//! ```text
//!  SimOptions ──> Comparison ──> runs, one per policy and scenario ──> SimReport, page
//!  files ────────────┘            (all cores)
//! ```

mod comparison;
mod error;
mod options;
mod page;
mod report;
pub(crate) mod runs;
pub(crate) mod workloads;

use pollux_sim::{ApplicationSet, RunOutcome};

use comparison::Comparison;
pub use comparison::{RandomJobs, ShownSettings};
pub use error::SimError;
pub use options::{NodeRange, SimOptions};
pub use report::{JobReport, RunReport, SimReport};
pub use workloads::Seeded;

use crate::progress::Progress;

/// Simulates every workload under every policy; draws the page if there should be one.
pub fn simulate(options: &SimOptions, on_progress: &(dyn Fn(Progress) + Sync)) -> Result<SimReport, SimError> {
    let applications = comparison::applications(options)?;
    let comparison = Comparison::resolve(options, &applications)?;
    // Before the work: an hour of simulation is a bad time to learn that its page cannot be written.
    let page = options.report.as_deref().map(page::prepare).transpose()?;
    let outcomes = runs::simulate_all(&comparison, &applications, options.threads, on_progress)?;
    if let Some(path) = page {
        page::write(&path, &comparison, &outcomes)?;
    }
    Ok(SimReport::new(comparison, &outcomes))
}

/// Simulates likewise, jobs being what `applications` says whatever the traces, and returns everything that was recorded
/// instead of a report and a page.
pub fn outcomes(
    options: &SimOptions,
    applications: &ApplicationSet,
    on_progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<RunOutcome>, SimError> {
    let comparison = Comparison::resolve(options, applications)?;
    runs::simulate_all(&comparison, applications, options.threads, on_progress)
}
