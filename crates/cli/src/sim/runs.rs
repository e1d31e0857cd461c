//! Many simulations, as many at once as there are cores.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use pollux_sim::{ApplicationSet, RunOutcome, SimulationError, SimulationSettings, simulate};
use rayon::ThreadPoolBuilder;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::SimError;
use super::workloads::{Scenario, Seeded};

/// What is simulated: jobs, and the world they run in.
pub(crate) type Run<'a> = (&'a Scenario, SimulationSettings);

/// Outcomes in the order of the runs, whatever the number of threads; none is one per core.
pub(crate) fn simulate_all(
    applications: &ApplicationSet,
    runs: &[Run<'_>],
    threads: Option<u16>,
) -> anyhow::Result<Vec<RunOutcome>> {
    let bar = progress_bar(runs);
    let threads = threads.map_or(0, usize::from);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().context("cannot start threads")?;
    let outcomes: Vec<_> = pool.install(|| {
        // One by one: a thread that is given many runs at once could end long after the others.
        runs.par_iter().with_max_len(1).map(|run| simulate_one(applications, run, &bar)).collect()
    });
    bar.finish_and_clear();
    outcomes.into_iter().collect()
}

fn simulate_one(
    applications: &ApplicationSet,
    (scenario, settings): &Run<'_>,
    bar: &ProgressBar,
) -> anyhow::Result<RunOutcome> {
    let mut told = 0;
    let mut progress = |finished: usize| {
        bar.inc((finished - told) as u64);
        told = finished;
    };
    let outcome = simulate(settings, applications, &scenario.workload, &mut progress);
    let outcome = outcome.map_err(|source| explain(source, scenario, settings))?;
    let seed = (scenario.seeded != Seeded::Nothing).then_some(scenario.seed);
    Ok(RunOutcome { workload: scenario.label.clone(), seed, ..outcome })
}

/// Whose fault it is: what the user asked for, or what we did.
fn explain(source: SimulationError, scenario: &Scenario, settings: &SimulationSettings) -> anyhow::Error {
    let workload = scenario.label.clone();
    match source {
        SimulationError::Setting(_) | SimulationError::Engine(_) | SimulationError::Autoscaler(_) => {
            SimError::Setting(source).into()
        }
        SimulationError::TooLarge { .. } | SimulationError::Batch { .. } => {
            SimError::Job { workload, reason: source }.into()
        }
        // Plans that cannot be used and runs without an end, and whatever else goes wrong within.
        _ => anyhow::Error::new(source).context(format!("cannot simulate {workload} under {}", settings.policy.name())),
    }
}

/// Counts finished jobs over all runs, on a terminal.
fn progress_bar(runs: &[Run<'_>]) -> ProgressBar {
    let jobs: usize = runs.iter().map(|(scenario, _)| scenario.workload.jobs().len()).sum();
    let template = "simulating {bar:30.cyan/blue} {pos}/{len} jobs {elapsed}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is ours").progress_chars("━╸─");
    ProgressBar::new(jobs as u64).with_style(style)
}
