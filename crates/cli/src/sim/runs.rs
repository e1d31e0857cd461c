//! Many simulations, as many at once as there are cores.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use pollux_sim::{ApplicationSet, RunOutcome, SimulationError, SimulationSettings, simulate};
use rayon::ThreadPoolBuilder;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::SimError;
use super::workloads::{Scenario, Seeded};

/// Outcomes in the order of the runs, whatever the number of threads; none is one per core.
pub(super) fn simulate_all(
    applications: &ApplicationSet,
    runs: &[(&Scenario, SimulationSettings)],
    threads: Option<u16>,
) -> anyhow::Result<Vec<RunOutcome>> {
    let jobs = runs.iter().map(|(scenario, _)| scenario.workload.jobs().len()).sum();
    in_parallel(runs, jobs, threads, |(scenario, settings), progress| {
        simulate_scenario(applications, scenario, settings, progress)
    })
}

/// Does every work on all cores, and shows on a terminal how many of the jobs in all of them are finished.
pub(crate) fn in_parallel<Work: Sync, Done: Send>(
    works: &[Work],
    jobs: usize,
    threads: Option<u16>,
    work: impl Fn(&Work, &mut dyn FnMut(usize)) -> anyhow::Result<Done> + Sync,
) -> anyhow::Result<Vec<Done>> {
    let bar = progress_bar(jobs);
    let threads = threads.map_or(0, usize::from);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().context("cannot start threads")?;
    let one = |given: &Work| {
        let mut told = 0;
        work(given, &mut |finished: usize| {
            bar.inc((finished - told) as u64);
            told = finished;
        })
    };
    // One by one: a thread that is given many at once could end long after the others.
    let done: Vec<_> = pool.install(|| works.par_iter().with_max_len(1).map(one).collect());
    bar.finish_and_clear();
    done.into_iter().collect()
}

/// Simulates a workload; the outcome is called what its scenario is called.
pub(crate) fn simulate_scenario(
    applications: &ApplicationSet,
    scenario: &Scenario,
    settings: &SimulationSettings,
    progress: &mut dyn FnMut(usize),
) -> anyhow::Result<RunOutcome> {
    let outcome = simulate(settings, applications, &scenario.workload, progress);
    let outcome = outcome.map_err(|source| explain(source, &scenario.label, settings))?;
    let seed = (scenario.seeded != Seeded::Nothing).then_some(scenario.seed);
    Ok(RunOutcome { workload: scenario.label.clone(), seed, ..outcome })
}

/// Whose fault it is: what the user asked for, or what we did.
pub(crate) fn explain(source: SimulationError, workload: &str, settings: &SimulationSettings) -> anyhow::Error {
    let workload = workload.to_owned();
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

fn progress_bar(jobs: usize) -> ProgressBar {
    let template = "simulating {bar:30.cyan/blue} {pos}/{len} jobs {elapsed}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is ours").progress_chars("━╸─");
    ProgressBar::new(jobs as u64).with_style(style)
}
