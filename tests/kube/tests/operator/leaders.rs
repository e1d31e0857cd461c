//! Two replicas of the operator, one of which leads: whatever happens to it, the other takes over, and never do both act.

use std::time::Instant;

use crate::training::{Training, conclude, containers_of, train_on_as_they_were};
use crate::world::{Replica, World, say, world};

/// Breaks the leader, waits until the other leads, and mends it. All the while jobs train on as they were.
fn replace_leader(world: &World, breaks: impl Fn(&Replica), mends: impl Fn(&Replica)) {
    let both = Training::start_both(world);
    let (containers, epoch, moment) = (containers_of(&both), world.epoch(), world.now());
    let (old, restarts) = {
        let leader = world.leader();
        (leader.clone(), world.restarts(&leader))
    };
    let broken = Instant::now();
    breaks(&old);
    world.await_epoch_above(epoch);
    say(&format!("another replica acts after {:.1} s", broken.elapsed().as_secs_f64()));
    let new = world.leader_other_than(&old.pod);
    train_on_as_they_were(&both, &containers);
    // The new one has something to do.
    let other = Training::start_whole(world, "newcomer", 4);
    mends(&old);
    // It finds that it leads no longer, ends, and waits from then on.
    world.await_restart(&old, restarts);
    other.trains_on();
    assert_eq!(world.leader().pod, new.pod);
    let turns = world.turns_since(&moment);
    assert!([vec![new.pod.clone()], vec![old.pod.clone(), new.pod]].contains(&turns), "{turns:?} after {}", old.pod);
    let made = other.pods().into_iter().map(|pod| pod["metadata"]["annotations"]["pollux.dev/epoch"].clone());
    let made: Vec<u64> = made.map(|epoch| epoch.as_str().unwrap().parse().unwrap()).collect();
    assert!(made.iter().all(|made| *made > epoch), "{made:?} after {epoch}");
    let [steady, whole] = both;
    conclude(world, [steady, whole, other]);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_leader_that_was_paused_finds_its_lease_lost_and_does_nothing_more() {
    let Some(world) = world() else { return };
    replace_leader(&world, |leader| world.signal(leader, "-STOP"), |leader| world.signal(leader, "-CONT"));
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_leader_that_is_cut_off_from_the_api_server_stops_before_another_acts() {
    let Some(world) = world() else { return };
    let (cut, mend) = (
        |leader: &Replica| world.cut_from_api_server(leader, true),
        |leader: &Replica| {
            world.cut_from_api_server(leader, false);
        },
    );
    replace_leader(&world, cut, mend);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_leader_that_was_killed_leads_again_at_once() {
    let Some(world) = world() else { return };
    let both = Training::start_both(&world);
    let (containers, epoch) = (containers_of(&both), world.epoch());
    let leader = world.leader();
    let killed = Instant::now();
    world.signal(&leader, "-KILL");
    world.await_epoch_above(epoch);
    say(&format!("it acts again after {:.1} s", killed.elapsed().as_secs_f64()));
    world.leader();
    train_on_as_they_were(&both, &containers);
    conclude(&world, both);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_replica_that_waits_ends_at_the_first_signal() {
    let Some(world) = world() else { return };
    let leader = world.leader();
    let standby = world.replicas().unwrap().into_iter().find(|replica| *replica != leader).unwrap();
    let restarts = world.restarts(&standby);
    world.signal(&standby, "-TERM");
    assert_eq!(world.await_restart(&standby, restarts)["exitCode"], 0);
    assert_eq!(world.leader(), leader);
}
