//! Nodes lose their kubelet or the network, are drained, and go for good. The jobs have a pod for each node.

use pollux_testbed::{Node, NodeSettings};
use serde_json::Value;

use crate::training::Training;
use crate::world::{World, world};

/// A node on which a training runs and the leader does not.
fn node_of(world: &World, job: &Training<'_>) -> Node {
    let leader = world.leader();
    let nodes = job.status().unwrap()["nodes"].as_array().unwrap().clone();
    let mut others = nodes.iter().filter_map(Value::as_str).filter(|name| *name != leader.node);
    world.cluster.node(others.next_back().unwrap()).unwrap()
}

fn is_elsewhere(status: &Value, node: &Node) -> bool {
    let nodes = status["nodes"].as_array();
    status["phase"] == "Running" && nodes.is_some_and(|nodes| nodes.iter().all(|it| it != node.name()))
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_outlives_a_kubelet_that_is_killed_and_started_again() {
    let Some(world) = world() else { return };
    let job = Training::start_on_nodes(&world, "steady", 2);
    let (containers, node) = (job.containers(), node_of(&world, &job));
    node.kill_kubelet().unwrap();
    world.await_ready(&node, false);
    job.trains_on();
    node.start_kubelet().unwrap();
    world.await_ready(&node, true);
    job.trains_on();
    assert_eq!(job.containers(), containers, "whoever trained trains on, and nobody else does");
    job.delete();
    world.check_gpus();
}

/// Cuts a node off; nothing that may still run there is given to another.
fn cut_off(world: &World, job: &Training<'_>) -> Node {
    let node = node_of(world, job);
    node.cut_off().unwrap();
    world.await_ready(&node, false);
    let said = format!("{} does not answer", node.name());
    job.wait("it says so", |status| status["message"].as_str().is_some_and(|message| message.contains(&said)));
    world.check_gpus();
    node
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_goes_on_when_a_node_that_was_cut_off_is_back() {
    let Some(world) = world() else { return };
    let job = Training::start_on_nodes(&world, "steady", 3);
    let node = cut_off(&world, &job);
    node.mend().unwrap();
    world.await_ready(&node, true);
    job.wait("it is on all GPUs", |status| status["gpus"] == 12 && status["phase"] == "Running");
    job.trains_on();
    job.delete();
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_goes_on_elsewhere_when_a_node_is_gone_for_good() {
    let Some(world) = world() else { return };
    let job = Training::start_on_nodes(&world, "steady", 3);
    let node = cut_off(&world, &job);
    // Somebody who knows that its machine is gone says so.
    world.cluster.remove_node(&node).unwrap();
    job.wait("it goes on elsewhere", |status| is_elsewhere(status, &node));
    job.trains_on();
    world.cluster.add_node(&NodeSettings::default()).unwrap();
    job.wait("it is on the new node", |status| status["gpus"] == 12 && status["phase"] == "Running");
    job.trains_on();
    job.delete();
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_training_leaves_a_node_that_is_drained() {
    let Some(world) = world() else { return };
    let job = Training::start_on_nodes(&world, "steady", 3);
    let node = node_of(&world, &job);
    let drain = ["drain", node.name(), "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s"];
    world.cluster.kubectl(&drain).unwrap();
    job.wait("it goes on elsewhere", |status| is_elsewhere(status, &node));
    job.trains_on();
    world.cluster.kubectl(&["uncordon", node.name()]).unwrap();
    job.wait("it is on all GPUs again", |status| status["gpus"] == 12 && status["phase"] == "Running");
    job.trains_on();
    job.delete();
    world.check_gpus();
}
