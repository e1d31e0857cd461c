use pollux_policy::{GandivaSettings, JobId, Policy, PolicySettings};

use crate::world::{Job, World};

fn gandiva() -> Box<dyn Policy + Send> {
    PolicySettings::Gandiva(GandivaSettings::default()).build()
}

/// A job that has been measured, with a batch that keeps its GPUs half busy.
fn job(requested: u32) -> Job {
    Job { requested, samples_per_s: Some(100.0), ..Job::measured(requested, 0.01) }
}

/// Without anybody on the same GPUs.
fn unshared() -> Box<dyn Policy + Send> {
    PolicySettings::Gandiva(GandivaSettings { packing_rate_min: 2.5, ..GandivaSettings::default() }).build()
}

#[test]
fn gangs_take_turns_where_they_were_when_the_cluster_is_too_small() {
    let mut world = World::new(2, 2, vec![job(2), job(2), job(4)]);
    let mut policy = unshared();
    let turns: Vec<String> = (0..5).map(|_| world.round(&mut *policy, 300)).collect();
    assert_eq!(turns, ["0*2 1*2 -", "- - 0*2+1*2", "0*2 1*2 -", "- - 0*2+1*2", "0*2 1*2 -"]);
}

#[test]
fn nobody_is_suspended_before_its_turn_is_over() {
    let mut world = World::new(1, 2, vec![job(2), job(2)]);
    let mut policy = unshared();
    let turns: Vec<String> = (0..7).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(turns, ["0*2 -", "0*2 -", "0*2 -", "0*2 -", "0*2 -", "- 0*2", "- 0*2"]);
}

#[test]
fn a_gang_that_waits_longest_is_not_overtaken_for_ever() {
    let mut world = World::new(1, 4, vec![job(1), job(1), job(1), job(4), job(1), job(1)]);
    let mut policy = unshared();
    assert_eq!(world.round(&mut *policy, 60), "0*1 0*1 0*1 - - -");
    assert_eq!(world.round(&mut *policy, 300), "0*1 0*1 0*1 - - -");
    assert_eq!(world.round(&mut *policy, 300), "- - - 0*4 - -");
}

#[test]
fn a_job_moves_together_after_a_departure() {
    let spread = Job { executed_s: 5_000.0, ..job(4).running(&[(0, 2), (1, 2)]) };
    let mut world = World::new(2, 4, vec![spread, job(2).running(&[(0, 2)]), job(2).running(&[(1, 2)])]);
    world.jobs[0].executed_s = 5_000.0;
    let mut policy = gandiva();
    for _ in 0..3 {
        assert_eq!(world.round(&mut *policy, 60), "0*2+1*2 0*2 1*2");
    }
    world.end(2);
    assert_eq!(world.round(&mut *policy, 60), "1*4 0*2");
}

#[test]
fn a_migration_that_made_a_job_slower_is_undone_and_not_tried_again() {
    let spread = job(4).running(&[(0, 2), (1, 2)]);
    let mut world = World::new(2, 4, vec![Job { executed_s: 5_000.0, ..spread }]);
    let mut policy = gandiva();
    let before: Vec<String> = (0..2).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(before, ["0*2+1*2", "0*4"]);
    world.jobs[0].samples_per_s = Some(90.0);
    let after: Vec<String> = (0..5).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(after, ["0*2+1*2"; 5]);
}

/// Two jobs on one GPU that were both measured alone, and then run together at `together` of that.
fn packed(together: f64) -> (World, Box<dyn Policy + Send>, Vec<String>) {
    let mut world = World::new(1, 1, vec![job(1), job(1)]);
    let mut policy = gandiva();
    for round in ["0*1 -", "- 0*1", "0*1@1 0*1"] {
        assert_eq!(world.round(&mut *policy, 300), round);
    }
    world.jobs.iter_mut().for_each(|job| job.samples_per_s = Some(100.0 * together));
    let rounds = (0..6).map(|_| world.round(&mut *policy, 60)).collect();
    (world, policy, rounds)
}

#[test]
fn a_packing_that_pays_is_kept() {
    let (_, _, rounds) = packed(0.8);
    assert_eq!(rounds, ["0*1@1 0*1"; 6]);
}

#[test]
fn a_packing_that_does_not_pay_is_undone_and_not_repeated() {
    let (mut world, mut policy, rounds) = packed(0.5);
    assert!(rounds.iter().all(|round| !round.contains('@')), "{rounds:?}");
    for _ in 0..20 {
        let round = world.round(&mut *policy, 300);
        assert!(!round.contains('@'), "{round}");
    }
}

#[test]
fn jobs_are_packed_only_while_others_wait() {
    let (mut world, mut policy, _) = packed(0.8);
    world.nodes.push(pollux_policy::NodeView { id: pollux_policy::NodeId(1), ..world.nodes[0] });
    assert_eq!(world.round(&mut *policy, 60), "1*1 0*1");
}

#[test]
fn an_opportunistic_job_grows_into_idle_gpus_and_shrinks_when_another_comes() {
    let opportunistic = Job { priority: -1, ..job(1).running(&[(0, 1)]) };
    let mut world = World::new(1, 4, vec![opportunistic, job(1).running(&[(0, 1)]), Job { gone: true, ..job(3) }]);
    let mut policy = gandiva();
    let rounds: Vec<String> = (0..2).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1 0*1", "0*2 0*1"], "only after it was measured, and only the one that may");
    world.jobs[0].samples_per_s = Some(180.0);
    world.jobs[2].gone = false;
    world.jobs[2].requested = 2;
    assert_eq!(world.round(&mut *policy, 60), "0*1 0*1 0*2");
}

#[test]
fn growth_that_brings_nothing_is_undone_and_not_tried_again() {
    let mut world = World::new(1, 4, vec![Job { priority: -1, ..job(1).running(&[(0, 1)]) }]);
    let mut policy = gandiva();
    let rounds: Vec<String> = (0..8).map(|_| world.round(&mut *policy, 60)).collect();
    assert_eq!(rounds, ["0*1", "0*2", "0*1", "0*1", "0*1", "0*1", "0*1", "0*1"]);
}

#[test]
fn the_guest_of_a_host_that_ended_runs_on() {
    let mut world = World::new(1, 1, vec![job(1).running(&[(0, 1)]), job(1).running(&[(0, 1)])]);
    world.jobs[1].guest_of = Some(JobId(0));
    let mut policy = gandiva();
    assert_eq!(world.round(&mut *policy, 60), "0*1 0*1@0");
    world.end(0);
    assert_eq!(world.round(&mut *policy, 60), "0*1");
}
