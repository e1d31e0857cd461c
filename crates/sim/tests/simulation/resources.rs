use pollux_job::PodsPer;
use pollux_sim::{ApplicationName, ClusterSpec, NodeGroup, ReplicaNeeds, RunOutcome, Workload, WorkloadJob};

use super::{POLICIES, check, settings, simulate};

fn job(name: &str, replicas: u32, needs: ReplicaNeeds) -> WorkloadJob {
    WorkloadJob {
        name: name.to_owned(),
        requested_replicas: replicas,
        requested_batch: 256,
        needs,
        ..WorkloadJob::of(ApplicationName::Cifar10)
    }
}

fn gpus(gpus_per_replica: u32) -> ReplicaNeeds {
    ReplicaNeeds { gpus_per_replica, ..ReplicaNeeds::default() }
}

fn run(policy: &str, groups: Vec<NodeGroup>, jobs: Vec<WorkloadJob>) -> RunOutcome {
    let mut settings = settings(policy, "1x1");
    settings.cluster = ClusterSpec::new(groups).expect("a cluster");
    settings.record_series = true;
    let workload = Workload::new("resources", None, jobs).expect("a workload");
    let outcome = simulate(&settings, &workload);
    check(&outcome, &workload);
    outcome
}

#[test]
fn replicas_of_several_gpus_are_billed_for_all_of_them() {
    for policy in POLICIES {
        let jobs = vec![job("four", 1, gpus(4)), job("three", 1, gpus(3)), job("one", 2, gpus(1))];
        let outcome = run(policy, vec![NodeGroup::of_gpus(2, 4)], jobs);
        for (job, gpus) in outcome.jobs.iter().zip([4.0, 3.0, 1.0]) {
            let held_s = job.completion_s() - job.queued_s;
            let replicas = job.gpu_seconds / gpus / held_s;
            assert!(replicas > 1.0 - 1e-6, "{policy}: {job:?}");
            assert!(job.series.iter().all(|sample| f64::from(sample.replicas) * gpus <= 8.0), "{policy}: {job:?}");
        }
        assert!(outcome.cluster.iter().all(|sample| sample.gpus_used <= 8), "{policy}");
    }
}

#[test]
fn cpus_and_memory_of_nodes_bound_what_runs_at_once() {
    let needs = |cpus, memory| ReplicaNeeds { cpus, memory, ..ReplicaNeeds::default() };
    for policy in POLICIES {
        let node = NodeGroup { cpus: Some(4), memory: Some(64), ..NodeGroup::of_gpus(2, 8) };
        let jobs = vec![job("cpus", 1, needs(Some(4), None)), job("memory", 1, needs(None, Some(40)))];
        let outcome = run(policy, vec![node], jobs);
        for job in &outcome.jobs {
            assert!(job.series.iter().all(|sample| sample.replicas <= 2), "{policy}: one on each node: {job:?}");
        }
    }
}

#[test]
fn a_job_that_fits_no_node_is_refused() {
    let refused = |needs: ReplicaNeeds| {
        let mut settings = settings("fifo", "1x1");
        let node =
            NodeGroup { cpus: Some(4), memory: Some(64), gpu_type: Some("t4".into()), ..NodeGroup::of_gpus(2, 4) };
        settings.cluster = ClusterSpec::new(vec![node]).expect("a cluster");
        let workload = Workload::new("resources", None, vec![job("a", 1, needs)]).expect("a workload");
        let applications = pollux_sim::ApplicationSet::parametric();
        pollux_sim::simulate(&settings, &applications, &workload, &mut |_| ()).unwrap_err().to_string()
    };
    let needs = ReplicaNeeds::default();
    for needs in
        [gpus(5), ReplicaNeeds { cpus: Some(5), ..needs.clone() }, ReplicaNeeds { memory: Some(65), ..needs.clone() }]
    {
        assert_eq!(refused(needs), "job a asks for 1 replicas; expected up to the 0 that fit the cluster");
    }
    let absent = ReplicaNeeds { gpu_types: vec!["a100".into()], ..needs };
    assert_eq!(refused(absent), "job a may run on a100 only; expected a type of GPU that the cluster has");
}

#[test]
fn jobs_run_on_the_types_they_allow() {
    let types = |names: &[&str]| ReplicaNeeds {
        gpu_types: names.iter().map(|&name| name.to_owned()).collect(),
        ..ReplicaNeeds::default()
    };
    let group = |name: &str, gpus| NodeGroup { gpu_type: Some(name.to_owned()), ..NodeGroup::of_gpus(1, gpus) };
    for policy in POLICIES {
        let jobs = vec![job("small", 1, types(&["t4"])), job("large", 2, types(&["a100"])), job("any", 1, types(&[]))];
        let outcome = run(policy, vec![group("t4", 1), group("a100", 4)], jobs);
        assert!(outcome.jobs[0].series.iter().all(|sample| sample.replicas <= 1), "{policy}: there is one t4");
        assert!(outcome.jobs.iter().all(|job| job.series.iter().all(|sample| sample.replicas <= 4)), "{policy}");
    }
}

#[test]
fn a_pod_per_node_makes_growth_inside_a_node_a_restart_and_growth_by_nodes_none() {
    let completion_s = |nodes: &str, pods_per: PodsPer| {
        let mut settings = settings("pollux", nodes);
        (settings.resize_delay_s, settings.pods_per) = (Some(1.0), pods_per);
        let workload = Workload::new("growth", None, vec![job("alone", 1, gpus(1))]).expect("a workload");
        let outcome = simulate(&settings, &workload);
        check(&outcome, &workload);
        outcome.jobs[0].completion_s()
    };
    let [by_replica, by_node] = [PodsPer::Replica, PodsPer::Node].map(|per| completion_s("1x4", per));
    assert!(by_node > by_replica, "{by_node} s, {by_replica} s");
    let [by_replica, by_node] = [PodsPer::Replica, PodsPer::Node].map(|per| completion_s("4x1", per));
    assert!((by_node - by_replica).abs() < 30.0, "{by_node} s, {by_replica} s: no restart is between them");
}
