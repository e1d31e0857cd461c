//! What the API server itself refuses, by the definition that the chart installs: no operator runs here.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use pollux_testbed::{Cluster, TestbedError, wait_for};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);

/// A cluster that knows PolluxJobs, unless none can run here.
fn cluster() -> Option<Cluster> {
    let cluster = match Cluster::without_nodes(None) {
        Err(TestbedError::Unavailable(why)) => {
            // Past what the test runner holds back.
            io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
            return None;
        }
        other => other.unwrap(),
    };
    let definition = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/pollux/crds/polluxjobs.yaml");
    cluster.kubectl(&["create", "--filename", definition.to_str().unwrap()]).unwrap();
    wait_for("PolluxJobs are known", LIMIT, || cluster.kubectl(&["get", "polluxjobs"]).map(Some)).unwrap();
    Some(cluster)
}

fn job(name: &str, spec: &Value) -> Value {
    let container = json!({"name": "main", "image": "torch", "command": ["python"]});
    let mut job = json!({
        "apiVersion": "pollux.dev/v1alpha1", "kind": "PolluxJob", "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container]}}},
    });
    for (field, value) in spec.as_object().unwrap() {
        job["spec"][field] = value.clone();
    }
    job
}

#[test]
#[ignore = "starts a real API server: make test-kube"]
fn what_makes_no_sense_is_refused_by_the_api_server_with_a_sentence() {
    let Some(cluster) = cluster() else { return };
    let create = |job: &Value| cluster.kubectl_with(&["create", "--filename=-"], job);
    for (spec, expected) in [
        (json!({"replicasMin": 3, "replicas": 2}), "expected replicasMin <= replicas <= replicasMax"),
        (json!({"replicas": 3, "replicasMax": 2}), "replicas is larger than replicasMax"),
        (json!({"replicasMin": 3, "replicasMax": 2}), "replicasMin is larger than replicasMax"),
        (json!({"work": {"epochs": 1, "baselineSteps": 1}}), "expected either epochs or baselineSteps"),
        (json!({"work": {}}), "expected either epochs or baselineSteps"),
        (json!({"work": {"epochs": 0}}), "spec.work.epochs"),
        (json!({"work": {"epochs": 5_000_000_000_u64}}), "spec.work.epochs"),
        (json!({"batchSize": 5_000_000_000_u64}), "spec.batchSize"),
        (json!({"podsPer": "Pod"}), "supported values: \"Node\", \"Replica\""),
        (json!({"gpusPerReplica": 0}), "spec.gpusPerReplica"),
        (json!({"gpusPerReplica": "two"}), "spec.gpusPerReplica"),
        (json!({"replicasMax": 1_000_000}), "spec.replicasMax"),
        (json!({"gpuTypes": [""]}), "spec.gpuTypes"),
        (json!({"flexibility": "Rubber"}), "supported values: \"Elastic\", \"NonPreemptible\", \"Rigid\""),
        (json!({"queue": "../../etc"}), "spec.queue"),
        (json!({"timeLimit": -1}), "spec.timeLimit"),
        (json!({"retries": 1001}), "spec.retries"),
        (json!({"template": null}), "spec.template"),
        (json!({"template": "none"}), "spec.template"),
        (json!({"replica": 3}), "unknown field \"spec.replica\""),
    ] {
        let refused = create(&job("x", &spec)).unwrap_err().to_string();
        assert!(refused.contains(expected), "{spec}: {refused}");
    }
    let long = create(&job(&"x".repeat(129), &json!({}))).unwrap_err().to_string();
    assert!(long.contains("metadata.name: expected up to 128 characters"), "{long}");
}

#[test]
#[ignore = "starts a real API server: make test-kube"]
fn a_job_has_defaults_and_only_two_fields_can_be_changed() {
    let Some(cluster) = cluster() else { return };
    cluster.kubectl_with(&["create", "--filename=-"], &job("plain", &json!({}))).unwrap();
    let mut spec = cluster.get(&["get", "polluxjob", "plain"]).unwrap()["spec"].take();
    spec.as_object_mut().unwrap().remove("template");
    let defaults = json!({
        "replicasMin": 1, "gpusPerReplica": 1, "podsPer": "Node", "gpuTypes": [], "flexibility": "Elastic", "priority": 0,
        "retries": 3, "suspend": false,
    });
    assert_eq!(spec, defaults);
    let edit = |spec: Value| {
        let patch = json!({"spec": spec}).to_string();
        cluster.kubectl(&["patch", "polluxjob", "plain", "--type=merge", "--patch", &patch])
    };
    edit(json!({"suspend": true, "ttlSecondsAfterFinished": 60})).unwrap();
    for (field, value) in [
        ("replicas", json!(2)),
        ("replicasMin", json!(2)),
        ("replicasMax", json!(2)),
        ("gpusPerReplica", json!(2)),
        ("podsPer", json!("Replica")),
        ("gpuTypes", json!(["A100"])),
        ("flexibility", json!("Rigid")),
        ("batchSize", json!(64)),
        ("priority", json!(1)),
        ("queue", json!("vision")),
        ("work", json!({"epochs": 1})),
        ("retries", json!(1)),
        ("timeLimit", json!(60)),
        ("checkpointClaim", json!("kept")),
        ("template", json!({"metadata": {"labels": {"a": "b"}}})),
    ] {
        let refused = edit(json!({ field: value })).unwrap_err().to_string();
        assert!(refused.contains("only suspend and ttlSecondsAfterFinished can be changed"), "{field}: {refused}");
    }
}
