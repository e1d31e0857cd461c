use std::collections::{BTreeMap, BTreeSet};

use pollux_api::Node;
use pollux_client::Client;
use pollux_job::{JobSpec, size};

use super::text::count;
use crate::output::one_line;

/// What to know of a job that no node of the cluster has room for, however idle; nothing if one has, or if that is not
/// known.
pub(super) fn warning(client: &Client, spec: &JobSpec) -> Option<String> {
    lacks(&client.nodes().ok()?.nodes, spec).map(|what| format!("{what}: it waits until nodes are added"))
}

fn lacks(nodes: &[Node], spec: &JobSpec) -> Option<String> {
    let list = |names: &mut dyn Iterator<Item = &str>| names.map(one_line).collect::<Vec<_>>().join(", ");
    let allows = |node: &&Node| spec.gpu_types.is_empty() || spec.gpu_types.contains(&node.gpu_type);
    let allowed: Vec<&Node> = nodes.iter().filter(allows).collect();
    if allowed.is_empty() {
        let wanted = list(&mut spec.gpu_types.iter().map(String::as_str));
        let there: BTreeSet<&str> = nodes.iter().map(|node| node.gpu_type.as_str()).collect();
        return (!spec.gpu_types.is_empty()).then(|| match there.is_empty() {
            true => format!("no node has GPUs of type {wanted}, and there is no node yet"),
            false => format!("no node has GPUs of type {wanted}, only {}", list(&mut there.into_iter())),
        });
    }
    let gpus = allowed.iter().map(|node| node.gpus).max().unwrap_or(0);
    if spec.gpus_per_replica > gpus {
        return Some(format!("no node has {}, only {gpus} or fewer", count(spec.gpus_per_replica, "GPU")));
    }
    let [cpus, memory] = [
        allowed.iter().map(|node| node.cpus.map(u64::from)).max_by_key(|cpus| cpus.unwrap_or(u64::MAX)).flatten(),
        allowed.iter().map(|node| node.memory).max_by_key(|memory| memory.unwrap_or(u64::MAX)).flatten(),
    ];
    if let (Some(wanted), Some(most)) = (spec.cpus, cpus)
        && u64::from(wanted) > most
    {
        return Some(format!("no node has {}, only {most} or fewer", count(wanted, "CPU")));
    }
    if let (Some(wanted), Some(most)) = (spec.memory, memory)
        && wanted > most
    {
        return Some(format!("no node has {} of memory, only {} or less", size(wanted), size(most)));
    }
    let mut replicas: BTreeMap<&str, u64> = BTreeMap::new();
    for node in allowed {
        *replicas.entry(&node.gpu_type).or_default() += u64::from(node.gpus / spec.gpus_per_replica.max(1));
    }
    let most = replicas.into_values().max().unwrap_or(0);
    let fewest = spec.fewest();
    (u64::from(fewest) > most)
        .then(|| format!("the nodes of one GPU type have room for {most} of {}", count(fewest, "replica")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(gpu_type: &str, gpus: u32) -> Node {
        let value = serde_json::json!({
            "name": gpu_type, "gpus": gpus, "gpu_type": gpu_type, "gpus_held": 0, "cpus": 8, "cpus_held": 0,
            "memory": 1_u64 << 34, "memory_held": 0, "is_draining": false, "is_unreachable": false, "is_retired": false,
            "jobs": [],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_no_node_has_is_told() {
        let nodes = [node("a100", 2), node("t4", 2)];
        let spec = || JobSpec::new("a", 1);
        let rigid = |replicas| JobSpec { replicas_min: replicas, replicas, ..spec() };
        for (spec, expected) in [
            (spec(), None),
            (rigid(2), None),
            (
                JobSpec { gpu_types: vec!["h100".to_owned()], ..spec() },
                Some("no node has GPUs of type h100, only a100, t4"),
            ),
            (JobSpec { gpus_per_replica: 3, ..spec() }, Some("no node has 3 GPUs, only 2 or fewer")),
            (JobSpec { cpus: Some(9), ..spec() }, Some("no node has 9 CPUs, only 8 or fewer")),
            (
                JobSpec { memory: Some(1 << 35), ..spec() },
                Some("no node has 32.0 GiB of memory, only 16.0 GiB or less"),
            ),
            (rigid(4), Some("the nodes of one GPU type have room for 2 of 4 replicas")),
        ] {
            assert_eq!(lacks(&nodes, &spec).as_deref(), expected, "{spec:?}");
        }
    }
}
