use pollux_policy::{AntManSettings, Flexibility, Policy, PolicySettings};

use crate::world::{Job, World};

fn antman() -> Box<dyn Policy + Send> {
    PolicySettings::AntMan(AntManSettings::default()).build()
}

fn job(requested: u32, priority: i32) -> Job {
    Job { requested, priority, samples_per_s: Some(100.0), ..Job::measured(requested, 0.01) }
}

#[test]
fn an_opportunistic_job_uses_idle_gpus_and_yields_within_one_round() {
    let mut world = World::new(1, 4, vec![job(4, -1), Job { gone: true, ..job(4, 0) }]);
    let mut policy = antman();
    assert_eq!(world.round(&mut *policy, 60), "0*4");
    world.jobs[1].gone = false;
    assert_eq!(world.round(&mut *policy, 60), "- 0*4");
    assert_eq!(world.round(&mut *policy, 60), "0*4@1 0*4", "it comes back as a guest");
}

#[test]
fn a_guaranteed_job_drives_nobody_out_while_there_is_room_elsewhere() {
    let mut world = World::new(2, 2, vec![job(2, -1).running(&[(0, 2)]), job(2, 0)]);
    assert_eq!(world.round(&mut *antman(), 60), "0*2 1*2");
}

#[test]
fn guaranteed_jobs_are_served_in_order_and_never_preempted() {
    let settings = AntManSettings { queue_runs: false, ..AntManSettings::default() };
    let mut policy = PolicySettings::AntMan(settings).build();
    let mut world = World::new(1, 4, vec![job(2, 0), job(4, 0), job(1, 0)]);
    assert_eq!(world.round(&mut *policy, 60), "0*2 - -", "nobody overtakes the second");
    world.jobs.push(job(4, 7));
    assert_eq!(world.round(&mut *policy, 60), "0*2 - - -", "a priority is no reason to stop one that runs");
    world.end(0);
    assert_eq!(world.round(&mut *policy, 60), "- - 0*4");
}

#[test]
fn guaranteed_jobs_that_wait_run_as_guests_until_their_turn_comes() {
    let mut world = World::new(1, 2, vec![job(2, 0), job(2, 0)]);
    let mut policy = antman();
    assert_eq!(world.round(&mut *policy, 60), "0*2 -");
    assert_eq!(world.round(&mut *policy, 60), "0*2 0*2@0");
    world.end(0);
    assert_eq!(world.round(&mut *policy, 60), "0*2", "in place");
    world.jobs.push(job(2, 0));
    assert_eq!(world.round(&mut *policy, 60), "0*2 0*2@1", "it is guaranteed now");
}

#[test]
fn a_guest_gets_gpus_of_its_own_when_there_are_any() {
    let mut world = World::new(2, 1, vec![job(1, 0), job(1, 0), job(1, -1)]);
    let mut policy = antman();
    let rounds: Vec<String> = (0..2).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1 1*1 -", "0*1 1*1 0*1@0"]);
    world.end(1);
    assert_eq!(world.round(&mut *policy, 60), "0*1 1*1");
}

#[test]
fn guests_go_to_the_least_busy_host() {
    let busy = |batch_size| Job { batch_size: Some(batch_size), ..job(1, 0) };
    let mut world = World::new(2, 1, vec![busy(128), busy(32), job(1, -1)]);
    let mut policy = antman();
    let rounds: Vec<String> = (0..2).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1 1*1 -", "0*1 1*1 1*1@1"]);
}

#[test]
fn a_guest_that_slows_its_host_is_sent_away_and_not_let_in_again() {
    let mut world = World::new(1, 1, vec![job(1, 0), job(1, -1)]);
    let mut policy = antman();
    let rounds: Vec<String> = (0..2).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1 -", "0*1 0*1@0"]);
    let mut alone = World::new(1, 1, vec![job(1, 0), Job { gone: true, ..job(1, -1) }]);
    let mut policy = antman();
    for _ in 0..3 {
        assert_eq!(alone.round(&mut *policy, 60), "0*1");
    }
    alone.jobs[1].gone = false;
    assert_eq!(alone.round(&mut *policy, 60), "0*1 0*1@0");
    alone.jobs[0].samples_per_s = Some(85.0);
    let rounds: Vec<String> = (0..5).map(|_| alone.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1 -"; 5]);
}

#[test]
fn only_jobs_that_can_be_sent_away_are_let_in_as_guests() {
    let rigid = Job { flexibility: Flexibility::Rigid, ..job(1, -1) };
    let mut world = World::new(1, 1, vec![job(1, 0), rigid]);
    let mut policy = antman();
    let rounds: Vec<String> = (0..3).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1 -"; 3]);
}
