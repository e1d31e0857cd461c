//! Nodes by name: the engine numbers them, a backend names them.

use std::collections::{BTreeMap, BTreeSet};

use pollux_backend::{NodeEnd, NodeInfo, ReplicaId};
use pollux_engine::{Engine, Event};
use pollux_model::GpuTypeName;
use pollux_policy::{NodeId, Timestamp};
use pollux_store::NodeRow;
use tracing::{debug, info};

use crate::fleet::{Effects, Fleet, Replica};

/// Nodes of version 0.1 are all of this machine.
const LOOPBACK: &str = "127.0.0.1";

/// All nodes that ever were, and those that are up.
#[derive(Debug, Default)]
pub(crate) struct NodeRegistry {
    known: BTreeMap<NodeId, NodeRow>,
    /// Nodes that the engine has and uses, by name.
    current: BTreeMap<String, NodeId>,
    /// What the backend has seen last.
    seen: BTreeMap<String, NodeInfo>,
    /// Nodes from before a restart that were not seen yet.
    missing: BTreeSet<String>,
    /// Nodes that do not answer.
    unreachable: BTreeSet<NodeId>,
    /// CPUs and memory that the engine was told.
    resources: BTreeMap<NodeId, (Option<u32>, Option<u64>)>,
    /// Ends that the engine was told.
    ends: BTreeMap<NodeId, NodeEnd>,
    /// Nodes that were seen and are not let in yet, by name, and what they wait for.
    held_back: BTreeMap<String, String>,
}

/// An end that is told anew is the same up to here: each time it took another time to be told.
const SAME_END_MS: u64 = 2_000;

/// What is kept of a node.
fn row(node: &NodeInfo) -> NodeRow {
    let NodeInfo { name, gpus, gpu_type, address, .. } = node.clone();
    NodeRow { name, gpu_type: GpuTypeName::nearest(&gpu_type).to_string(), gpus, address }
}

/// Whether a node may be on the machine of an earlier one: what still runs on the one is in the way of the other.
fn shares_machine(earlier: &NodeRow, node: &NodeInfo) -> bool {
    earlier.name == node.name || earlier.address.is_empty() || earlier.address == node.address
}

impl NodeRegistry {
    pub(crate) fn recovered(known: BTreeMap<NodeId, NodeRow>, engine: &Engine) -> Self {
        let used = || engine.nodes().filter(|node| !node.is_retired());
        let current: BTreeMap<String, NodeId> =
            used().filter_map(|node| Some((known.get(&node.id())?.name.clone(), node.id()))).collect();
        let missing = current.keys().cloned().collect();
        let unreachable = used().filter(|node| node.is_unreachable()).map(pollux_engine::Node::id).collect();
        let resources = used().map(|node| (node.id(), (node.cpus(), node.memory()))).collect();
        let end = |end: pollux_policy::NodeEnd| NodeEnd {
            drains_at_ms: end.drains_at.0,
            ends_at_ms: end.ends_at.map(|at| at.0),
        };
        let ends = used().filter_map(|node| Some((node.id(), end(node.end()?)))).collect();
        Self { known, current, missing, unreachable, resources, ends, ..Self::default() }
    }

