//! Nodes that KWOK plays: many, and without containers.

use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, is_ready, wait_for};
use crate::error::TestbedError;
use crate::node::NodeSettings;

impl Cluster {
    /// Adds nodes that KWOK plays: `fake-1` and so on, with 64 CPUs, 512 GiB and a taint that real pods do not
    /// tolerate. Pods there run until they are deleted or get the annotation `testbed.pollux.dev/exit-code`.
    ///
    /// # Errors
    ///
    /// If they do not become ready.
    pub fn add_fake_nodes(&self, count: u32, settings: &NodeSettings) -> Result<(), TestbedError> {
        let ready = self.count_fake_nodes()?;
        let nodes: Vec<Value> = (ready + 1..=ready + count as usize).map(|index| fake_node(index, settings)).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
        self.kubectl_with(&["create", "--filename=-", "--output=name"], &list)?;
        wait_for(&format!("{count} fake nodes are ready"), LIMIT, || {
            Ok((self.count_fake_nodes()? == ready + count as usize).then_some(()))
        })
    }

    /// How many of them are ready.
    fn count_fake_nodes(&self) -> Result<usize, TestbedError> {
        let nodes = self.get(&["get", "nodes", "--selector=type=kwok"])?;
        Ok(nodes["items"].as_array().map_or(0, |nodes| nodes.iter().filter(|node| is_ready(node)).count()))
    }
}

fn fake_node(index: usize, settings: &NodeSettings) -> Value {
    let name = format!("fake-{index}");
    let resources = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": settings.gpus.to_string()});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "nvidia.com/gpu.product": settings.gpu_type,
            },
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    })
}
