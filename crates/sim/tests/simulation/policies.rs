use super::{POLICIES, check, generated, settings, simulate};

#[test]
fn every_policy_finishes_a_generated_workload() {
    let workload = generated(60, 1);
    for policy in POLICIES {
        check(&simulate(&settings(policy, "8x4"), &workload), &workload);
    }
}

#[test]
fn the_same_inputs_give_the_same_bits() {
    let workload = generated(40, 2);
    for policy in POLICIES {
        let settings = settings(policy, "4x4");
        assert_eq!(simulate(&settings, &workload), simulate(&settings, &workload), "{policy}");
    }
}

#[test]
fn recording_what_happens_changes_nothing_else() {
    let workload = generated(30, 3);
    let quiet = settings("castor", "4x4");
    let mut recorded = simulate(&pollux_sim::SimulationSettings { record_series: true, ..quiet.clone() }, &workload);
    assert!(!recorded.cluster.is_empty() && recorded.jobs.iter().all(|job| !job.series.is_empty()));
    assert!(recorded.cluster.iter().all(|sample| sample.gpus_used <= 16));
    recorded.cluster.clear();
    recorded.jobs.iter_mut().for_each(|job| job.series.clear());
    assert_eq!(recorded, simulate(&quiet, &workload));
}

#[test]
fn policies_that_need_an_oracle_or_a_loss_curve_are_told() {
    let workload = generated(12, 6);
    for policy in ["optimus", "optimus-oracle", "slaq"] {
        let recorded = pollux_sim::SimulationSettings { record_series: true, ..settings(policy, "8x4") };
        let outcome = simulate(&recorded, &workload);
        // None of them gives more than it asked for to a job of which it was told nothing.
        let mut jobs = outcome.jobs.iter().zip(workload.jobs());
        let grew = jobs.any(|(job, wish)| job.series.iter().any(|at| at.replicas > wish.requested_replicas));
        assert!(grew, "{policy}");
    }
}

#[test]
fn progress_counts_to_the_last_job() {
    let workload = generated(10, 4);
    let mut told = Vec::new();
    let applications = pollux_sim::ApplicationSet::parametric();
    let outcome = pollux_sim::simulate(&settings("fifo", "8x4"), &applications, &workload, &mut |done| told.push(done));
    assert!(outcome.is_ok() && told.is_sorted() && told.last() == Some(&10), "{told:?}");
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let workload = generated(100, 5);
    let refused = |settings: &pollux_sim::SimulationSettings| {
        let applications = pollux_sim::ApplicationSet::parametric();
        pollux_sim::simulate(settings, &applications, &workload, &mut |_| ())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let error = refused(&settings("fifo", "1x1")).expect_err("no room");
    assert!(error.ends_with("replicas; expected up to the 1 that fit the cluster"), "{error}");
    for interval_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let settings = pollux_sim::SimulationSettings { interval_s, ..settings("fifo", "16x4") };
        let expected = format!("interval {interval_s}; expected 1 to 86400 seconds");
        assert_eq!(refused(&settings), Err(expected));
    }
}