    /// The name of a node, also of one that is gone.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        self.known.get(&node).map_or("", |detail| &detail.name)
    }

    /// A node that is used.
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

    /// Nodes that were seen and are not let in yet, and what they wait for.
    pub(crate) fn held_back(&self) -> impl Iterator<Item = (&NodeInfo, &str)> {
        self.held_back.iter().filter_map(|(name, reason)| Some((self.seen.get(name)?, reason.as_str())))
    }

    /// The backend sees a node. One of the same name, kind and number of GPUs is the same.
    pub(crate) fn up(&mut self, seen: NodeInfo, out: &mut Effects) {
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
                let (cpus, memory) = (seen.cpus, seen.memory);
                if self.resources.insert(node, (cpus, memory)) != Some((cpus, memory)) {
                    out.events.push(Event::NodeResources { node, cpus, memory });
                }
                self.note_end(node, seen.end, out);
            } else {
                self.retire(&seen.name, out);
            }
        }
        self.seen.insert(seen.name.clone(), seen);
    }

    /// Tells the engine when a node ends, if that is news.
    fn note_end(&mut self, node: NodeId, end: Option<NodeEnd>, out: &mut Effects) {
        let known = self.ends.get(&node).copied();
        let is_close = |one: u64, other: u64| one.abs_diff(other) < SAME_END_MS;
        let is_same = match (known, end) {
            (None, None) => true,
            (Some(known), Some(end)) => {
                is_close(known.drains_at_ms, end.drains_at_ms)
                    && known.ends_at_ms.is_some() == end.ends_at_ms.is_some()
                    && known.ends_at_ms.zip(end.ends_at_ms).is_none_or(|(known, end)| is_close(known, end))
            }
            (Some(_), None) | (None, Some(_)) => false,
        };
        if is_same {
            return;
        }
        match end {
            Some(end) => drop(self.ends.insert(node, end)),
            None => drop(self.ends.remove(&node)),
        }
        let end = end.map(|end| pollux_policy::NodeEnd {
            drains_at: Timestamp(end.drains_at_ms),
            ends_at: end.ends_at_ms.map(Timestamp),
        });
        out.events.push(Event::NodeEnds { node, end });
    }

    /// The backend lost a node, and every replica on it.
    pub(crate) fn gone(&mut self, name: &str, fleet: &mut Fleet, out: &mut Effects) {
        self.missing.remove(name);
        self.seen.remove(name);
        let current = self.current.remove(name);
        // Retired ones of that name were on the same machine.
        let mut lost = fleet.nodes();
        lost.retain(|node| self.name(*node) == name);
        lost.extend(current);
        for node in lost {
            self.unreachable.remove(&node);
            out.events.push(Event::NodeLost { node });
            fleet.lose_node(node, out);
        }
    }

    /// A node will not be used again. What runs there is known until it is gone.
    fn retire(&mut self, name: &str, out: &mut Effects) {
        if let Some(node) = self.current.remove(name) {
            self.unreachable.remove(&node);
            out.events.push(Event::NodeRetired { node });
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

    /// Nodes from before a restart of which the backend has said nothing are waited for no longer: they do not answer.
    /// Where others of their machine were seen, they are no part of it any more.
    pub(crate) fn stop_waiting(&mut self, out: &mut Effects) {
        for name in std::mem::take(&mut self.missing) {
            let Some(&node) = self.current.get(&name) else { continue };
            let shares = |seen| self.known.get(&node).is_some_and(|known| shares_machine(known, seen));
            if self.seen.values().any(shares) {
                self.retire(&name, out);
                continue;
            }
            debug!(node = name, "node was not seen since the restart: it is unreachable, and what it runs is kept");
            if self.unreachable.insert(node) {
                out.events.push(Event::NodeUnreachable { node });
            }
        }
    }

    /// Lets nodes in that were seen and have nothing of ours on them; returns what is to be kept of them.
    pub(crate) fn admit(&mut self, fleet: &Fleet, out: &mut Effects) -> Vec<(NodeId, NodeRow)> {
        let is_new = |seen: &&NodeInfo| !self.current.contains_key(&seen.name);
        let newcomers: Vec<NodeInfo> = self.seen.values().filter(is_new).cloned().collect();
        let held_before = std::mem::take(&mut self.held_back);
        let mut joined = Vec::new();
        if newcomers.is_empty() {
            return joined;
        }
        newcomers.iter().for_each(|seen| self.retire_predecessors(seen, out));
        let used: BTreeSet<NodeId> = self.current.values().copied().collect();
        let left: Vec<_> = fleet.replicas().filter(|(_, replica)| !used.contains(&replica.node)).collect();
        for seen in newcomers {
            if let Some(reason) = self.obstacle(&seen, &left) {
                if !held_before.contains_key(&seen.name) {
                    info!(node = seen.name, reason, "node is held back");
                }
                self.held_back.insert(seen.name, reason);
                continue;
            }
            let node = NodeId(self.known.keys().next_back().map_or(0, |last| last.0 + 1));
            let detail = row(&seen);
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
            self.resources.insert(node, (seen.cpus, seen.memory));
            self.note_end(node, seen.end, out);
            self.current.insert(seen.name, node);
        }
        joined
    }

    /// A machine that answers under another name than a node that does not has become another.
    fn retire_predecessors(&mut self, seen: &NodeInfo, out: &mut Effects) {
        let unreachable = self.unreachable.iter().filter_map(|node| self.known.get(node));
        let is_past = |known: &&NodeRow| shares_machine(known, seen) && !self.missing.contains(&known.name);
        let past: Vec<String> = unreachable.filter(is_past).map(|known| known.name.clone()).collect();
        past.iter().for_each(|name| self.retire(name, out));
    }

    /// What a node waits for that was seen. A machine that is cut into other nodes than before has what it had under the
    /// old names: `left` are replicas on nodes that are not used any more.
    fn obstacle(&self, seen: &NodeInfo, left: &[(ReplicaId, &Replica)]) -> Option<String> {
        let is_there = |node: NodeId| self.known.get(&node).is_some_and(|known| shares_machine(known, seen));
        let may_come = |name: &&String| self.current.get(*name).is_some_and(|node| is_there(*node));
        if let Some(name) = self.missing.iter().find(may_come) {
            return Some(format!("{name}, which was on the same machine, was not seen since the restart"));
        }
        let mut left = left.iter().filter(|(_, replica)| is_there(replica.node));
        let (id, replica) = left.next()?;
        let others = match left.count() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let (node, job) = (self.name(replica.node), replica.job);
        Some(format!("replica {} of {job}{others} must leave {node} first, which was on the same machine", id.0))
    }
}
