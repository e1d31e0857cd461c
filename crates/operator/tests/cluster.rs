//! The operator on a real cluster, installed by its chart: real pods train, and it is killed with its disk.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use pollux_testbed::{Cluster, Image, NodeSettings, TestbedError, wait_for};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(300);
const SAMPLES: &str = "8192";

/// A cluster with the operator in it, or why there is none.
fn cluster() -> Option<Cluster> {
    let Some(programs) = env::var_os("POLLUX_STATIC").map(PathBuf::from) else {
        return skip("POLLUX_STATIC is not set; `make test-kube` builds static programs and sets it");
    };
    let cluster = match Cluster::with_nodes(None, &vec![NodeSettings::default(); 2]) {
        Err(TestbedError::Unavailable(why)) => return skip(&why.to_string()),
        other => other.unwrap(),
    };
    cluster.import(&Image::new("pollux.test/pollux:1").program("bin/pollux", &programs.join("pollux"))).unwrap();
    let trainer = programs.join("pollux-trainer");
    cluster.import(&Image::new("pollux.test/trainer:1").program("bin/trainer", &trainer)).unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/pollux");
    let mut helm = cluster.command("helm");
    helm.args(["install", "pollux"]).arg(chart).args(["--namespace=pollux", "--create-namespace", "--wait"]);
    helm.args(["--set=image.repository=pollux.test/pollux,image.pullPolicy=Never,roundIntervalSeconds=2"]);
    let installed = helm.arg("--set-string=image.tag=1").output().unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    cluster.kubectl(&["create", "namespace", "team"]).unwrap();
    Some(cluster)
}

fn skip<T>(why: &str) -> Option<T> {
    // Past what the test runner holds back.
    let mut stderr = io::stderr();
    writeln!(stderr, "skipped: {why}").unwrap();
    None
}

fn job(name: &str, epochs: u32, saved: &Path) -> Value {
    let (epochs_text, audit) = (epochs.to_string(), format!("/pollux/checkpoints/{name}.audit"));
    let command = ["/bin/trainer", "--epochs", &epochs_text, "--samples", SAMPLES, "--pace", "good", "--audit", &audit];
    let container = json!({
        "name": "main", "image": "pollux.test/trainer:1", "imagePullPolicy": "Never", "command": command,
        "volumeMounts": [{"name": "saved", "mountPath": "/pollux/checkpoints"}],
    });
    let pod = json!({"containers": [container], "volumes": [{"name": "saved", "hostPath": {"path": saved}}]});
    json!({
        "apiVersion": "pollux.dev/v1alpha1", "kind": "PolluxJob", "metadata": {"name": name, "namespace": "team"},
        "spec": {"replicasMax": 8, "work": {"epochs": epochs}, "template": {"spec": pod}},
    })
}

fn status(cluster: &Cluster, name: &str) -> Result<Value, TestbedError> {
    Ok(cluster.get(&["get", "polluxjob", name, "--namespace=team"])?["status"].clone())
}

fn wait_until(cluster: &Cluster, name: &str, what: &str, so: impl Fn(&Value) -> bool) {
    let look = || {
        let status = status(cluster, name)?;
        match so(&status) {
            true => Ok(Some(())),
            false => Err(TestbedError::Command { command: name.to_owned(), output: status.to_string() }),
        }
    };
    wait_for(&format!("{name}: {what}"), LIMIT, look).unwrap();
}

/// The containers of a job's pods that run.
fn running(cluster: &Cluster) -> BTreeSet<String> {
    let pods = ["get", "pods", "--namespace=team", "--selector=pollux.dev/job=1"];
    let pods = cluster.get(&pods).unwrap();
    let states = pods["items"].as_array().unwrap().iter().map(|pod| &pod["status"]["containerStatuses"][0]);
    let running = states.filter(|state| !state["state"]["running"].is_null());
    running.map(|state| state["containerID"].as_str().unwrap().to_owned()).collect()
}

fn epoch(cluster: &Cluster) -> u64 {
    let map = cluster.get(&["get", "configmap", "pollux-epoch", "--namespace=pollux"]).unwrap();
    map["data"]["epoch"].as_str().unwrap().parse().unwrap()
}

/// Each epoch's samples were used exactly once.
fn check_audit(file: &Path, epochs: usize) {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), epochs, "{text}");
    for (number, line) in (1..).zip(&lines) {
        assert_eq!(line[..2], [number.to_string().as_str(), SAMPLES], "{text}");
        assert_eq!(line[2], lines[0][2], "{text}");
    }
}

#[test]
fn a_training_grows_over_nodes_outlives_its_operator_and_shrinks_in_place() {
    let Some(cluster) = cluster() else { return };
    let saved = cluster.folder().join("saved");
    fs::create_dir(&saved).unwrap();
    cluster.kubectl_with(&["create", "--filename=-"], &job("first", 60, &saved)).unwrap();
    wait_until(&cluster, "first", "it is on all GPUs of both nodes", |status| {
        status["gpus"] == 8 && status["nodeCount"] == 2 && status["phase"] == "Running"
    });
    let (before, epoch_before) = (running(&cluster), epoch(&cluster));
    assert_eq!(before.len(), 8);

    // The leader with its disk; the other one takes over.
    let leads = "--selector=pollux.dev/leads=pollux";
    let killed = ["delete", "pod", leads, "--namespace=pollux", "--force", "--grace-period=0"];
    cluster.kubectl(&killed).unwrap();
    let taken_over = || Ok((epoch(&cluster) > epoch_before).then_some(()));
    wait_for("another operator acts", LIMIT, taken_over).unwrap();
    assert_eq!(running(&cluster), before, "whoever trained trains on, and nobody else does");

    cluster.kubectl_with(&["create", "--filename=-"], &job("second", 10, &saved)).unwrap();
    wait_until(&cluster, "second", "it trains", |status| status["phase"] == "Running");
    let kept: BTreeSet<String> = running(&cluster).intersection(&before).cloned().collect();
    assert!(!kept.is_empty() && kept.len() < 8, "it has shrunk in place: {kept:?} of {before:?}");
    for (name, epochs) in [("second", 10), ("first", 60)] {
        wait_until(&cluster, name, "it has succeeded", |status| status["phase"] == "Succeeded");
        check_audit(&saved.join(format!("{name}.audit")), epochs);
    }
    for node in cluster.nodes().unwrap() {
        assert_eq!(node.gpu_record().unwrap().given_twice(), Vec::<String>::new());
    }
}
