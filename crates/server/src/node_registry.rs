//! Nodes by name: the engine numbers them, a backend names them.

use std::collections::{BTreeMap, BTreeSet};

use pollux_backend::NodeInfo;
use pollux_engine::{Engine, Event};
use pollux_model::GpuTypeName;
use pollux_policy::NodeId;
use pollux_store::NodeRow;

use crate::fleet::{Effects, Fleet};

/// Nodes of version 0.1 are all of this machine.
const LOOPBACK: &str = "127.0.0.1";

/// All nodes that ever were, and those that are up.
#[derive(Debug, Default)]
pub(crate) struct NodeRegistry {
    known: BTreeMap<NodeId, NodeRow>,
    /// Nodes that the engine has, by name.
    current: BTreeMap<String, NodeId>,
    /// What the backend has seen last.
    seen: BTreeMap<String, NodeInfo>,
    /// Nodes from before a restart that were not seen yet.
    missing: BTreeSet<String>,
    /// Nodes that do not answer.
    unreachable: BTreeSet<NodeId>,
}

/// What is kept of a node.
fn row(node: &NodeInfo) -> NodeRow {
    let NodeInfo { name, gpus, gpu_type, address, .. } = node.clone();
    NodeRow { name, gpu_type: GpuTypeName::nearest(&gpu_type).to_string(), gpus, address }
}

/// Whether a node may be on the same machine as one that is gone: what still runs on the one is in the way of the other.
fn shares_machine(gone: &NodeRow, node: &NodeInfo) -> bool {
    gone.name == node.name || gone.address.is_empty() || gone.address == node.address
}

impl NodeRegistry {
    pub(crate) fn recovered(known: BTreeMap<NodeId, NodeRow>, engine: &Engine) -> Self {
        let up = engine.nodes().filter_map(|node| Some((known.get(&node.id())?.name.clone(), node.id())));
        let current: BTreeMap<String, NodeId> = up.collect();
        let missing = current.keys().cloned().collect();
        let unreachable = engine.nodes().filter(|node| node.is_unreachable()).map(pollux_engine::Node::id).collect();
        Self { known, current, seen: BTreeMap::new(), missing, unreachable }
    }

    /// The name of a node, also of one that is gone.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.known.get(&node).map_or("", |detail| &detail.name)
    }

    /// A node that is up.
    pub(crate) fn current(&self, name: &str) -> Option<NodeId> {
        self.current.get(name).copied()
    }

    /// The type of a node's GPUs, also of one that is gone.
    pub(crate) fn gpu_type(&self, node: NodeId) -> GpuTypeName {
        self.known.get(&node).map(|detail| GpuTypeName::nearest(&detail.gpu_type)).unwrap_or_default()
    }

    /// The host under which the replicas of a node are reached.
    pub(crate) fn address(&self, node: NodeId) -> &str {
        self.known.get(&node).map(|detail| detail.address.as_str()).filter(|it| !it.is_empty()).unwrap_or(LOOPBACK)
    }

    /// Whether nodes from before a restart were not seen yet.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The backend sees a node. One of the same name, kind and number of GPUs is the same.
    pub(crate) fn up(&mut self, seen: NodeInfo, fleet: &mut Fleet, out: &mut Effects) {
        self.missing.remove(&seen.name);
        if let Some(&node) = self.current.get(&seen.name) {
            let detail = row(&seen);
            let is_same = |known: &NodeRow| known.gpus == detail.gpus && known.gpu_type == detail.gpu_type;
            if self.known.get(&node).is_some_and(is_same) {
                // It may have moved.
                self.known.insert(node, detail);
                if self.unreachable.remove(&node) {
                    out.events.push(Event::NodeReachable { node });
                }
            } else {
                self.current.remove(&seen.name);
                out.events.push(Event::NodeLost { node });
                fleet.clear_node(node, out);
            }
        }
        self.seen.insert(seen.name.clone(), seen);
    }

    /// The backend lost a node, and every replica on it.
    pub(crate) fn gone(&mut self, name: &str, fleet: &mut Fleet, out: &mut Effects) {
        self.missing.remove(name);
        self.seen.remove(name);
        if let Some(node) = self.current.remove(name) {
            out.events.push(Event::NodeLost { node });
            fleet.lose_node(node, out);
        }
    }

    /// The backend does not reach a node, and knows nothing of what runs there: everything is kept.
    pub(crate) fn unreachable(&mut self, name: &str, out: &mut Effects) {
        self.missing.remove(name);
        self.seen.remove(name);
        if let Some(&node) = self.current.get(name)
            && self.unreachable.insert(node)
        {
            out.events.push(Event::NodeUnreachable { node });
        }
    }

    /// Whoever was not seen until now is taken as gone; what may still run there is ended.
    pub(crate) fn close_roll_call(&mut self, fleet: &mut Fleet, out: &mut Effects) {
        for name in std::mem::take(&mut self.missing) {
            if let Some(node) = self.current.remove(&name) {
                out.events.push(Event::NodeLost { node });
                fleet.clear_node(node, out);
            }
        }
    }

    /// Lets nodes in that were seen and have nothing of ours on them; returns what is to be kept of them.
    pub(crate) fn admit(&mut self, fleet: &Fleet, out: &mut Effects) -> Vec<(NodeId, NodeRow)> {
        if self.is_incomplete() || self.seen.keys().all(|name| self.current.contains_key(name)) {
            return Vec::new();
        }
        // A machine that is cut into other nodes than before has what it had under the old names.
        let used: BTreeSet<NodeId> = fleet.replicas().map(|(_, replica)| replica.node).collect();
        let is_gone = |node: &NodeId| !self.current.values().any(|current| current == node);
        let held: Vec<NodeRow> =
            used.iter().filter(|node| is_gone(node)).filter_map(|node| self.known.get(node)).cloned().collect();
        let mut joined = Vec::new();
        for (name, seen) in &self.seen {
            if self.current.contains_key(name) || held.iter().any(|gone| shares_machine(gone, seen)) {
                continue;
            }
            let node = NodeId(self.known.keys().next_back().map_or(0, |last| last.0 + 1));
            let detail = row(seen);
            let gpu_type = GpuTypeName::nearest(&detail.gpu_type);
            out.events.push(Event::NodeJoined {
                node,
                gpus: seen.gpus,
                gpu_type,
                cpus: seen.cpus,
                memory: seen.memory,
            });
            joined.push((node, detail.clone()));
            self.known.insert(node, detail);
            self.current.insert(name.clone(), node);
        }
        joined
    }
}
