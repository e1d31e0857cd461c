//! What the chart installs, and what it refuses; and that the image fits it.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pollux_testbed::{TestbedError, Tier, prepare};
use serde::Deserialize;
use serde_json::{Value, json};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Where helm is, unless it cannot be had here.
fn helm() -> Option<PathBuf> {
    match prepare(Tier::ControlPlane) {
        Err(TestbedError::Unavailable(why)) => {
            // Past what the test runner holds back.
            io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
            None
        }
        other => Some(other.unwrap().join("helm")),
    }
}

fn template(helm: &Path, values: &[&str]) -> Output {
    let mut command = Command::new(helm);
    command.args(["template", "gpus", "--namespace=ml"]).arg(deploy().join("helm/pollux")).args(values);
    command.output().unwrap()
}

/// What a release is made of, by kind and name.
fn rendered(helm: &Path, values: &[&str]) -> BTreeMap<String, Value> {
    let output = template(helm, values);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let objects = serde_norway::Deserializer::from_str(&text).map(|part| Value::deserialize(part).unwrap());
    let objects = objects.filter(|object| !object.is_null());
    let name = |object: &Value| {
        format!("{} {}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    };
    objects.map(|object| (name(&object), object)).collect()
}

#[test]
#[ignore = "builds helm: make test-kube"]
fn a_release_holds_what_an_operator_needs_and_extras_where_they_are_asked_for() {
    let Some(helm) = helm() else { return };
    let usual = rendered(&helm, &[]);
    let expected = [
        "ClusterRole ml-gpus",
        "ClusterRole ml-gpus-edit",
        "ClusterRole ml-gpus-view",
        "ClusterRoleBinding ml-gpus",
        "Deployment gpus",
        "PodDisruptionBudget gpus",
        "Role gpus",
        "Role gpus-users",
        "RoleBinding gpus",
        "RoleBinding gpus-users",
        "Service gpus",
        "ServiceAccount gpus",
    ];
    assert_eq!(usual.keys().map(String::as_str).collect::<Vec<_>>(), expected);
    let all =
        rendered(&helm, &["--set=networkPolicy.enabled=true,serviceMonitor.enabled=true,serviceMonitor.labels.a=b"]);
    let more: Vec<&str> = all.keys().filter(|key| !usual.contains_key(*key)).map(String::as_str).collect();
    assert_eq!(more, ["NetworkPolicy gpus", "ServiceMonitor gpus"]);
    let endpoint = &all["ServiceMonitor gpus"]["spec"]["endpoints"][0];
    assert_eq!(endpoint["tlsConfig"]["serverName"], "gpus.ml.svc");
    assert_eq!(endpoint["tlsConfig"]["ca"]["secret"], json!({"name": "gpus-authority", "key": "ca.crt"}));
    let few = rendered(&helm, &["--set=replicaCount=1,users=null"]);
    assert!(!few.contains_key("PodDisruptionBudget gpus") && !few.contains_key("RoleBinding gpus-users"));
}

#[test]
#[ignore = "builds helm: make test-kube"]
fn the_operator_runs_as_nobody_with_a_root_that_cannot_be_written() {
    let Some(helm) = helm() else { return };
    let deployment = &rendered(&helm, &[])["Deployment gpus"];
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let container = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(pod["containers"][0]["securityContext"], container);
    // The image has the same user, and the program where the chart and every pod look for it.
    let image = fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let user = &pod["securityContext"];
    assert!(image.contains(&format!("USER {}:{}\n", user["runAsUser"], user["runAsGroup"])), "{image}");
    assert!(image.contains(" /bin/pollux\n") && pod["containers"][0]["command"][0] == "/bin/pollux");
}

#[test]
#[ignore = "builds helm: make test-kube"]
fn values_that_make_no_sense_are_refused() {
    let Some(helm) = helm() else { return };
    for (value, expected) in [
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("replicaCount=0", "/replicaCount"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("image.digest=latest", "/image/digest"),
        ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
        ("users[0].kind=Robot", "/users/0"),
    ] {
        let output = template(&helm, &[&format!("--set={value}")]);
        let told = String::from_utf8_lossy(&output.stderr).replace('.', "/");
        assert!(!output.status.success() && told.contains(&expected.replace('.', "/")), "{value}: {told}");
    }
    let lint = Command::new(&helm).args(["lint", "--strict"]).arg(deploy().join("helm/pollux")).output().unwrap();
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}
