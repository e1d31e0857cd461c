//! What keeps a job from starting: what is free, what it is short of, and which nodes are drained.

use std::collections::BTreeMap;

use pollux_engine::{Job, Node};

use super::{are, gpus};
use crate::Cluster;

/// Why a job that would fit has nothing, as the end of a sentence about it.
pub(super) fn shortage(cluster: &Cluster<'_>, job: &Job) -> String {
    let replica = job.per_replica();
    let fewest = job.spec().fewest();
    let of_gpus = |node: &Node| u64::from(free_gpus(node) / replica.gpus.max(1));
    let of_cpus = |node: &Node| match (node.cpus(), replica.cpus) {
        (None, _) | (_, 0) => u64::MAX,
        (Some(cpus), each) => u64::from(cpus.saturating_sub(node.cpus_held()) / each),
    };
    let of_memory = |node: &Node| match (node.memory(), replica.memory) {
        (None, _) | (_, 0) => u64::MAX,
        (Some(memory), each) => memory.saturating_sub(node.memory_held()) / each,
    };
    let is_enough = |fits: &dyn Fn(&Node) -> u64| most_of_one_type(cluster, job, fits) >= u64::from(fewest);
    if is_enough(&of_gpus) {
        let short = [("CPUs", &of_cpus as &dyn Fn(&Node) -> u64), ("memory", &of_memory)].into_iter();
        let mut short = short.filter(|(_, fits)| !is_enough(&|node| of_gpus(node).min(fits(node))));
        if let Some((what, _)) = short.next() {
            return format!("waits for {what}: the nodes with free GPUs have too little left for it");
        }
    }
    let free: u32 = usable(cluster, job).map(free_gpus).sum();
    let free = if free == 0 { "no GPU that it may use is".to_owned() } else { are(free) };
    let policy = cluster.settings().policy.name();
    format!("needs {} at once; {free} free, and {policy} puts other jobs first", gpus(job, fewest))
}

/// How much there is on the nodes that a job may use, of the type of GPU of which there is most.
pub(super) fn most_of_one_type(cluster: &Cluster<'_>, job: &Job, of: &dyn Fn(&Node) -> u64) -> u64 {
    let mut types: BTreeMap<_, u64> = BTreeMap::new();
    for node in usable(cluster, job) {
        let sum = types.entry(node.gpu_type()).or_default();
        *sum = sum.saturating_add(of(node));
    }
    types.into_values().max().unwrap_or(0)
}

/// Sentences about nodes that are drained, and about those that end, if there are any.
pub(super) fn drained(cluster: &Cluster<'_>) -> Vec<String> {
    let named = |which: &dyn Fn(&&Node) -> bool| {
        let nodes = cluster.engine().nodes().filter(which);
        nodes.map(|node| cluster.node_name(node.id())).collect::<Vec<_>>()
    };
    let ending = named(&|node| node.is_ending());
    let drained = named(&|node| node.is_draining() && !node.is_ending());
    let (is, it) = if drained.len() == 1 { ("is", "it") } else { ("are", "them") };
    let (ends, takes) = if ending.len() == 1 { ("ends", "takes") } else { ("end", "take") };
    let drained = (!drained.is_empty())
        .then(|| format!("{} {is} drained: `pollux undrain` uses {it} again.", drained.join(", ")));
    let ending = (!ending.is_empty()).then(|| format!("{} {ends} soon and {takes} nothing new.", ending.join(", ")));
    drained.into_iter().chain(ending).collect()
}

fn usable<'a>(cluster: &'a Cluster<'_>, job: &'a Job) -> impl Iterator<Item = &'a Node> {
    let (engine, now, allowed) = (cluster.engine(), cluster.now(), &job.spec().gpu_types);
    let is_allowed = move |node: &Node| {
        let name = engine.gpu_type_name(node.gpu_type());
        allowed.is_empty() || name.is_some_and(|name| allowed.iter().any(|allowed| allowed == name.as_str()))
    };
    engine.nodes().filter(move |node| node.is_schedulable(now) && is_allowed(node))
}

fn free_gpus(node: &Node) -> u32 {
    node.gpus().saturating_sub(node.gpus_held())
}
