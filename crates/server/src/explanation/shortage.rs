//! What keeps a job from starting: what is free, what it is short of, and which nodes are drained.

use std::collections::BTreeMap;

use pollux_engine::{Job, Node};

use super::{are, gpus};
use crate::Cluster;

/// Why a job that would fit has nothing, as the end of a sentence about it.
pub(super) fn shortage(cluster: &Cluster<'_>, job: &Job) -> String {
    let replica = job.per_replica();
    let fewest = job.spec().fewest();
    let count = |fits: &dyn Fn(&Node) -> u64| usable(cluster).map(fits).fold(0, u64::saturating_add);
    let of_gpus = |node: &Node| u64::from(free_gpus(node) / replica.gpus.max(1));
    let of_cpus = |node: &Node| match (node.cpus(), replica.cpus) {
        (None, _) | (_, 0) => u64::MAX,
        (Some(cpus), each) => u64::from(cpus.saturating_sub(node.cpus_held()) / each),
    };
    let of_memory = |node: &Node| match (node.memory(), replica.memory) {
        (None, _) | (_, 0) => u64::MAX,
        (Some(memory), each) => memory.saturating_sub(node.memory_held()) / each,
    };
    let is_enough = |replicas: u64| replicas >= u64::from(fewest);
    if is_enough(count(&of_gpus)) {
        let short = [("CPUs", &of_cpus as &dyn Fn(&Node) -> u64), ("memory", &of_memory)].into_iter();
        let mut short = short.filter(|(_, fits)| !is_enough(count(&|node| of_gpus(node).min(fits(node)))));
        if let Some((what, _)) = short.next() {
            return format!("waits for {what}: the nodes with free GPUs have too little left for it");
        }
    }
    let free: u32 = usable(cluster).map(free_gpus).sum();
    let free = if free == 0 { "no GPU is".to_owned() } else { are(free) };
    let policy = cluster.settings().policy.name();
    format!("needs {} at once; {free} free, and {policy} puts other jobs first", gpus(job, fewest))
}

/// GPUs of the type of which there are most.
pub(super) fn most_of_one_type(cluster: &Cluster<'_>) -> u32 {
    let mut types = BTreeMap::new();
    for node in usable(cluster) {
        *types.entry(node.gpu_type()).or_insert(0) += node.gpus();
    }
    types.into_values().max().unwrap_or(0)
}

/// A sentence about nodes that are drained, if there are any.
pub(super) fn drained(cluster: &Cluster<'_>) -> Option<String> {
    let nodes = cluster.engine().nodes().filter(|node| node.is_draining());
    let names: Vec<&str> = nodes.map(|node| cluster.node_name(node.id())).collect();
    let (is, it) = if names.len() == 1 { ("is", "it") } else { ("are", "them") };
    (!names.is_empty()).then(|| format!("{} {is} drained: `pollux undrain` uses {it} again.", names.join(", ")))
}

fn usable<'a>(cluster: &'a Cluster<'_>) -> impl Iterator<Item = &'a Node> {
    let now = cluster.now();
    cluster.engine().nodes().filter(move |node| node.is_schedulable(now))
}

fn free_gpus(node: &Node) -> u32 {
    node.gpus().saturating_sub(node.gpus_held())
}
