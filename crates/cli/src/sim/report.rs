use pollux_sim::{RunOutcome, Summary};
use serde::Serialize;

use super::experiment::{Experiment, ShownSettings};
use super::workloads::{Scenario, Seeded};

/// What became of every workload under every policy.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SimReport {
    pub(super) version: &'static str,
    pub(super) settings: ShownSettings,
    pub(super) runs: Vec<RunReport>,
}

/// One workload under one policy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunReport {
    pub(super) policy: String,
    pub(super) workload: String,
    pub(super) seed: u64,
    #[serde(skip)]
    pub(super) seeded: Seeded,
    #[serde(flatten)]
    pub(super) summary: Summary,
    pub(super) jobs: Vec<JobReport>,
}

/// One job of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JobReport {
    name: String,
    application: &'static str,
    submitted_s: f64,
    started_s: f64,
    finished_s: f64,
    restarts: u32,
    gpu_seconds: f64,
    queued_s: f64,
    rho: f64,
    efficiency: f64,
}

impl SimReport {
    pub(super) fn new(experiment: &Experiment, outcomes: &[RunOutcome]) -> Self {
        let runs = experiment.runs().into_iter().zip(outcomes);
        let runs = runs.map(|((scenario, _), outcome)| RunReport::new(scenario, outcome));
        Self { version: env!("CARGO_PKG_VERSION"), settings: experiment.shown.clone(), runs: runs.collect() }
    }
}

impl RunReport {
    fn new(scenario: &Scenario, outcome: &RunOutcome) -> Self {
        let job = |job: &pollux_sim::JobOutcome| JobReport {
            name: job.name.clone(),
            application: job.application.as_str(),
            submitted_s: job.submitted_s,
            started_s: job.started_s,
            finished_s: job.finished_s,
            restarts: job.restarts,
            gpu_seconds: job.gpu_seconds,
            queued_s: job.queued_s,
            rho: job.rho,
            efficiency: job.efficiency,
        };
        Self {
            policy: outcome.policy.clone(),
            workload: outcome.workload.clone(),
            seed: scenario.seed,
            seeded: scenario.seeded,
            summary: outcome.summary(),
            jobs: outcome.jobs.iter().map(job).collect(),
        }
    }
}
