//! A job that trains, and the account that it gives of every sample.

use std::collections::BTreeSet;

use pollux_testbed::{TestbedError, wait_for};
use serde_json::{Value, json};

use crate::world::{LIMIT, World};

const SAMPLES: &str = "8192";
/// More than any test waits for.
const EPOCHS: &str = "1000000";

const GPUS_OF_A_NODE: u32 = 4;

/// A job in the cluster.
pub(crate) struct Training<'a> {
    pub(crate) world: &'a World,
    pub(crate) name: String,
}

/// A job that trains for as long as it is left, with a pod for each replica: every single one can be looked at, and broken.
/// What a test needs of its specification can be changed.
pub(crate) fn training(world: &World, name: &str) -> Value {
    let mut job = world.cluster.training(name, &["--epochs", EPOCHS, "--samples", SAMPLES, "--pace", "good"]);
    for (field, value) in [
        ("replicasMax", 8.into()),
        ("retries", 1000.into()),
        ("podsPer", "Replica".into()),
        ("work", json!({"epochs": 1_000_000})),
    ] {
        job["spec"][field] = value;
    }
    job
}

/// The same with so many GPUs.
pub(crate) fn of_size(world: &World, name: &str, min: u32, max: u32) -> Value {
    let mut job = training(world, name);
    for (field, replicas) in [("replicasMin", min), ("replicas", min), ("replicasMax", max)] {
        job["spec"][field] = replicas.into();
    }
    job
}

impl<'a> Training<'a> {
    /// Hands a job in.
    pub(crate) fn submit(world: &'a World, job: &Value) -> Self {
        world.cluster.kubectl_with(&["create", "--filename=-"], job).unwrap();
        let name = job["metadata"]["name"].as_str().unwrap().to_owned();
        Self { world, name }
    }

    /// Hands in one that trains on so many GPUs, or on as few as half of them, and waits until it has all.
    pub(crate) fn start(world: &'a World, name: &str, replicas: u32) -> Self {
        Self::start_between(world, name, replicas / 2, replicas)
    }

    /// Hands in one that trains on so many GPUs and no fewer, and waits until it does.
    pub(crate) fn start_whole(world: &'a World, name: &str, replicas: u32) -> Self {
        Self::start_between(world, name, replicas, replicas)
    }

    /// Hands in two that train on four GPUs each, and waits until they do: one with a pod for each replica, one with a pod for
    /// each node.
    pub(crate) fn start_both(world: &'a World) -> [Self; 2] {
        let mut whole = of_size(world, "whole", 4, 4);
        whole["spec"]["podsPer"] = "Node".into();
        [of_size(world, "steady", 4, 4), whole].map(|job| Self::submit(world, &job)).map(|training| training.settled(4))
    }

    /// Hands in one that has a pod for each node, and waits until it has all of so many nodes.
    pub(crate) fn start_on_nodes(world: &'a World, name: &str, nodes: u32) -> Self {
        let mut job = of_size(world, name, GPUS_OF_A_NODE, GPUS_OF_A_NODE * nodes);
        job["spec"]["podsPer"] = "Node".into();
        let training = Self::submit(world, &job).settled(GPUS_OF_A_NODE * nodes);
        assert_eq!(training.running().len(), nodes as usize);
        training
    }

    fn start_between(world: &'a World, name: &str, min: u32, max: u32) -> Self {
        Self::submit(world, &of_size(world, name, min, max)).settled(max)
    }

    fn settled(self, gpus: u32) -> Self {
        self.wait("it trains on all that it may have", |status| status["gpus"] == gpus && status["phase"] == "Running");
        self.trains_on();
        self
    }

    pub(crate) fn status(&self) -> Result<Value, TestbedError> {
        let job = self.world.cluster.get(&["get", "polluxjob", &self.name, "--namespace=team"])?;
        Ok(job["status"].clone())
    }

    /// Waits for a status; the first that is so.
    pub(crate) fn wait(&self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let look = || {
            let status = self.status()?;
            match so(&status) {
                true => Ok(Some(status)),
                false => Err(TestbedError::Command { command: self.name.clone(), output: status.to_string() }),
            }
        };
        wait_for(&format!("{}: {what}", self.name), LIMIT, look).unwrap()
    }

    /// Its pods, such as they are.
    pub(crate) fn pods(&self) -> Vec<Value> {
        let id = self.status().unwrap()["id"].as_u64().unwrap();
        let label = format!("--selector=pollux.dev/job={id}");
        let pods = self.world.cluster.get(&["get", "pods", "--namespace=team", &label]).unwrap();
        pods["items"].as_array().unwrap().clone()
    }

    /// The containers of its pods that run.
    pub(crate) fn containers(&self) -> BTreeSet<String> {
        let pods = self.pods();
        let states = pods.iter().map(|pod| &pod["status"]["containerStatuses"][0]);
        let running = states.filter(|state| !state["state"]["running"].is_null());
        running.map(|state| state["containerID"].as_str().unwrap().to_owned()).collect()
    }

    /// The names of its pods that run.
    pub(crate) fn running(&self) -> Vec<String> {
        let is_running = |pod: &&Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
        self.pods().iter().filter(is_running).map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until two more epochs are over, in which each sample was used once, as in all before.
    pub(crate) fn trains_on(&self) {
        let epochs = || self.world.cluster.audited_epochs(&self.name, SAMPLES).unwrap();
        let before = epochs();
        let more = || Ok((epochs() >= before + 2).then_some(()));
        if let Err(late) = wait_for(&format!("{} trains on after epoch {before}", self.name), LIMIT, more) {
            panic!("{late}: {}", self.status().unwrap_or_default());
        }
    }

    /// Removes the job, and waits until its pods are gone too.
    pub(crate) fn delete(self) {
        let selected = ["delete", "polluxjob", &self.name, "--namespace=team", "--timeout=120s"];
        self.world.cluster.kubectl(&selected).unwrap();
    }
}

/// The containers of two jobs.
pub(crate) fn containers_of(both: &[Training<'_>; 2]) -> [BTreeSet<String>; 2] {
    both.each_ref().map(Training::containers)
}

/// Two jobs train on in the containers that they had.
pub(crate) fn train_on_as_they_were(both: &[Training<'_>; 2], containers: &[BTreeSet<String>; 2]) {
    both.iter().for_each(Training::trains_on);
    assert_eq!(&containers_of(both), containers, "whoever trained trains on, and nobody else does");
}

/// The end of a test: all train on, and no GPU was given to two.
pub(crate) fn conclude<const N: usize>(world: &World, trainings: [Training<'_>; N]) {
    for training in trainings {
        training.trains_on();
        training.delete();
    }
    world.check_gpus();
}
