use pollux_policy::PolicySettings;

use crate::world::{Job, World};

fn gang(requested: u32, age_s: u64) -> Job {
    Job { requested, age_s, ..Job::default() }
}

fn replicas(policy: &str, world: &World) -> Vec<u32> {
    world.replicas(&mut *PolicySettings::named(policy).expect("a known name").build())
}

#[test]
fn fifo_does_not_let_a_small_job_overtake_a_large_one() {
    let world = World::new(1, 4, vec![gang(3, 30), gang(2, 20), gang(1, 10)]);
    assert_eq!(replicas("fifo", &world), [3, 0, 0]);
}

#[test]
fn fifo_never_preempts() {
    let mut world = World::new(1, 4, vec![gang(2, 30), gang(3, 20)]);
    world.jobs[1] = gang(3, 20).running(&[(0, 3)]);
    assert_eq!(replicas("fifo", &world), [0, 3]);
}

#[test]
fn a_gang_that_can_never_fit_holds_nobody_up() {
    let world = World::new(1, 4, vec![gang(8, 30), gang(1, 20)]);
    assert_eq!(replicas("fifo", &world), [0, 1]);
}

#[test]
fn a_gang_that_waits_for_one_that_cannot_be_moved_is_not_overtaken() {
    let rigid = Job { flexibility: pollux_policy::Flexibility::Rigid, ..gang(2, 40).running(&[(0, 2)]) };
    let world = World::new(1, 4, vec![rigid, gang(4, 30), gang(1, 20)]);
    assert_eq!(replicas("fifo", &world), [2, 0, 0]);
}

#[test]
fn draining_a_node_preempts_no_fifo_job_elsewhere() {
    let mut world = World::new(2, 4, vec![gang(4, 30).running(&[(0, 4)]), gang(4, 20).running(&[(1, 4)])]);
    world.nodes[0].schedulable = false;
    assert_eq!(replicas("fifo", &world), [0, 4]);
}

#[test]
fn srtf_runs_the_job_soonest_done() {
    let sized = |samples| Job { requested: 4, remaining_samples: Some(samples), ..Job::measured(4, 0.01) };
    let world = World::new(1, 4, vec![sized(1e7), sized(1e5), sized(1e6)]);
    assert_eq!(replicas("srtf", &world), [0, 4, 0]);
}

#[test]
fn an_unknown_name_is_refused_with_the_known_ones() {
    assert_eq!(
        PolicySettings::named("polux").unwrap_err().to_string(),
        "unknown policy \"polux\": expected pollux, castor, sia, gavel, optimus, optimus-oracle, tiresias, themis, gandiva, \
         antman, slaq, srtf, fifo"
    );
}

#[test]
fn under_every_policy_a_job_begins_with_the_replicas_it_asks_for_if_so_many_are_idle() {
    for settings in PolicySettings::all() {
        let mut policy = settings.build();
        if policy.needs_oracle() {
            continue;
        }
        let new = Job { requested: 4, age_s: 0, ..Job::default() };
        let busy = Job { requested: 2, max: 2, ..Job::measured(2, 0.01) }.running(&[(0, 2)]);
        let replicas = World::new(2, 4, vec![busy, new]).replicas(&mut *policy);
        assert_eq!(replicas[1], 4, "{}", policy.name());
    }
}

#[test]
fn a_job_keeps_what_it_began_with_until_it_is_measured() {
    for policy in ["optimus", "slaq"] {
        let began = || Job { requested: 4, ..Job::default() }.running(&[(0, 4)]);
        assert_eq!(replicas(policy, &World::new(2, 4, vec![began()])), [4], "{policy}");
        let others: Vec<Job> = (0..6).map(|_| Job::default()).collect();
        let held = replicas(policy, &World::new(2, 4, std::iter::once(began()).chain(others).collect()));
        assert_eq!(held, [2, 1, 1, 1, 1, 1, 1], "{policy}: everybody gets one first");
    }
}

#[test]
fn srtf_judges_jobs_by_the_batch_that_they_run() {
    let job = |batch_size, samples| {
        let remaining_samples = Some(samples);
        Job { requested: 4, batch_size: Some(batch_size), remaining_samples, ..Job::measured(4, 0.5) }
    };
    // At the best batch the first would be done sooner; at its own it is slower.
    assert_eq!(replicas("srtf", &World::new(1, 4, vec![job(128, 0.9e6), job(2048, 1e6)])), [0, 4]);
}
