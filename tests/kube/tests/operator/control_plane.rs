//! The API server and etcd go away, and come back.

use std::thread;
use std::time::{Duration, Instant};

use crate::training::{Training, conclude, containers_of, train_on_as_they_were, training};
use crate::world::{World, world};

/// Trainings go on as they were through a fault of the control plane, and another job can start afterwards.
fn outlive(world: &World, fault: impl Fn(&[Training<'_>; 2])) {
    let both = Training::start_both(world);
    let containers = containers_of(&both);
    fault(&both);
    world.leader();
    train_on_as_they_were(&both, &containers);
    let other = Training::start_whole(world, "newcomer", 4);
    let [steady, whole] = both;
    conclude(world, [steady, whole, other]);
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_goes_on_while_the_api_server_is_away_for_a_minute() {
    let Some(world) = world() else { return };
    outlive(&world, |both| {
        let end = Instant::now() + Duration::from_secs(60);
        world.cluster.stop_api_server().unwrap();
        both.iter().for_each(Training::trains_on);
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
fn jobs_train_on_when_the_journal_is_damaged() {
    let Some(world) = world() else { return };
    let both = Training::start_both(&world);
    let ids = || both.each_ref().map(|job| job.status().unwrap()["id"].clone());
    let (before, containers, epoch) = (ids(), containers_of(&both), world.epoch());
    world.cluster.kubectl(&["delete", "configmap", "pollux-journal", "--namespace=pollux"]).unwrap();
    for replica in world.replicas().unwrap() {
        world.signal(&replica, "-KILL");
    }
    world.await_epoch_above(epoch);
    world.leader();
    train_on_as_they_were(&both, &containers);
    for job in &both {
        job.wait("it is known to train", |status| status["phase"] == "Running" && status["gpus"] == 4);
    }
    assert_eq!(ids(), before, "they are the same jobs");
    let events = ["get", "events.events.k8s.io", "--namespace=pollux", "--field-selector=reason=JournalDamaged"];
    let events = world.cluster.get(&events).unwrap();
    assert!(events["items"][0]["note"].as_str().unwrap().starts_with("The journal was damaged"), "{events}");
    let other = Training::start_whole(&world, "newcomer", 4);
    // What was rebuilt is kept: the next one reads it as usual.
    let epoch = world.epoch();
    world.signal(&world.leader(), "-KILL");
    world.await_epoch_above(epoch);
    train_on_as_they_were(&both, &containers);
    let [steady, whole] = both;
    conclude(&world, [steady, whole, other]);
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
