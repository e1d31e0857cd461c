use pollux_policy::AutoscalerSettings;
use pollux_sim::{
    ApplicationName, Autoscale, ClusterSpec, Failures, NodeGroup, ReplicaNeeds, SimulationSettings, Workload,
    WorkloadJob,
};
use proptest::prelude::*;

use super::{POLICIES, check, settings, simulate};

/// CPUs and memory of every node.
const NODE: (u32, u64) = (12, 64);

/// When, what, replicas, batch, and what a replica needs.
type Drawn = (u64, ApplicationName, u32, u32, (u32, Option<u32>, Option<u64>));

/// Small applications, so that many can be run, and batches that each can train with.
fn job() -> impl Strategy<Value = Drawn> {
    let application = prop::sample::select(vec![ApplicationName::Ncf, ApplicationName::Cifar10, ApplicationName::Bert]);
    let gpus = prop_oneof![2 => Just(1_u32), 1 => 2..5_u32];
    let needs = (gpus, prop::option::of(1..=NODE.0), prop::option::of(1..=NODE.1));
    (0..20_000_u64, application, 1..9_u32, 8..384_u32, needs)
}

fn workload(jobs: Vec<Drawn>, nodes: u32, node_gpus: u32) -> Workload {
    let mut jobs = jobs;
    jobs.sort_by_key(|job| job.0);
    let spec = |(idx, drawn): (usize, Drawn)| {
        let (submitted_s, application, replicas, requested_batch, (gpus, cpus, memory)) = drawn;
        let gpus_per_replica = u32::min(gpus, node_gpus);
        let by_cpus = cpus.map_or(u32::MAX, |cpus| NODE.0 / cpus);
        let by_memory = memory.map_or(u32::MAX, |memory| (NODE.1 / memory) as u32);
        let room = nodes * (node_gpus / gpus_per_replica).min(by_cpus).min(by_memory);
        WorkloadJob {
            name: format!("job-{idx}"),
            submitted_s,
            requested_replicas: u32::min(replicas, room),
            requested_batch,
            needs: ReplicaNeeds { gpus_per_replica, cpus, memory, gpu_types: Vec::new() },
            ..WorkloadJob::of(application)
        }
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
        let workload = workload(jobs, nodes, node_gpus);
        let group = NodeGroup { cpus: Some(NODE.0), memory: Some(NODE.1), ..NodeGroup::of_gpus(nodes, node_gpus) };
        let band = AutoscalerSettings { nodes_max: nodes, ..AutoscalerSettings::default() };
        let autoscale = scale.map(|(interval_s, provision_s)| Autoscale { settings: band, interval_s, provision_s });
        let settings = SimulationSettings {
            interval_s,
            restart_delay_s,
            interference,
            declare_epochs,
            failures: Failures { per_node_day, repair_s: 600.0, seed },
            autoscale,
            cluster: ClusterSpec::new(vec![group]).expect("valid by construction"),
            ..settings(policy, "1x1")
        };
        check(&simulate(&settings, &workload), &workload);
    }
}
