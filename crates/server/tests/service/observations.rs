//! What a backend sees of machines that are slow, far away or somebody else's.

use pollux_backend::{Epoch, Exit, Observation, ReplicaId};
use pollux_policy::{JobId, PolicySettings};
use pollux_server::{Handle, ServerError};

use crate::world::{World, eventually, request, settings};

fn sentences(handle: &Handle, job: JobId) -> String {
    let explained = handle.look(move |cluster| pollux_server::explain(cluster, job, &|_| true)).wait().unwrap();
    explained.map(|explanation| explanation.sentences.join(" ")).unwrap_or_default()
}

#[test]
fn a_replica_that_cannot_run_yet_says_why_and_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 2)]);
    world.set_pending(Some("its image is pulled"));
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 2)).wait().unwrap();
    let is_pending =
        || handle.look(move |cluster| cluster.engine().job(job).is_some_and(pollux_engine::Job::is_pending)).wait();
    eventually("the wait", || (is_pending() == Ok(true)).then_some(()));
    let told = eventually("the reasons", || Some(sentences(handle, job)).filter(|told| told.contains("replica 2")));
    assert!(told.contains("It cannot run yet: replica 1 (its image is pulled), replica 2 (its image is pulled)."));
    world.observe(&Observation::Started { replica: ReplicaId(1) });
    world.observe(&Observation::Pending { replica: ReplicaId(2), reason: "in a queue".to_owned() });
    let told = eventually("the change", || Some(sentences(handle, job)).filter(|told| told.contains("in a queue")));
    assert!(told.contains("It cannot run yet: replica 2 (in a queue)."), "{told}");
    // Late news of one that runs change nothing.
    world.observe(&Observation::Pending { replica: ReplicaId(1), reason: "late".to_owned() });
    world.observe(&Observation::Started { replica: ReplicaId(2) });
    eventually("the start", || (is_pending() == Ok(false)).then_some(()));
    assert!(!sentences(handle, job).contains("cannot run yet"));
    world.check();
}

#[test]
fn a_replica_that_waited_for_a_place_in_vain_says_so_and_the_node_is_left_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1), ("b", 1)]);
    world.set_pending(Some("untolerated taint"));
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("picky", 1)).wait().unwrap();
    eventually("the wait", || sentences(handle, job).contains("untolerated taint").then_some(()));
    let reason = "no node took it within 3 minutes: untolerated taint".to_owned();
    world.observe(&Observation::StartFailed { replica: ReplicaId(1), reason: reason.clone(), retryable: true });
    let told = eventually("the end", || Some(sentences(handle, job)).filter(|told| told.contains("in a row")));
    assert!(told.contains(&format!("The last time: {reason}.")), "{told}");
    let cooling = |cluster: &pollux_server::Cluster<'_>| {
        cluster.engine().nodes().filter(|node| node.cooling_until().is_some()).count()
    };
    assert_eq!(handle.look(cooling).wait(), Ok(0), "others may find a place there");
}

#[test]
fn a_node_that_does_not_answer_keeps_its_job_and_its_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let first = handle.submit(request("first", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(first).is_empty()).then_some(()));
    world.observe(&Observation::NodeUnreachable { node: "a".to_owned() });
    let told = eventually("the word", || Some(sentences(handle, first)).filter(|it| it.contains("does not answer")));
    assert!(told.contains("a does not answer: what it runs there is kept"), "{told}");
    let held = handle.look(|cluster| cluster.engine().nodes().map(pollux_engine::Node::gpus_held).sum::<u32>());
    assert_eq!(held.wait(), Ok(1));
    let second = handle.submit(request("second", 1)).wait().unwrap();
    world.set_node("a", Some(1));
    eventually("the node", || (!sentences(handle, first).contains("does not answer")).then_some(()));
    assert!(world.running_for(second).is_empty(), "nothing was freed");
    world.exit(world.running_for(first)[0].replica.0, Exit::Code(0));
    eventually("the next", || (!world.running_for(second).is_empty()).then_some(()));
    world.check();
}

#[test]
fn a_node_that_did_not_answer_before_a_restart_is_reachable_when_it_is_seen_again() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let job = server.handle().submit(request("job", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(job).is_empty()).then_some(()));
    world.observe(&Observation::NodeUnreachable { node: "a".to_owned() });
    eventually("the word", || sentences(server.handle(), job).contains("does not answer").then_some(()));
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    eventually("the node", || {
        let told = sentences(server.handle(), job);
        (!told.is_empty() && !told.contains("does not answer")).then_some(())
    });
    assert_eq!(world.running_for(job).len(), 1);
    world.check();
}

#[test]
fn a_scheduler_that_was_taken_over_from_ends() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    world.supersede(Epoch(77));
    // Whatever it does next is refused; it may have ended by then.
    let _ = server.handle().submit(request("job", 1)).wait();
    let error = server.join().unwrap_err();
    assert!(matches!(error, ServerError::Superseded { by: Epoch(77), .. }), "{error}");
    assert!(error.to_string().starts_with("epoch 1 of this scheduler is over: one of epoch 77"), "{error}");
    assert!(world.running().is_empty());
}
