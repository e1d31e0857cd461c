use pollux_sim::{ApplicationSet, RunOutcome, SimulationSettings, Sweep, SweepOutcome, simulate_sweep};

use crate::sim::SimError;
use crate::sim::runs::{explain, simulate_scenario};
use crate::sim::workloads::Scenario;

/// What there is to do.
pub(super) enum Work {
    Scenario(Scenario),
    Sweep(Sweep),
}

/// What became of it.
pub(super) enum Outcome {
    Run(RunOutcome),
    Sweep(SweepOutcome),
}

impl Work {
    /// What reports call it.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Scenario(scenario) => scenario.label.clone(),
            Self::Sweep(sweep) => format!("sweep-{}", sweep.seed),
        }
    }

    pub(super) fn jobs(&self) -> usize {
        match self {
            Self::Scenario(scenario) => scenario.workload.jobs().len(),
            Self::Sweep(sweep) => sweep.trials as usize,
        }
    }

    pub(super) fn simulate(
        &self,
        settings: &SimulationSettings,
        applications: &ApplicationSet,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Outcome, SimError> {
        match self {
            Self::Scenario(scenario) => simulate_scenario(applications, scenario, settings, progress).map(Outcome::Run),
            Self::Sweep(sweep) => {
                let outcome = simulate_sweep(settings, applications, sweep, progress);
                outcome.map(Outcome::Sweep).map_err(|source| explain(source, &self.label(), settings))
            }
        }
    }
}

impl Outcome {
    /// The run, unless it is a sweep, which has no jobs to look at.
    pub(super) const fn run(&self) -> Option<&RunOutcome> {
        match self {
            Self::Run(run) => Some(run),
            Self::Sweep(_) => None,
        }
    }
}
