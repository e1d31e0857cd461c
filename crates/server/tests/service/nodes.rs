use std::time::Duration;

use pollux_backend::Exit;
use pollux_policy::PolicySettings;
use pollux_server::{Handle, NodeAction, Refused, ServerSettings};

use crate::world::{World, after_plan, eventually, phase, request, settings};

fn nodes(handle: &Handle) -> Vec<(u32, String, u32)> {
    let look = handle.look(|cluster| {
        let shown = |node: &pollux_engine::Node| (node.id().0, cluster.node_name(node.id()).to_owned(), node.gpus());
        cluster.engine().nodes().map(shown).collect()
    });
    look.wait().unwrap()
}

#[test]
fn nodes_keep_their_numbers_over_a_restart_unless_they_changed_or_went() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1), ("b", 2), ("c", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let named = |id, name: &str, gpus| (id, name.to_owned(), gpus);
    eventually("all nodes", || (nodes(server.handle()).len() == 3).then_some(()));
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    world.set_node("b", Some(4));
    world.set_node("c", None);
    let quick =
        ServerSettings { roll_call: Duration::from_millis(100), ..settings(folder.path(), PolicySettings::Fifo) };
    let server = world.serve(quick);
    let expected = [named(0, "a", 1), named(3, "b", 4)];
    eventually("the nodes of today", || (nodes(server.handle()) == expected).then_some(()));
}

#[test]
fn jobs_of_a_lost_node_start_again_elsewhere_and_a_drained_node_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 1)).wait().unwrap();
    eventually("the launch", || (!world.running_for(job).is_empty()).then_some(()));
    world.set_node("b", Some(1));
    eventually("the node", || (nodes(handle).len() == 2).then_some(()));
    handle.act_on_node("b", NodeAction::Drain).wait().unwrap();
    assert_eq!(handle.act_on_node("z", NodeAction::Drain).wait(), Err(Refused::UnknownNode { name: "z".to_owned() }));
    world.set_node("a", None);
    eventually("the queue", || phase(handle, job).filter(|phase| phase == "queued"));
    after_plan(handle);
    assert!(world.running_for(job).is_empty());
    handle.act_on_node("b", NodeAction::Undrain).wait().unwrap();
    let order = eventually("the launch elsewhere", || world.running_for(job).pop());
    assert_eq!((order.node.as_str(), order.environment["POLLUX_GENERATION"].as_str()), ("b", "2"));
    world.check();
}

#[test]
fn a_replica_that_is_stuck_on_a_lost_node_holds_back_only_that_node() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 1)).wait().unwrap();
    let stuck = eventually("the launch", || world.running_for(job).pop()).replica.0;
    world.set_stubborn(stuck, true);
    // The same machine with other GPUs: what ran there is to go first, and does not.
    world.set_node("a", Some(2));
    eventually("the loss", || nodes(handle).is_empty().then_some(()));
    world.set_node("b", Some(1));
    eventually("the other node", || (nodes(handle) == [(1, "b".to_owned(), 1)]).then_some(()));
    world.exit(stuck, Exit::Signal(9));
    eventually("the node itself", || nodes(handle).iter().any(|node| node.1 == "a" && node.2 == 2).then_some(()));
    world.check();
}
