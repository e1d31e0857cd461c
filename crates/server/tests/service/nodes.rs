use std::path::Path;
use std::time::Duration;

use pollux_backend::{Exit, Observation};
use pollux_job::JobSpec;
use pollux_policy::PolicySettings;
use pollux_server::{Handle, NodeAction, Refused, ServerSettings, views};

use crate::world::{World, after_plan, eventually, phase, request, settings};

fn nodes(handle: &Handle) -> Vec<(u32, String, u32)> {
    let look = handle.look(|cluster| {
        let shown = |node: &pollux_engine::Node| (node.id().0, cluster.node_name(node.id()).to_owned(), node.gpus());
        cluster.engine().nodes().map(shown).collect()
    });
    look.wait().unwrap()
}

/// Nodes in a word, and what others wait for.
fn states(handle: &Handle) -> Vec<String> {
    let list = handle.look(views::nodes).wait().unwrap();
    let state = |node: &pollux_api::Node| match (node.is_retired, node.is_unreachable) {
        (true, _) => format!("{} retired", node.name),
        (false, true) => format!("{} unreachable", node.name),
        (false, false) => format!("{} up", node.name),
    };
    let held_back = list.held_back.iter().map(|node| format!("{}: {}", node.name, node.reason));
    list.nodes.iter().map(state).chain(held_back).collect()
}

/// Waits for no node long.
fn hasty(folder: &Path) -> ServerSettings {
    ServerSettings { node_grace: Duration::from_millis(100), ..settings(folder, PolicySettings::Fifo) }
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
    let server = world.serve(hasty(folder.path()));
    let expected = [named(0, "a", 1), named(2, "c", 1), named(3, "b", 4)];
    eventually("the nodes of today", || (nodes(server.handle()) == expected).then_some(()));
    eventually("the silence", || (states(server.handle()) == ["a up", "b up", "c unreachable"]).then_some(()));
    world.observe(&Observation::NodeGone { node: "c".to_owned() });
    eventually("the loss", || (states(server.handle()) == ["a up", "b up"]).then_some(()));
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
fn a_replica_that_is_stuck_on_a_changed_machine_holds_back_only_that_machine_and_its_own_job() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 1)).wait().unwrap();
    let stuck = eventually("the launch", || world.running_for(job).pop()).replica.0;
    world.set_stubborn(stuck, true);
    // The same machine with other GPUs: what ran there is to go first, and does not.
    world.set_node("a", Some(2));
    world.set_node("b", Some(1));
    let waits = "a: replica 1 of job 1 must leave a first, which was on the same machine";
    eventually("the other node", || (states(handle) == ["a retired", "b up", waits]).then_some(()));
    // There is room for it elsewhere, and it would run twice.
    after_plan(handle);
    let held = handle.look(move |cluster| cluster.engine().job(job).map(pollux_engine::Job::gpus_held)).wait();
    assert_eq!((held, world.running_for(job).len()), (Ok(Some(1)), 1));
    let next = handle.submit(request("next", 1)).wait().unwrap();
    world.exit(stuck, Exit::Signal(9));
    eventually("the new node", || (states(handle) == ["a up", "b up"]).then_some(()));
    eventually("both jobs", || (world.running_for(job).len() + world.running_for(next).len() == 2).then_some(()));
    world.check();
}

#[test]
fn a_machine_that_is_gone_frees_what_its_earlier_nodes_held() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let job = handle.submit(request("resnet", 1)).wait().unwrap();
    let stuck = eventually("the launch", || world.running_for(job).pop()).replica.0;
    world.set_stubborn(stuck, true);
    world.set_node("a", Some(2));
    world.set_node("b", Some(1));
    eventually("the change", || states(handle).contains(&"a retired".to_owned()).then_some(()));
    world.set_node("a", None);
    let order = eventually("the launch elsewhere", || world.running_for(job).pop());
    assert_eq!((order.node.as_str(), states(handle)), ("b", vec!["b up".to_owned()]));
    world.check();
}

#[test]
fn a_node_that_is_silent_after_a_restart_keeps_its_job_and_others_are_used_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let job = server.handle().submit(request("resnet", 1)).wait().unwrap();
    let replica = eventually("the launch", || world.running_for(job).pop()).replica;
    world.set_node("b", Some(1));
    eventually("the node", || (nodes(server.handle()).len() == 2).then_some(()));
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    world.set_silent("a");
    let server = world.serve(hasty(folder.path()));
    let handle = server.handle();
    eventually("the silence", || (states(handle) == ["a unreachable", "b up"]).then_some(()));
    let next = handle.submit(request("next", 1)).wait().unwrap();
    let order = eventually("the other launch", || world.running_for(next).pop());
    assert_eq!(order.node, "b");
    let third = handle.submit(request("third", 1)).wait().unwrap();
    after_plan(handle);
    assert!(world.running_for(third).is_empty(), "nothing was freed");
    world.set_node("a", Some(1));
    eventually("the answer", || (states(handle) == ["a up", "b up"]).then_some(()));
    let running: Vec<_> = world.running_for(job).iter().map(|order| order.replica).collect();
    assert_eq!((running, phase(handle, job).is_some()), (vec![replica], true));
    world.check();
}

