use pollux_sim::{RunOutcome, Summary};
use serde::Serialize;

use super::comparison::{Comparison, ShownSettings};
use super::workloads::{Scenario, Seeded};

/// What became of every workload under every policy.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// Of this program.
    pub version: &'static str,
    /// The world they ran in.
    pub settings: ShownSettings,
    /// Workload by workload, policy by policy.
    pub runs: Vec<RunReport>,
    /// What the reader should know about it.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// One workload under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// What it is called.
    pub policy: String,
    /// What it is called.
    pub workload: String,
    /// Of what is random about it.
    pub seed: u64,
    /// What the seed decides.
    #[serde(skip)]
    pub seeded: Seeded,
    /// Figures over all jobs.
    #[serde(flatten)]
    pub summary: Summary,
    /// In order of submission.
    pub jobs: Vec<JobReport>,
}

/// One job of it.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    /// What it is called.
    pub name: String,
    /// What it trains.
    pub application: &'static str,
    /// When it was submitted.
    pub submitted_s: f64,
    /// When it first ran.
    pub started_s: f64,
    /// When it was done.
    pub finished_s: f64,
    /// How often its GPUs changed.
    pub restarts: u32,
    /// GPUs times seconds.
    pub gpu_seconds: f64,
    /// Seconds without GPUs.
    pub queued_s: f64,
    /// Finish-time fairness.
    pub rho: f64,
    /// Mean statistical efficiency.
    pub efficiency: f64,
}

impl SimReport {
    pub(super) fn new(comparison: Comparison, outcomes: &[RunOutcome]) -> Self {
        let runs = comparison.runs().into_iter().zip(outcomes);
        let runs = runs.map(|((scenario, _), outcome)| RunReport::new(scenario, outcome)).collect();
        Self { version: env!("CARGO_PKG_VERSION"), settings: comparison.shown, runs, notes: comparison.notes }
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
