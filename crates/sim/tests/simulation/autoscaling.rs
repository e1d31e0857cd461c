use pollux_policy::AutoscalerSettings;
use pollux_sim::{
    ApplicationName, ApplicationSet, Autoscale, ClusterSample, Failures, RunOutcome, SimulationSettings, TuneFor,
    Workload, WorkloadJob,
};

use super::{POLICIES, check, generated, settings, simulate};

fn scaled(policy: &str, nodes_min: u32, nodes_max: u32) -> SimulationSettings {
    let settings = settings(policy, "8x4");
    let band = AutoscalerSettings { nodes_min, nodes_max, ..AutoscalerSettings::default() };
    let autoscale = Some(Autoscale { settings: band, ..Autoscale::default() });
    SimulationSettings { autoscale, record_series: true, ..settings }
}

fn alone(application: ApplicationName) -> Workload {
    let job = WorkloadJob {
        name: application.to_string(),
        submitted_s: 30,
        requested_replicas: 1,
        requested_batch: 128,
        ..WorkloadJob::of(application)
    };
    Workload::new("alone", None, vec![job]).expect("one job")
}

/// Node-seconds of the samples, from the first submission to the last completion.
fn node_s(outcome: &RunOutcome) -> f64 {
    let first_s = outcome.jobs.iter().map(|job| job.submitted_s).fold(f64::INFINITY, f64::min);
    let last_s = outcome.jobs.iter().map(|job| job.finished_s).fold(0.0, f64::max);
    let ends = outcome.cluster.iter().skip(1).map(|sample| sample.time_s).chain([last_s]);
    let span = |(sample, end_s): (&ClusterSample, f64)| (end_s - sample.time_s.max(first_s)).max(0.0);
    outcome.cluster.iter().zip(ends).map(|pair| span(pair) * f64::from(pair.0.nodes)).sum()
}

#[test]
fn every_policy_finishes_on_nodes_that_come_and_go() {
    let workload = generated(30, 1);
    for policy in POLICIES {
        for per_node_day in [0.0, 24.0] {
            let failures = Failures { per_node_day, repair_s: 900.0, seed: 1 };
            let settings = SimulationSettings { failures, ..scaled(policy, 1, 8) };
            let outcome = simulate(&settings, &workload);
            check(&outcome, &workload);
            assert_eq!(outcome, simulate(&settings, &workload), "{policy}: the same inputs give the same bits");
            assert!(outcome.cluster.iter().all(|sample| sample.gpus_used <= 4 * sample.nodes), "{policy}");
            assert!(outcome.cluster.iter().all(|sample| sample.nodes <= 8), "{policy}");
            let counts = outcome.cluster.iter().map(|sample| sample.nodes);
            assert!(counts.clone().max() > counts.min(), "{policy}: nothing was scaled");
        }
    }
}

#[test]
fn nodes_come_when_they_were_ordered_and_provisioned() {
    let outcome = simulate(&scaled("pollux", 2, 8), &alone(ApplicationName::Imagenet));
    let changes: Vec<(f64, u32)> = outcome
        .cluster
        .windows(2)
        .filter(|pair| pair[1].nodes > pair[0].nodes)
        .map(|pair| (pair[1].time_s, pair[1].nodes))
        .collect();
    assert!(!changes.is_empty() && changes.iter().all(|&(at_s, _)| at_s % 300.0 == 120.0), "{changes:?}");
    assert_eq!((outcome.cluster[0].nodes, outcome.gpus), (2, 32));
}

#[test]
fn nodes_leave_when_the_work_is_gone() {
    let mut jobs = vec![];
    for (idx, submitted_s) in [0, 0, 0, 0, 40_000].into_iter().enumerate() {
        let application = ApplicationName::Cifar10;
        let (requested_replicas, requested_batch) = (4, 512);
        let name = idx.to_string();
        jobs.push(WorkloadJob {
            name,
            submitted_s,
            requested_replicas,
            requested_batch,
            ..WorkloadJob::of(application)
        });
    }
    let workload = Workload::new("two waves", None, jobs).expect("a workload");
    for policy in ["pollux", "castor", "fifo"] {
        let outcome = simulate(&scaled(policy, 1, 4), &workload);
        check(&outcome, &workload);
        let most = outcome.cluster.iter().map(|sample| sample.nodes).max();
        assert!(most >= Some(3), "{policy}: {most:?}");
        let before = outcome.cluster.iter().rfind(|sample| sample.time_s < 40_000.0);
        assert_eq!(before.map(|sample| (sample.nodes, sample.gpus_used)), Some((1, 0)), "{policy}");
    }
}

