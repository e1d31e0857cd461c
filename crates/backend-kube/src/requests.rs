//! What a pod asks its node for, as the cluster's scheduler counts it.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use crate::quantity::amount;

/// How much of a resource a pod asks for. Containers run together; those that initialise it run before them, one after the
/// other, but for sidecars, which stay. A limit without a request is a request.
pub fn asked_by(pod: &PodSpec, resource: &str) -> f64 {
    let of = |container: &Container| asked(container.resources.as_ref(), resource).unwrap_or(0.0);
    let mut sidecars = 0.0;
    let mut first = 0.0_f64;
    for container in pod.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += of(container);
            first = first.max(sidecars);
        } else {
            first = first.max(sidecars + of(container));
        }
    }
    let together = pod.containers.iter().map(of).sum::<f64>() + sidecars;
    let overhead = pod.overhead.as_ref().and_then(|overhead| amount(overhead.get(resource)?)).unwrap_or(0.0);
    asked(pod.resources.as_ref(), resource).unwrap_or_else(|| together.max(first)) + overhead
}

/// How much of a resource is asked for beside the first container while that runs; nothing where the pod says how much it
/// is altogether.
pub(crate) fn asked_beside_first(pod: &PodSpec, resource: &str) -> Option<f64> {
    if asked(pod.resources.as_ref(), resource).is_some() {
        return None;
    }
    let sidecars = pod.init_containers.iter().flatten().filter(|it| it.restart_policy.as_deref() == Some("Always"));
    let others = pod.containers.iter().skip(1).chain(sidecars);
    Some(others.filter_map(|container| asked(container.resources.as_ref(), resource)).sum())
}

/// How much of a resource is asked for here, if that is said.
fn asked(resources: Option<&ResourceRequirements>, resource: &str) -> Option<f64> {
    let resources = resources?;
    [&resources.requests, &resources.limits].into_iter().flatten().find_map(|amounts| amount(amounts.get(resource)?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cpus(pod: Value) -> f64 {
        asked_by(&serde_json::from_value(pod).expect("a pod"), "cpu")
    }

    fn container(requests: &Value, limits: &Value) -> Value {
        json!({"name": "a", "resources": {"requests": requests, "limits": limits}})
    }

    fn cpu(amount: &str) -> Value {
        container(&json!({"cpu": amount}), &json!({"cpu": "9"}))
    }

    #[test]
    fn containers_run_together_and_a_limit_without_a_request_is_one() {
        let limited = container(&json!({"memory": "1Gi"}), &json!({"cpu": "2"}));
        assert_eq!(cpus(json!({"containers": [cpu("500m"), limited, {"name": "b"}]})), 2.5);
        assert_eq!(cpus(json!({"containers": [cpu("1")], "overhead": {"cpu": "250m"}})), 1.25);
        assert_eq!(cpus(json!({"containers": [cpu("1"), cpu("1")], "resources": {"requests": {"cpu": "4"}}})), 4.0);
    }

    #[test]
    fn those_that_initialise_a_pod_run_before_but_for_sidecars() {
        let mut sidecar = cpu("1");
        sidecar["restartPolicy"] = "Always".into();
        let with = |first: Value| cpus(json!({"initContainers": first, "containers": [cpu("2")]}));
        assert_eq!(with(json!([cpu("3"), cpu("1")])), 3.0);
        assert_eq!(with(json!([cpu("1")])), 2.0);
        assert_eq!(with(json!([sidecar, cpu("3")])), 4.0, "the one that stays, and the one after it");
        assert_eq!(with(json!([cpu("3"), sidecar])), 3.0);
    }
}
