use pollux_sim::{ApplicationName, ApplicationSet, Failures, SimulationSettings, Sweep, SweepOutcome, simulate_sweep};

use super::{POLICIES, settings};

const SWEEP: Sweep = Sweep {
    application: ApplicationName::Cifar10,
    trials: 18,
    keep_one_in: 3,
    first_epochs: 4,
    replicas: 1,
    batch_size: 128,
    seed: 7,
};

fn run(settings: &SimulationSettings, sweep: &Sweep) -> SweepOutcome {
    simulate_sweep(settings, &ApplicationSet::parametric(), sweep, &mut |_| ()).expect("a sweep")
}

/// Trials and epochs of every rung.
fn rungs(outcome: &SweepOutcome) -> Vec<(u32, u32)> {
    outcome.rungs.iter().map(|rung| (rung.trials, rung.epochs)).collect()
}

#[test]
fn the_right_trials_survive_every_rung_and_the_best_wins_under_every_policy() {
    for policy in POLICIES {
        let outcome = run(&settings(policy, "2x4"), &SWEEP);
        assert_eq!(rungs(&outcome), [(18, 4), (6, 12), (2, 36), (1, 100)], "{policy}");
        assert!(outcome.rungs.is_sorted_by(|a, b| a.finished_s < b.finished_s), "{policy}");
        let mut ranked: Vec<usize> = (0..18).collect();
        ranked.sort_by(|&a, &b| outcome.trials[b].quality.total_cmp(&outcome.trials[a].quality));
        let epochs: Vec<u32> = ranked.iter().map(|&trial| outcome.trials[trial].epochs).collect();
        let expected: Vec<u32> = [(1, 100), (1, 36), (4, 12), (12, 4)].iter().flat_map(|&(n, e)| vec![e; n]).collect();
        assert_eq!((outcome.best, epochs), (ranked[0], expected), "{policy}");
        assert!(ranked.iter().all(|&trial| outcome.trials[trial].score <= outcome.trials[ranked[0]].score), "{policy}");
        assert_eq!(outcome.makespan_s, outcome.trials[outcome.best].ended_s, "{policy}");
    }
}

#[test]
fn trials_that_wait_or_are_out_hold_no_gpus() {
    for policy in POLICIES {
        // Twice as many trials as GPUs: where waiting ones held theirs, the others would never start.
        let settings = SimulationSettings { record_series: true, ..settings(policy, "1x4") };
        let outcome = run(&settings, &Sweep { trials: 8, keep_one_in: 4, ..SWEEP });
        assert_eq!(rungs(&outcome), [(8, 4), (2, 16), (1, 100)], "{policy}");
        for (rung, next) in outcome.rungs.iter().zip(&outcome.rungs[1..]) {
            let within = |time_s: f64| rung.finished_s <= time_s && time_s < next.finished_s;
            let samples = outcome.cluster.iter().filter(|sample| within(sample.time_s));
            let jobs: Vec<u32> = samples.map(|sample| sample.jobs_running + sample.jobs_waiting).collect();
            assert!(!jobs.is_empty() && jobs.iter().all(|&jobs| jobs <= next.trials), "{policy}: {jobs:?}");
        }
        let held_s: f64 = outcome.trials.iter().map(|trial| trial.gpu_seconds).sum();
        assert!((held_s - 3600.0 * outcome.gpu_hours).abs() < 1e-6 * held_s, "{policy}");
        for trial in outcome.trials.iter().filter(|trial| trial.epochs == 4) {
            assert_eq!(trial.ended_s, outcome.rungs[0].finished_s, "{policy}");
            assert!(trial.gpu_seconds < 4.0 * trial.ended_s, "{policy}: {trial:?}");
        }
    }
}

#[test]
fn the_seed_decides_who_wins_and_nothing_else_is_random() {
    let settings = settings("castor", "2x4");
    let best = |seed| run(&settings, &Sweep { seed, ..SWEEP }).best;
    assert_eq!(run(&settings, &SWEEP), run(&settings, &SWEEP));
    assert!((0..8).map(best).any(|winner| winner != best(0)));
}

#[test]
fn elastic_trials_take_over_what_the_others_leave() {
    let sweep = Sweep { trials: 32, ..SWEEP };
    let makespan_s = |policy, replicas| {
        let batch_size = 128 * replicas;
        run(&settings(policy, "8x4"), &Sweep { replicas, batch_size, ..sweep }).makespan_s
    };
    for fixed in [1, 2, 4] {
        let fixed_s = makespan_s("fifo", fixed);
        assert!(makespan_s("pollux", 1) < 0.8 * fixed_s, "{fixed} GPUs a trial take {fixed_s} s");
    }
}

#[test]
fn a_sweep_survives_failing_nodes() {
    let failures = Failures { per_node_day: 100.0, repair_s: 300.0, seed: 3 };
    for policy in POLICIES {
        let calm = settings(policy, "2x4");
        let failing = run(&SimulationSettings { failures, ..calm.clone() }, &SWEEP);
        let calm = run(&calm, &SWEEP);
        assert_eq!((rungs(&failing), failing.best), (rungs(&calm), calm.best), "{policy}");
        assert_ne!(failing.makespan_s, calm.makespan_s, "{policy} saw no failure");
    }
}

#[test]
fn a_sweep_of_one_trial_is_a_training() {
    let outcome = run(&settings("pollux", "1x4"), &Sweep { trials: 1, ..SWEEP });
    assert_eq!((rungs(&outcome), outcome.best), (vec![(1, 100)], 0));
}

#[test]
fn trials_that_reach_the_end_together_all_train_to_it() {
    let outcome = run(&settings("pollux", "2x4"), &Sweep { first_epochs: 60, keep_one_in: 2, trials: 5, ..SWEEP });
    assert_eq!(rungs(&outcome), [(5, 60), (2, 100)]);
}

#[test]
fn sweeps_that_make_no_sense_are_refused() {
    let refused = |policy: &str, sweep: Sweep| {
        let applications = ApplicationSet::parametric();
        let outcome = simulate_sweep(&settings(policy, "1x4"), &applications, &sweep, &mut |_| ());
        outcome.map(|_| ()).expect_err("refused").to_string()
    };
    assert_eq!(refused("fifo", Sweep { trials: 0, ..SWEEP }), "trials 0; expected 1 to 100000");
    assert_eq!(refused("fifo", Sweep { keep_one_in: 1, ..SWEEP }), "one trial kept in 1; expected 2 to 100000");
    let long = Sweep { first_epochs: 101, ..SWEEP };
    assert_eq!(refused("fifo", long), "epochs of the first rung 101; expected 1 to those of the application");
    let large = Sweep { replicas: 5, ..SWEEP };
    assert_eq!(refused("fifo", large), "job trial-0 asks for 5 replicas; expected up to the 4 that fit the cluster");
}
