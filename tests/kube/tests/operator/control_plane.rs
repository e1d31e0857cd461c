//! The API server and etcd go away, and come back.

use std::thread;
use std::time::{Duration, Instant};

use crate::training::{Training, conclude, training};
use crate::world::{World, world};

/// A training goes on as it was through a fault of the control plane, and another job can start afterwards.
fn outlive(world: &World, fault: impl Fn(&Training<'_>)) {
    let job = Training::start_whole(world, "steady", 8);
    let containers = job.containers();
    fault(&job);
    world.leader();
    job.trains_on();
    assert_eq!(job.containers(), containers, "whoever trained trains on, and nobody else does");
    let other = Training::start_whole(world, "newcomer", 4);
    conclude(world, [job, other]);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_goes_on_while_the_api_server_is_away_for_a_minute() {
    let Some(world) = world() else { return };
    outlive(&world, |job| {
        let end = Instant::now() + Duration::from_secs(60);
        world.cluster.stop_api_server().unwrap();
        job.trains_on();
        thread::sleep(end.saturating_duration_since(Instant::now()));
        // What was watched before is too old to be watched on.
        world.cluster.start_api_server().unwrap();
    });
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_goes_on_when_etcd_is_restarted() {
    let Some(world) = world() else { return };
    outlive(&world, |_| world.cluster.restart_etcd().unwrap());
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn broken_watches_are_taken_up_again() {
    let Some(world) = world() else { return };
    let job = Training::start(&world, "steady", 8);
    // All streams end; what changes meanwhile is found by a list.
    world.cluster.stop_api_server().unwrap();
    world.cluster.start_api_server().unwrap();
    let victim = job.running().remove(0);
    world.cluster.kubectl(&["delete", "pod", &victim, "--namespace=team", "--wait=false"]).unwrap();
    let other = Training::submit(&world, &training(&world, "newcomer"));
    other.trains_on();
    conclude(&world, [job, other]);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn jobs_outlive_a_journal_that_is_damaged() {
    let Some(world) = world() else { return };
    let job = Training::start_whole(&world, "steady", 4);
    let (id, epoch) = (job.status().unwrap()["id"].clone(), world.epoch());
    world.cluster.kubectl(&["delete", "configmap", "pollux-journal", "--namespace=pollux"]).unwrap();
    for replica in world.replicas().unwrap() {
        world.signal(&replica, "-KILL");
    }
    world.await_epoch_above(epoch);
    world.leader();
    job.trains_on();
    assert_eq!(job.status().unwrap()["id"], id, "it finds what it has saved");
    let events = ["get", "events.events.k8s.io", "--namespace=pollux", "--field-selector=reason=JournalDamaged"];
    let events = world.cluster.get(&events).unwrap();
    assert!(events["items"][0]["note"].as_str().unwrap().starts_with("The journal was damaged"), "{events}");
    let other = Training::start_whole(&world, "newcomer", 4);
    // What was rebuilt is kept: the next one reads it as usual.
    let (containers, epoch) = (job.containers(), world.epoch());
    world.signal(&world.leader(), "-KILL");
    world.await_epoch_above(epoch);
    job.trains_on();
    assert_eq!(job.containers(), containers);
    conclude(&world, [job, other]);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn operators_may_be_killed_fifty_times() {
    let Some(world) = world() else { return };
    outlive(&world, |_| {
        let mut kills = 0;
        while kills < 50 {
            // Whoever runs, as soon as it runs: most are still about to lead.
            for replica in world.replicas().unwrap_or_default() {
                kills += u32::from(world.try_signal(&replica, "-KILL"));
            }
        }
        world.leader();
    });
}
