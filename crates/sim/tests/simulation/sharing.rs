use pollux_model::Batch;
use pollux_policy::{GandivaSettings, PolicySettings};
use pollux_sim::{ApplicationName, ApplicationSet, JobOutcome, SimulationSettings, Workload, WorkloadJob};

use super::{settings, simulate};

/// What the physics takes from whoever shares a GPU.
const OVERHEAD: f64 = 0.02;
const RESTART_S: f64 = 30.0;

/// So many jobs alike, submitted at once.
fn alike(jobs: usize) -> Workload {
    let job = |idx| WorkloadJob {
        name: format!("job-{idx}"),
        requested_replicas: 1,
        requested_batch: 128,
        ..WorkloadJob::of(ApplicationName::Cifar10)
    };
    Workload::new("alike", None, (0..jobs).map(job).collect()).expect("valid by construction")
}

/// On one GPU.
fn outcomes(policy: &str, jobs: usize) -> Vec<JobOutcome> {
    simulate(&settings(policy, "1x1"), &alike(jobs)).jobs
}

fn duty() -> f64 {
    let applications = ApplicationSet::parametric();
    let cifar10 = applications.get(ApplicationName::Cifar10);
    cifar10.duty(&[1], Batch::fixed(cifar10.limits(), 128, 1).expect("the baseline"))
}

/// Epochs end on whole seconds, and there are a hundred.
#[track_caller]
fn assert_close(actual_s: f64, expected_s: f64) {
    assert!((actual_s - expected_s).abs() < 60.0, "{actual_s} instead of {expected_s}");
}

#[test]
fn a_guest_gets_what_its_host_leaves_and_all_of_it_when_that_ends() {
    let alone = &outcomes("antman", 1)[0];
    let alone_s = alone.finished_s - alone.started_s - RESTART_S;
    let shared = outcomes("antman", 2);
    let [host, guest] = &shared[..] else { panic!("two jobs") };
    let (host_from_s, guest_from_s) = (host.started_s + RESTART_S, guest.started_s + RESTART_S);
    assert!(guest_from_s < host_from_s + 200.0, "{guest_from_s}");

    let host_left_s = alone_s - (guest_from_s - host_from_s);
    assert_close(host.finished_s, guest_from_s + host_left_s / (1.0 - OVERHEAD));
    let duty = duty();
    assert!(duty > 0.5, "they are in each other's way: {duty}");
    let speed = (1.0 - OVERHEAD) * (1.0 - duty) / duty;
    let guest_left_s = alone_s - (host.finished_s - guest_from_s) * speed;
    assert_close(guest.finished_s, host.finished_s + guest_left_s);
    assert_eq!(guest.restarts, 0, "it goes on in place");
}

#[test]
fn two_jobs_that_are_packed_are_slowed_alike() {
    let alone = &outcomes("gandiva", 1)[0];
    let alone_s = alone.finished_s - alone.started_s - RESTART_S;
    let shared = outcomes("gandiva", 2);
    let speed = (1.0 - OVERHEAD) / (2.0 * duty());
    assert!(2.0 * speed > 1.1, "packing pays: {speed}");
    let both_s = shared.iter().map(|job| job.finished_s).fold(0.0, f64::max);
    // A few turns until both are measured, and the end alone; then twice the work at twice the speed.
    let expected_s = alone_s / speed;
    assert!(both_s > 0.97 * expected_s && both_s < expected_s + 1_500.0, "{both_s} instead of {expected_s}");
}

#[test]
fn suspended_jobs_resume_sooner_where_their_state_is_kept() {
    let in_turns = GandivaSettings { quantum_s: 600.0, packing_rate_min: 2.5, ..GandivaSettings::default() };
    let run = |resume_delay_s| {
        let policy = PolicySettings::Gandiva(in_turns);
        let settings = SimulationSettings { policy, resume_delay_s, ..settings("gandiva", "1x1") };
        simulate(&settings, &alike(2)).jobs
    };
    let end_s = |jobs: &[JobOutcome]| jobs.iter().map(|job| job.finished_s).fold(0.0, f64::max);
    let (restarted, resumed) = (run(None), run(Some(1.0)));
    assert_eq!(restarted, run(Some(RESTART_S)));
    let turns = |jobs: &[JobOutcome]| f64::from(jobs.iter().map(|job| job.restarts).sum::<u32>());
    assert!(turns(&resumed) > 10.0, "{resumed:?}");
    let saved_s = turns(&restarted) * RESTART_S - turns(&resumed);
    assert!((end_s(&restarted) - end_s(&resumed) - saved_s).abs() < 10.0, "{saved_s}");
}