#[test]
fn the_bill_is_what_the_samples_say() {
    let workload = generated(20, 2);
    let outcome = simulate(&scaled("castor", 1, 8), &workload);
    let summary = outcome.summary();
    let billed_s = summary.node_hours * 3600.0;
    assert!((billed_s - node_s(&outcome)).abs() < 1e-6 * billed_s, "{billed_s} or {}", node_s(&outcome));
    assert!((outcome.avg_gpus * summary.makespan_s - 4.0 * billed_s).abs() < 1e-6 * billed_s);
    assert!(billed_s < 8.0 * summary.makespan_s && billed_s > summary.makespan_s);

    let fixed = simulate(&settings("castor", "8x4"), &workload).summary();
    assert!((fixed.node_hours - 8.0 * fixed.makespan_s / 3600.0).abs() < 1e-9);
    assert!(summary.node_hours < fixed.node_hours, "a cluster that follows its load is cheaper");
}

#[test]
fn goodput_grows_a_cluster_as_noise_grows_and_throughput_at_once() {
    let run = |policy: &str, tune_for| {
        simulate(&SimulationSettings { tune_for, ..scaled(policy, 1, 16) }, &alone(ApplicationName::Imagenet))
    };
    for policy in ["pollux", "castor"] {
        let full_s = |outcome: &RunOutcome| {
            let full = outcome.cluster.iter().find(|sample| sample.nodes == 16).map(|sample| sample.time_s);
            full.expect("all nodes in the end") / outcome.summary().makespan_s
        };
        let (goodput, throughput) = (run(policy, TuneFor::Goodput), run(policy, TuneFor::Throughput));
        assert!(full_s(&throughput) < 0.1, "{policy}: {}", full_s(&throughput));
        assert!(full_s(&goodput) > 0.3, "{policy}: {}", full_s(&goodput));
        let (cheap, dear) = (goodput.summary(), throughput.summary());
        assert!(cheap.node_hours < 0.8 * dear.node_hours, "{policy}: {} or {}", cheap.node_hours, dear.node_hours);
        assert!(cheap.makespan_s < 1.3 * dear.makespan_s, "{policy}: {} or {}", cheap.makespan_s, dear.makespan_s);
    }
}

#[test]
fn a_job_tuned_for_throughput_takes_the_largest_batch_and_pays_for_it() {
    let workload = alone(ApplicationName::Cifar10);
    let run = |tune_for| {
        let settings = SimulationSettings { tune_for, record_series: true, ..settings("pollux", "1x4") };
        simulate(&settings, &workload).jobs.remove(0)
    };
    let (goodput, throughput) = (run(TuneFor::Goodput), run(TuneFor::Throughput));
    let cifar10 = ApplicationSet::parametric();
    let largest = cifar10.get(ApplicationName::Cifar10).limits().batch_size_max();
    let final_batch =
        |job: &pollux_sim::JobOutcome| job.series.iter().map(|sample| sample.batch_size).rfind(|&size| size > 0);
    assert_eq!(final_batch(&throughput), Some(largest));
    assert!(throughput.efficiency < goodput.efficiency);
    assert!(throughput.completion_s() > goodput.completion_s());
}

#[test]
fn what_cannot_be_scaled_is_refused() {
    let refused = |settings: &SimulationSettings| {
        let applications = ApplicationSet::parametric();
        let outcome = pollux_sim::simulate(settings, &applications, &generated(40, 5), &mut |_| ());
        outcome.map(|_| ()).expect_err("refused").to_string()
    };
    assert_eq!(refused(&scaled("pollux", 9, 8)), "nodes_min 9 is above nodes_max 8");
    assert_eq!(refused(&scaled("pollux", 0, 8)), "nodes_min 0: expected whole numbers from 1 to 100000");
    assert!(refused(&scaled("fifo", 1, 1)).ends_with("replicas; expected up to the 4 that fit the cluster"));
    let autoscale = Some(Autoscale { interval_s: 0.0, ..Autoscale::default() });
    let settings = SimulationSettings { autoscale, ..scaled("pollux", 1, 8) };
    assert_eq!(refused(&settings), "autoscaling interval 0; expected 1 to 86400 seconds");
    let groups = pollux_sim::NodeGroup::of_gpus(1, 4);
    let cluster = pollux_sim::ClusterSpec::new(vec![groups.clone(), groups]).expect("two groups");
    let settings = SimulationSettings { cluster, ..scaled("pollux", 1, 8) };
    assert_eq!(refused(&settings), "groups of nodes to autoscale 2; expected 1");
}
