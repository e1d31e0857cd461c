//! From nodes, and the pods of others on them, to what may be used.

use k8s_openapi::api::core::v1::{Node, Pod};
use pollux_backend::NodeInfo;

use crate::KubeSettings;
use crate::quantity::amount;
use crate::requests::asked_by;

/// Whether a node can be spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// It takes replicas.
    Up(NodeInfo),
    /// Its kubelet is silent.
    Unreachable,
}

/// What is not ours to give, of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Taken {
    pub(crate) gpus: f64,
    pub(crate) cpus: f64,
    pub(crate) memory: f64,
}

impl Taken {
    /// With what another pod asks for.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { gpus: self.gpus + other.gpus, cpus: self.cpus + other.cpus, memory: self.memory + other.memory }
    }
}

/// Whether a node is one of those that are used, and has GPUs.
pub(crate) fn is_used(node: &Node, settings: &KubeSettings) -> bool {
    let labels = node.metadata.labels.as_ref();
    let has = |(name, value): (&String, &String)| labels.is_some_and(|labels| labels.get(name) == Some(value));
    settings.node_labels.iter().all(has) && allocatable(node, &settings.gpu_resource) >= 1.0
}

/// How a node is, given what others took of it. What is cordoned takes nobody new; who runs there stays.
pub(crate) fn state(node: &Node, taken: Taken, settings: &KubeSettings) -> NodeState {
    if is_ready(node) { NodeState::Up(info(node, taken, settings)) } else { NodeState::Unreachable }
}

/// What a node has, whether it can be spoken to or not.
pub(crate) fn info(node: &Node, taken: Taken, settings: &KubeSettings) -> NodeInfo {
    let name = node.metadata.name.clone().unwrap_or_default();
    let left = |resource: &str, taken: f64| (allocatable(node, resource) - taken).max(0.0).floor();
    let labels = node.metadata.labels.as_ref();
    let gpu_type = labels.and_then(|labels| labels.get(&settings.type_label)).cloned();
    NodeInfo {
        gpus: left(&settings.gpu_resource, taken.gpus) as u32,
        cpus: Some((left("cpu", taken.cpus) as u32).max(1)),
        memory: Some((left("memory", taken.memory) as u64).max(1)),
        gpu_type: gpu_type.unwrap_or_else(|| "gpu".to_owned()),
        address: address(node).unwrap_or_else(|| name.clone()),
        name,
        end: None,
    }
}

/// What a pod keeps others from having, as the cluster's scheduler counts it: none once it has ended.
pub(crate) fn taken_by(pod: &Pod, settings: &KubeSettings) -> Taken {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let Some(spec) = pod.spec.as_ref().filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))) else {
        return Taken::default();
    };
    let of = |resource: &str| asked_by(spec, resource);
    Taken { gpus: of(&settings.gpu_resource), cpus: of("cpu"), memory: of("memory") }
}

fn allocatable(node: &Node, resource: &str) -> f64 {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.and_then(|allocatable| amount(allocatable.get(resource)?)).unwrap_or(0.0)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn address(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_deref()?;
    addresses.iter().find(|address| address.type_ == "InternalIP").map(|address| address.address.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "node-1", "labels": {"nvidia.com/gpu.product": "A100", "pool": "training"}},
            "status": {
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "15500m", "memory": "64Gi"},
                "conditions": [{"type": "Ready", "status": ready}],
                "addresses": [{"type": "Hostname", "address": "node-1"}, {"type": "InternalIP", "address": "10.0.0.5"}],
            },
        }))
        .expect("a node")
    }

    fn pod(phase: &str) -> Pod {
        let asks = |gpus: &str, cpu: &str| json!({"requests": {"nvidia.com/gpu": gpus, "cpu": cpu, "memory": "1Gi"}});
        serde_json::from_value(json!({
            "spec": {
                "initContainers": [{"name": "first", "resources": {"requests": {"cpu": "3"}}}],
                "overhead": {"cpu": "250m"},
                "containers": [{"name": "a", "resources": asks("1", "500m")}, {"name": "b", "resources": asks("1", "1")}],
            },
            "status": {"phase": phase},
        }))
        .expect("a pod")
    }

    #[test]
    fn a_node_has_what_others_leave() {
        let settings = KubeSettings::default();
        let taken = taken_by(&pod("Running"), &settings);
        assert_eq!(taken, Taken { gpus: 2.0, cpus: 3.25, memory: 2_147_483_648.0 });
        let expected = NodeInfo {
            name: "node-1".to_owned(),
            gpus: 6,
            gpu_type: "A100".to_owned(),
            cpus: Some(12),
            memory: Some(62 << 30),
            address: "10.0.0.5".to_owned(),
            end: None,
        };
        assert_eq!(state(&node("True"), taken, &settings), NodeState::Up(expected));
        assert_eq!(taken_by(&pod("Succeeded"), &settings), Taken::default());
    }

    #[test]
    fn a_node_whose_kubelet_is_silent_is_unreachable() {
        for ready in ["False", "Unknown"] {
            assert_eq!(state(&node(ready), Taken::default(), &KubeSettings::default()), NodeState::Unreachable);
        }
    }

    #[test]
    fn only_nodes_with_gpus_and_the_labels_are_used() {
        let mut settings = KubeSettings::default();
        settings.node_labels.insert("pool".to_owned(), "training".to_owned());
        assert!(is_used(&node("True"), &settings));
        settings.node_labels.insert("pool".to_owned(), "serving".to_owned());
        assert!(!is_used(&node("True"), &settings));
        let cpus_only = KubeSettings { gpu_resource: "amd.com/gpu".to_owned(), ..KubeSettings::default() };
        assert!(!is_used(&node("True"), &cpus_only));
    }
}