#[test]
fn a_job_of_a_silent_node_moves_when_the_node_is_known_to_be_gone() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let job = server.handle().submit(request("resnet", 1)).wait().unwrap();
    eventually("the launch", || world.running_for(job).pop());
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    world.set_silent("a");
    world.set_node("b", Some(1));
    let server = world.serve(hasty(folder.path()));
    eventually("the silence", || (states(server.handle()) == ["a unreachable", "b up"]).then_some(()));
    after_plan(server.handle());
    assert_eq!(world.running_for(job)[0].node, "a");
    world.set_node("a", None);
    let order = eventually("the launch elsewhere", || world.running_for(job).pop());
    assert_eq!(order.node, "b");
    world.check();
}

#[test]
fn nodes_that_are_seen_are_let_in_while_others_are_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("m/0", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    eventually("the node", || (nodes(server.handle()).len() == 1).then_some(()));
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    world.set_silent("m/0");
    world.set_node("m/1", Some(1));
    world.set_node("z", Some(1));
    let patient =
        ServerSettings { node_grace: Duration::from_secs(3_600), ..settings(folder.path(), PolicySettings::Fifo) };
    let server = world.serve(patient);
    let waits = "m/1: m/0, which was on the same machine, was not seen since the restart";
    eventually("the other machine", || (states(server.handle()) == ["m/0 up", "z up", waits]).then_some(()));
}

#[test]
fn a_machine_that_is_cut_into_other_nodes_after_a_restart_is_emptied_first() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("m/0", 1)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let job = server.handle().submit(request("resnet", 1)).wait().unwrap();
    let stuck = eventually("the launch", || world.running_for(job).pop()).replica.0;
    world.set_stubborn(stuck, true);
    server.handle().shut_down().wait().unwrap();
    server.join().unwrap();
    world.set_silent("m/0");
    world.set_node("m/1", Some(1));
    world.set_node("z", Some(1));
    let server = world.serve(hasty(folder.path()));
    let handle = server.handle();
    let waits = "m/1: replica 1 of job 1 must leave m/0 first, which was on the same machine";
    eventually("the change", || (states(handle) == ["m/0 retired", "z up", waits]).then_some(()));
    after_plan(handle);
    assert_eq!(world.running_for(job)[0].node, "m/0");
    // What is known of it survives another restart.
    handle.shut_down().wait().unwrap();
    server.join().unwrap();
    let server = world.serve(hasty(folder.path()));
    let handle = server.handle();
    eventually("the same", || (states(handle) == ["m/0 retired", "z up", waits]).then_some(()));
    world.exit(stuck, Exit::Signal(9));
    let order = eventually("the launch elsewhere", || world.running_for(job).pop());
    assert_ne!(order.node, "m/0");
    eventually("the new node", || (states(handle) == ["m/1 up", "z up"]).then_some(()));
    world.check();
}

#[test]
fn cpus_and_memory_of_a_node_follow_what_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(&[("a", 4)]);
    let server = world.serve(settings(folder.path(), PolicySettings::Fifo));
    let handle = server.handle();
    let shown = || {
        let list = handle.look(views::nodes).wait().unwrap();
        list.nodes.first().map(|node| ((node.cpus, node.cpus_held), (node.memory, node.memory_held)))
    };
    let spec = JobSpec { cpus: Some(3), memory: Some(10), ..request("resnet", 2) };
    let job = handle.submit(spec).wait().unwrap();
    eventually("the launch", || (world.running_for(job).len() == 2).then_some(()));
    assert_eq!(shown(), Some(((None, 0), (None, 0))));
    for (cpus, memory) in [(16, 64), (4, 64), (8, 10)] {
        world.set_resources(Some(cpus), Some(memory));
        world.set_node("a", Some(4));
        let expected = Some(((Some(cpus), 6), (Some(memory), 20)));
        eventually("other resources", || (shown() == expected).then_some(()));
    }
    assert_eq!(world.running_for(job).len(), 2, "nobody is stopped for it");
    world.check();
}
