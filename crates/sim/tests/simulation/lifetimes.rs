use pollux_sim::{
    ApplicationName, ClusterSpec, Lifetime, NodeGroup, RunOutcome, SimulationSettings, Workload, WorkloadJob,
};

use super::{POLICIES, check, generated, settings, simulate};

const HOURLY: Lifetime = Lifetime { time_limit_s: 3_600, drain_before_s: 600, wait_s: 0, staggered: false };

fn allocated(policy: &str, nodes: u32, lifetime: Lifetime) -> SimulationSettings {
    let group = NodeGroup { lifetime: Some(lifetime), ..NodeGroup::of_gpus(nodes, 4) };
    let mut settings = settings(policy, "1x1");
    settings.cluster = ClusterSpec::new(vec![group]).expect("a cluster");
    SimulationSettings { resize_delay_s: Some(1.0), record_series: true, ..settings }
}

fn alone() -> Workload {
    let job = WorkloadJob {
        name: "long".to_owned(),
        requested_replicas: 4,
        requested_batch: 800,
        ..WorkloadJob::of(ApplicationName::Imagenet)
    };
    Workload::new("alone", None, vec![job]).expect("one job")
}

/// When nodes came, but for the first, and when there were fewer than before.
fn changes(outcome: &RunOutcome) -> (Vec<f64>, Vec<f64>) {
    let changed = |is_change: fn(u32, u32) -> bool| {
        let pairs = outcome.cluster.windows(2).filter(move |pair| is_change(pair[0].nodes, pair[1].nodes));
        pairs.map(|pair| pair[1].time_s).filter(|&time_s| time_s > 0.0).collect()
    };
    (changed(|before, after| after > before), changed(|before, after| after < before))
}

#[test]
fn every_policy_finishes_on_nodes_that_are_there_for_a_time() {
    let workload = generated(12, 1);
    for policy in POLICIES {
        for lifetime in [HOURLY, Lifetime { wait_s: 900, staggered: true, ..HOURLY }] {
            let settings = allocated(policy, 4, lifetime);
            let outcome = simulate(&settings, &workload);
            // A node that comes while another is emptied makes the cluster larger than it is at other times.
            if lifetime.wait_s > 0 {
                check(&outcome, &workload);
            }
            assert!(outcome.jobs.iter().all(|job| job.failure.is_none() && job.completion_s() > 0.0), "{policy}");
            assert_eq!(outcome, simulate(&settings, &workload), "{policy}: the same inputs give the same bits");
            assert!(outcome.cluster.iter().all(|sample| sample.gpus_used <= 4 * sample.nodes), "{policy}");
            assert!(outcome.cluster.iter().all(|sample| sample.nodes <= 8), "{policy}");
        }
    }
}

#[test]
fn a_job_goes_from_node_to_node_and_is_never_without_gpus() {
    let outcome = simulate(&allocated("pollux", 2, HOURLY), &alone());
    let job = &outcome.jobs[0];
    assert!(job.completion_s() > 3.0 * 3_600.0, "it outlives several nodes: {job:?}");
    let first = job.series.iter().position(|sample| sample.replicas > 0).expect("it starts");
    let last = job.series.len() - 1;
    assert!(job.series[first..last].iter().all(|sample| sample.replicas > 0), "it leaves nodes in place: {job:?}");
    let (came, went) = changes(&outcome);
    let full_s = 3_000.0;
    assert!(came.iter().zip(1..).all(|(&came_s, life)| came_s == full_s * f64::from(life)), "{came:?}");
    assert!(went.len() >= came.len() - 1, "{went:?}");
    let drained = |(&came_s, &went_s): (&f64, &f64)| went_s >= came_s && went_s < came_s + 600.0;
    assert!(came.iter().zip(&went).all(drained), "they are left before their end: {came:?} {went:?}");
}

#[test]
fn nodes_are_paid_for_while_they_are_there() {
    let waits = Lifetime { wait_s: 1_800, ..HOURLY };
    let [gapless, waiting] = [HOURLY, waits].map(|lifetime| simulate(&allocated("fifo", 1, lifetime), &alone()));
    // Half an hour of every four fifths is without a node, which nobody pays for.
    let per_hour = |outcome: &RunOutcome| outcome.node_hours * 3_600.0 / outcome.jobs[0].finished_s;
    assert!((0.9..=1.2).contains(&per_hour(&gapless)), "{}", per_hour(&gapless));
    assert!((0.5..=0.8).contains(&per_hour(&waiting)), "{}", per_hour(&waiting));
    assert!(waiting.jobs[0].queued_s > 1_800.0, "{:?}", waiting.jobs[0]);
}

#[test]
fn nodes_of_a_time_neither_fail_nor_follow_the_load() {
    let mut settings = allocated("pollux", 2, HOURLY);
    settings.failures.per_node_day = 1.0;
    let applications = pollux_sim::ApplicationSet::parametric();
    let error = pollux_sim::simulate(&settings, &applications, &alone(), &mut |_| ()).expect_err("both at once");
    assert_eq!(error.to_string(), "failures per node and day 1; expected 0 where nodes have a lifetime");
}
