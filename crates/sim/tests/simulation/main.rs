//! Whole workloads under every policy; debug builds also check the engine's invariants after every event.

mod any_workload;
mod autoscaling;
mod disturbances;
mod lifetimes;
mod policies;
mod resources;
mod sweeps;
mod sharing;
mod waiting;

use pollux_policy::PolicySettings;
use pollux_sim::{ApplicationSet, ClusterSpec, GeneratorSettings, RunOutcome, SimulationSettings, Workload};

const POLICIES: [&str; 13] = [
    "pollux",
    "castor",
    "sia",
    "gavel",
    "optimus",
    "optimus-oracle",
    "tiresias",
    "themis",
    "gandiva",
    "antman",
    "slaq",
    "srtf",
    "fifo",
];

fn settings(policy: &str, cluster: &str) -> SimulationSettings {
    let cluster: ClusterSpec = cluster.parse().expect("a cluster");
    SimulationSettings::new(PolicySettings::named(policy).expect("a policy"), cluster)
}

fn generated(jobs: u32, seed: u64) -> Workload {
    let settings = GeneratorSettings { jobs, seed, requested_replicas_max: 16, ..GeneratorSettings::default() };
    pollux_sim::generate(&settings, &ApplicationSet::parametric()).expect("a workload")
}

fn simulate(settings: &SimulationSettings, workload: &Workload) -> RunOutcome {
    pollux_sim::simulate(settings, &ApplicationSet::parametric(), workload, &mut |_| ()).expect("a simulation")
}

/// What holds for every run, however it went.
fn check(outcome: &RunOutcome, workload: &Workload) {
    let context = format!("{} under {}", outcome.workload, outcome.policy);
    assert_eq!(outcome.jobs.len(), workload.jobs().len(), "{context}");
    for (job, spec) in outcome.jobs.iter().zip(workload.jobs()) {
        assert_eq!((&job.name, job.submitted_s), (&spec.name, spec.submitted_s as f64), "{context}");
        assert!(job.submitted_s <= job.started_s && job.started_s < job.finished_s, "{context}: {job:?}");
        let held_s = job.completion_s() - job.queued_s;
        assert!(held_s > 0.0 && job.queued_s >= 0.0, "{context}: {job:?}");
        let most = held_s * f64::from(outcome.gpus);
        assert!(job.gpu_seconds >= held_s - 1e-3 && job.gpu_seconds <= most + 1e-3, "{context}: {job:?}");
        assert!(job.rho.is_finite() && job.rho > 0.0, "{context}: {job:?}");
        assert!(job.efficiency > 0.0, "{context}: {job:?}");
    }
    let summary = outcome.summary();
    let gpu_seconds: f64 = outcome.jobs.iter().map(|job| job.gpu_seconds).sum();
    assert!((summary.gpu_hours * 3600.0 - gpu_seconds).abs() < 1e-6 * gpu_seconds.max(1.0), "{context}");
    // Two jobs that share a GPU both hold it.
    let jobs_per_gpu = if matches!(&*outcome.policy, "gandiva" | "antman") { 2.0 } else { 1.0 };
    assert!(summary.utilisation > 0.0 && summary.utilisation <= jobs_per_gpu + 1e-9, "{context}: {summary:?}");
    assert!(summary.p50_jct_s <= summary.p99_jct_s && summary.p99_jct_s <= summary.makespan_s, "{context}");
}
