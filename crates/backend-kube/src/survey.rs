//! What nodes and pods tell somebody who has forgotten what was ordered.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use pollux_backend::{NodeInfo, ReplicaId};
use pollux_policy::JobId;

use crate::KubeSettings;
use crate::bundle::told_to_stop;
use crate::names::{INSTANCE_LABEL, NUMBER_END, first_replica, job_of, pod_name, replicas_of};
use crate::node::{Taken, info, is_used, taken_by};
use crate::pod::required_node;
use crate::stage::{Stage, is_deleted, is_partial, stage};

/// A pod of ours that holds GPUs: it runs or is about to, all of it, and nobody has told it to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPod {
    /// Whose it is, as it says itself.
    pub job: JobId,
    /// Where it is.
    pub node: String,
    /// Its replicas, in the order of their numbers.
    pub replicas: Vec<ReplicaId>,
    /// The uids of what owns it.
    pub owners: Vec<String>,
}

/// All that is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// Nodes that are used, with what others leave there, by name.
    pub nodes: Vec<NodeInfo>,
    /// Pods of ours that hold GPUs.
    pub held: Vec<HeldPod>,
    /// The highest number that a replica of any pod of ours has.
    pub last_replica: Option<u64>,
}

impl Survey {
    /// Looks at all nodes and pods of a cluster.
    pub fn of(nodes: &[Node], pods: &[Pod], settings: &KubeSettings) -> Self {
        let is_ours =
            |pod: &&Pod| pod.labels().get(INSTANCE_LABEL) == Some(&settings.instance) && first_replica(pod).is_some();
        let is_number = |number: &u64| *number < NUMBER_END;
        let (ours, others): (Vec<&Pod>, Vec<&Pod>) = pods.iter().partition(is_ours);
        let mut taken: BTreeMap<&str, Taken> = BTreeMap::new();
        for pod in others {
            let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else { continue };
            let sum = taken.entry(node).or_default();
            *sum = sum.and(taken_by(pod, settings));
        }
        let left = |node: &Node| info(node, taken.get(node.name_any().as_str()).copied().unwrap_or_default(), settings);
        let used = nodes.iter().filter(|node| is_used(node, settings));
        let used: BTreeMap<String, NodeInfo> = used.map(|node| (node.name_any(), left(node))).collect();
        Self {
            nodes: used.into_values().collect(),
            held: ours.iter().filter_map(|pod| held(pod)).collect(),
            last_replica: ours.iter().flat_map(|pod| replicas_of(pod)).map(|it| it.0).filter(is_number).max(),
        }
    }
}

fn held(pod: &Pod) -> Option<HeldPod> {
    let (job, first) = (job_of(pod)?, first_replica(pod)?);
    let mut replicas = replicas_of(pod);
    replicas.sort_unstable();
    let is_whole = stage(pod) != Stage::Ended && !is_partial(pod);
    let may_stay = !is_deleted(pod) && told_to_stop(pod).is_none();
    let is_named_so = pod.name_any() == pod_name(job, first) && replicas.iter().all(|it| it.0 < NUMBER_END);
    (is_whole && may_stay && is_named_so).then_some(())?;
    let owners = pod.owner_references().iter().map(|owner| owner.uid.clone()).collect();
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    Some(HeldPod { job, node: bound.or_else(|| required_node(pod))?.to_owned(), replicas, owners })
}

#[cfg(test)]
mod tests {
    use pollux_supervisor::STOP_ANNOTATION;
    use serde_json::{Value, json};

    use super::*;
    use crate::names::{GATE, JOB_LABEL, REPLICA_LABEL, replica_label};

    fn pod(replicas: &[u64], changes: &Value) -> Pod {
        let mut labels = json!({INSTANCE_LABEL: "pollux", JOB_LABEL: "3", REPLICA_LABEL: replicas[0].to_string()});
        for id in &replicas[1..] {
            labels[replica_label(ReplicaId(*id))] = "".into();
        }
        let mut pod = json!({
            "metadata": {"name": format!("pollux-3-{}", replicas[0]), "labels": labels,
                "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u"}]},
            "spec": {"nodeName": "b", "containers": [{"name": "main"}]},
            "status": {"phase": "Pending"},
        });
        for (pointer, value) in changes.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pods_that_hold_gpus_are_found_and_what_others_have_is_taken() {
        let node = |name: &str, gpus: &str| -> Node {
            let status = json!({"allocatable": {"nvidia.com/gpu": gpus, "cpu": "8", "memory": "1Gi"}});
            serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap()
        };
        let gated = json!({"/spec/nodeName": null, "/spec/schedulingGates": [{"name": GATE}], "/spec/affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]},
            ]}},
        }});
        let asks = json!({"requests": {"nvidia.com/gpu": "1", "cpu": "2"}});
        let pods = [
            pod(&[7, 9, 8], &json!({})),
            pod(&[12], &gated),
            pod(&[1], &json!({"/status/phase": "Failed"})),
            pod(&[2], &json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"})),
            pod(&[4], &json!({"/metadata/annotations": {STOP_ANNOTATION: "4 30"}})),
            pod(&[15], &json!({"/metadata/name": "somebody-s"})),
            pod(&[NUMBER_END], &json!({})),
            pod(&[6], &json!({"/metadata/labels": {}, "/spec/containers": [{"name": "main", "resources": asks}]})),
        ];
        let survey = Survey::of(&[node("b", "4"), node("a", "4"), node("plain", "0")], &pods, &KubeSettings::default());
        let held = |node: &str, replicas: &[u64]| HeldPod {
            job: JobId(3),
            node: node.to_owned(),
            replicas: replicas.iter().copied().map(ReplicaId).collect(),
            owners: vec!["u".to_owned()],
        };
        assert_eq!(survey.held, [held("b", &[7, 8, 9]), held("a", &[12])]);
        assert_eq!(survey.last_replica, Some(15));
        let left: Vec<_> = survey.nodes.iter().map(|node| (node.name.as_str(), node.gpus, node.cpus)).collect();
        assert_eq!(left, [("a", 4, Some(8)), ("b", 3, Some(6))]);
    }
}
