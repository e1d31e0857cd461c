use pollux_policy::AutoscalerSettings;
use pollux_sim::{ApplicationName, Autoscale, Failures, JobSpec, SimulationSettings, Workload};
use proptest::prelude::*;

use super::{POLICIES, check, settings, simulate};

/// Small applications, so that many can be run, and batches that each can train with.
fn job() -> impl Strategy<Value = (u64, ApplicationName, u32, u32)> {
    let application = prop::sample::select(vec![ApplicationName::Ncf, ApplicationName::Cifar10, ApplicationName::Bert]);
    (0..20_000_u64, application, 1..9_u32, 8..384_u32)
}

fn workload(jobs: Vec<(u64, ApplicationName, u32, u32)>, gpus: u32) -> Workload {
    let mut jobs = jobs;
    jobs.sort_by_key(|job| job.0);
    let spec = |(idx, (submitted_s, application, requested_replicas, requested_batch))| JobSpec {
        name: format!("job-{idx}"),
        submitted_s,
        application,
        requested_replicas: u32::min(requested_replicas, gpus),
        requested_batch,
    };
    Workload::new("random", None, jobs.into_iter().enumerate().map(spec).collect()).expect("valid by construction")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_job_of_any_workload_ends_under_any_policy(
        jobs in prop::collection::vec(job(), 1..12),
        policy in prop::sample::select(POLICIES.to_vec()),
        (nodes, node_gpus) in (1..5_u32, 1..6_u32),
        (interval_s, restart_delay_s) in (1.0..300.0_f64, 0.0..200.0_f64),
        interference in prop::sample::select(vec![0.0, 0.4]),
        per_node_day in prop::sample::select(vec![0.0, 6.0]),
        (declare_epochs, seed) in (any::<bool>(), any::<u64>()),
        scale in prop::option::of((1.0..2_000.0_f64, 0.0..2_000.0_f64)),
    ) {
        let workload = workload(jobs, nodes * node_gpus);
        let band = AutoscalerSettings { nodes_max: nodes, ..AutoscalerSettings::default() };
        let autoscale = scale.map(|(interval_s, provision_s)| Autoscale { settings: band, interval_s, provision_s });
        let settings = SimulationSettings {
            interval_s,
            restart_delay_s,
            interference,
            declare_epochs,
            failures: Failures { per_node_day, repair_s: 600.0, seed },
            autoscale,
            ..settings(policy, &format!("{nodes}x{node_gpus}"))
        };
        check(&simulate(&settings, &workload), &workload);
    }
}
