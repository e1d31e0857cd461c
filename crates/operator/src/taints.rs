//! Which nodes are kept for others by their taints.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};

/// Taints of Kubernetes itself and of clouds tell how a node is at the moment, which is judged otherwise.
const PASSING: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

/// The taints that keep pods from a node which are given GPUs: all but those that pass, and that for GPUs.
pub(crate) fn taints(node: &Node, gpu_resource: &str) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let keeps = |taint: &&Taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && taint.key != gpu_resource
            && !PASSING.iter().any(|prefix| taint.key.starts_with(prefix))
    };
    taints.iter().filter(keeps).cloned().collect()
}

/// Whether pods with these tolerations may be on a node with these taints.
pub(crate) fn tolerate(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    taints.iter().all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let is_effect = toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let is_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        // Whoever knows it decides; here it is taken to refuse.
        Some(_) => false,
    };
    let is_key = key == taint.key || (key.is_empty() && toleration.operator.as_deref() == Some("Exists"));
    is_key && is_effect && is_value
}

/// A node as far as it says who may use it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Access {
    is_cordoned: bool,
    taints: Vec<Taint>,
}

impl Access {
    pub(crate) fn of(node: &Node, gpu_resource: &str) -> Self {
        let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        Self { is_cordoned, taints: taints(node, gpu_resource) }
    }

    /// Whether nobody may be put there: it is cordoned, or kept for pods that none of these jobs has.
    pub(crate) fn is_closed<'a>(&self, mut jobs: impl Iterator<Item = &'a [Toleration]>) -> bool {
        self.is_cordoned || !(self.taints.is_empty() || jobs.any(|tolerations| tolerate(tolerations, &self.taints)))
    }

    /// Whether it depends on who asks.
    pub(crate) const fn is_for_some(&self) -> bool {
        !self.taints.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn access(spec: &Value) -> Access {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec})).unwrap();
        Access::of(&node, "nvidia.com/gpu")
    }

    fn tolerations(of: &Value) -> Vec<Toleration> {
        serde_json::from_value(of.clone()).unwrap()
    }

    fn is_closed(node: &Value, job: &Value) -> bool {
        let tolerations = tolerations(job);
        access(node).is_closed([tolerations.as_slice()].into_iter())
    }

    #[test]
    fn a_node_is_kept_for_those_who_tolerate_all_its_taints() {
        let node = json!({"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}, {"key": "spot", "effect": "NoExecute"}]});
        let spot = json!({"key": "spot", "operator": "Exists"});
        for (team, expected) in [
            (json!({"key": "team", "value": "a"}), false),
            (json!({"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}), false),
            (json!({"key": "team", "operator": "Exists"}), false),
            (json!({"operator": "Exists"}), false),
            (json!({"key": "team", "value": "b"}), true),
            (json!({"key": "team", "value": "a", "effect": "NoExecute"}), true),
            (json!({"key": "team", "operator": "Lt", "value": "a"}), true),
            (json!({"key": "other", "operator": "Exists"}), true),
        ] {
            assert_eq!(is_closed(&node, &json!([team, spot])), expected, "{team}");
        }
        assert!(is_closed(&node, &json!([spot])));
        assert!(access(&node).is_closed(std::iter::empty()), "nobody is there who could use it");
    }

    #[test]
    fn taints_that_pass_and_that_for_gpus_keep_nobody_away() {
        for taint in [
            json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}),
            json!({"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}),
            json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}),
            json!({"key": "rather-not", "effect": "PreferNoSchedule"}),
        ] {
            assert!(!is_closed(&json!({"taints": [taint]}), &json!([])), "{taint}");
        }
    }

    #[test]
    fn a_node_that_is_cordoned_takes_nobody() {
        assert!(is_closed(&json!({"unschedulable": true}), &json!([{"operator": "Exists"}])));
        assert!(!is_closed(&json!({}), &json!([])));
    }
}
