//! Many simulations, as many at once as there are cores.

use std::sync::{Mutex, PoisonError};

use pollux_sim::{ApplicationSet, RunOutcome, SimulationError, SimulationSettings, simulate};
use rayon::ThreadPoolBuilder;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::SimError;
use super::comparison::Comparison;
use super::workloads::{Scenario, Seeded};
use crate::progress::Progress;

/// Outcomes in the order of the runs, whatever the number of threads; none is one per core.
pub(super) fn simulate_all(
    comparison: &Comparison,
    applications: &ApplicationSet,
    threads: Option<u16>,
    on_progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<RunOutcome>, SimError> {
    let runs = comparison.runs();
    let jobs = runs.iter().map(|(scenario, _)| scenario.workload.jobs().len()).sum();
    in_parallel(&runs, threads, (jobs, on_progress), |(scenario, settings), progress| {
        simulate_scenario(applications, scenario, settings, progress)
    })
}

/// Does every work on all cores, and tells how many of the jobs in all of them are finished.
pub(crate) fn in_parallel<Work: Sync, Done: Send>(
    works: &[Work],
    threads: Option<u16>,
    (jobs, on_progress): (usize, &(dyn Fn(Progress) + Sync)),
    work: impl Fn(&Work, &mut dyn FnMut(usize)) -> Result<Done, SimError> + Sync,
) -> Result<Vec<Done>, SimError> {
    let threads = threads.map_or(0, usize::from);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|reason| SimError::Threads { reason: reason.to_string() })?;
    let all_finished = Mutex::new(0);
    let one = |given: &Work| {
        let mut told = 0;
        work(given, &mut |finished: usize| {
            let mut all = all_finished.lock().unwrap_or_else(PoisonError::into_inner);
            *all += finished - told;
            told = finished;
            // Under the lock, so that the numbers rise.
            on_progress(Progress { finished: *all, jobs });
        })
    };
    // One by one: a thread that is given many at once could end long after the others.
    let done: Vec<_> = pool.install(|| works.par_iter().with_max_len(1).map(one).collect());
    done.into_iter().collect()
}

/// Simulates a workload; the outcome is called what its scenario is called.
pub(crate) fn simulate_scenario(
    applications: &ApplicationSet,
    scenario: &Scenario,
    settings: &SimulationSettings,
    progress: &mut dyn FnMut(usize),
) -> Result<RunOutcome, SimError> {
    let outcome = simulate(settings, applications, &scenario.workload, progress);
    let outcome = outcome.map_err(|source| explain(source, &scenario.label, settings))?;
    let seed = (scenario.seeded != Seeded::Nothing).then_some(scenario.seed);
    Ok(RunOutcome { workload: scenario.label.clone(), seed, ..outcome })
}

/// Whose fault it is: what the caller asked for, or what we did.
pub(crate) fn explain(reason: SimulationError, workload: &str, settings: &SimulationSettings) -> SimError {
    let workload = workload.to_owned();
    match reason {
        SimulationError::Setting(_) | SimulationError::Engine(_) | SimulationError::Autoscaler(_) => {
            SimError::Setting(reason)
        }
        SimulationError::TooLarge { .. } | SimulationError::Batch { .. } => SimError::Job { workload, reason },
        // Plans that cannot be used and runs without an end, and whatever else goes wrong within.
        _ => SimError::Run { workload, policy: settings.policy.name(), reason },
    }
}
