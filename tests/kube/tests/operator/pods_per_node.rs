//! Jobs with a pod for each node, which holds all that they have there.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::training::{Training, of_size};
use crate::world::{World, world};

/// A job of so many GPUs, with a pod for each node.
fn submit<'a>(world: &'a World, name: &str, min: u32, max: u32) -> Training<'a> {
    let mut job = of_size(world, name, min, max);
    job["spec"]["podsPer"] = "Node".into();
    Training::submit(world, &job)
}

fn trains_on_gpus(job: &Training<'_>, gpus: u32, nodes: u32) {
    job.wait(&format!("it trains on {gpus} GPUs of {nodes} nodes"), |status| {
        status["gpus"] == gpus && status["nodeCount"] == nodes && status["phase"] == "Running"
    });
    job.trains_on();
}

/// The pods of a job that run: their nodes, and how many GPUs and replicas each has.
fn shapes(job: &Training<'_>) -> BTreeSet<(String, u32, usize)> {
    let is_running = |pod: &&Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
    let pods = job.pods();
    let shape = |pod: &Value| {
        let gpus = &pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"];
        let labels = pod["metadata"]["labels"].as_object().unwrap();
        let replicas = labels.keys().filter(|label| label.starts_with("pollux.dev/replica")).count();
        (pod["spec"]["nodeName"].as_str().unwrap().to_owned(), gpus.as_str().unwrap().parse().unwrap(), replicas)
    };
    pods.iter().filter(is_running).map(shape).collect()
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_job_has_one_pod_on_each_node_that_holds_all_its_gpus_there_and_grows_by_nodes_in_place() {
    let Some(world) = world() else { return };
    // One node is kept by somebody else at first.
    let other = submit(&world, "other", 4, 4);
    trains_on_gpus(&other, 4, 1);
    let first = submit(&world, "first", 4, 12);
    trains_on_gpus(&first, 8, 2);
    let (before, of_other, epoch) = (first.containers(), other.containers(), world.epoch());
    let nodes = shapes(&first);
    assert!(nodes.len() == 2 && nodes.iter().all(|(_, gpus, replicas)| (*gpus, *replicas) == (4, 4)), "{nodes:?}");
    // Another operator finds them as they are.
    let leader = world.leader();
    let killed = ["delete", "pod", &leader.pod, "--namespace=pollux", "--force", "--grace-period=0"];
    world.cluster.kubectl(&killed).unwrap();
    world.await_epoch_above(epoch);
    first.trains_on();
    assert_eq!((first.containers(), other.containers()), (before.clone(), of_other), "they train on as they were");
    other.delete();
    trains_on_gpus(&first, 12, 3);
    let after = first.containers();
    assert!(after.len() == 3 && after.is_superset(&before), "it has grown in place: {after:?} after {before:?}");
    first.trains_on();
    first.delete();
    world.check_gpus();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn another_number_of_gpus_on_a_node_is_another_pod() {
    let Some(world) = world() else { return };
    let others = ["left", "right"].map(|name| submit(&world, name, 4, 4));
    others.iter().for_each(|other| trains_on_gpus(other, 4, 1));
    let beside = submit(&world, "beside", 2, 2);
    trains_on_gpus(&beside, 2, 1);
    let job = submit(&world, "grows", 2, 4);
    trains_on_gpus(&job, 2, 1);
    let (before, of_others) = (job.containers(), others.each_ref().map(Training::containers));
    beside.delete();
    trains_on_gpus(&job, 4, 1);
    let after = job.containers();
    assert!(after.len() == 1 && after.is_disjoint(&before), "{after:?} after {before:?}");
    assert!(shapes(&job).iter().all(|(_, gpus, replicas)| (*gpus, *replicas) == (4, 4)));
    assert_eq!(others.each_ref().map(Training::containers), of_others, "the pods of others are left alone");
    // Each replica has a log of its own.
    let pod = job.running().remove(0);
    let log = world.cluster.kubectl(&["logs", &pod, "--namespace=team"]).unwrap();
    let speakers: BTreeSet<&str> =
        log.lines().filter_map(|line| line.strip_prefix("[replica ")?.split(']').next()).collect();
    assert!(!speakers.is_empty(), "{log}");
    for training in others.into_iter().chain([job]) {
        training.trains_on();
        training.delete();
    }
    world.check_gpus();
}
