use pollux_sim::{Failures, SimulationSettings};

use super::{POLICIES, check, generated, settings, simulate};

#[test]
fn every_job_survives_failing_nodes() {
    let workload = generated(30, 6);
    let failures = Failures { per_node_day: 24.0, repair_s: 900.0, seed: 1 };
    for policy in POLICIES {
        let calm = settings(policy, "8x4");
        let failing = SimulationSettings { failures, ..calm.clone() };
        let outcome = simulate(&failing, &workload);
        check(&outcome, &workload);
        let restarts = |outcome: &pollux_sim::RunOutcome| outcome.summary().restarts_per_job;
        assert!(outcome != simulate(&calm, &workload), "{policy} saw no failure");
        assert!(policy != "fifo" || restarts(&outcome) > 0.0, "only failures stop a job under fifo");
    }
}

#[test]
fn the_seed_decides_when_nodes_fail() {
    let workload = generated(20, 7);
    let run = |seed| {
        let failures = Failures { per_node_day: 12.0, repair_s: 600.0, seed };
        simulate(&SimulationSettings { failures, ..settings("pollux", "8x4") }, &workload)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn interference_slows_policies_that_let_jobs_share_nodes() {
    let workload = generated(80, 8);
    let average_s = |policy: &str, interference| {
        let settings = SimulationSettings { interference, ..settings(policy, "8x4") };
        simulate(&settings, &workload).summary().avg_jct_s
    };
    assert!(average_s("tiresias", 0.5) > 1.01 * average_s("tiresias", 0.0));
    assert_eq!(average_s("pollux", 0.5), average_s("pollux", 0.0), "one multi-node job per node, so nobody meets");
}
