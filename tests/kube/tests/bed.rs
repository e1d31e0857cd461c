//! The test bed tested: what its clusters promise to the tests that use them.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pollux_testbed::{Cluster, GpuEventKind, Image, NodeSettings, TestbedError, is_ready, wait_for};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(120);

/// One cluster for all tests here, for one at a time: most of them break something and mend it again.
fn cluster() -> Option<MutexGuard<'static, Cluster>> {
    static CLUSTER: OnceLock<Option<Mutex<Cluster>>> = OnceLock::new();
    let start = || usable(Cluster::with_nodes(None, &vec![NodeSettings::default(); 3])).map(Mutex::new);
    Some(CLUSTER.get_or_init(start).as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A cluster, unless none can run here.
fn usable(started: Result<Cluster, TestbedError>) -> Option<Cluster> {
    match started {
        Err(TestbedError::Unavailable(why)) => {
            // Past what the test runner holds back.
            let mut stderr = io::stderr();
            writeln!(stderr, "skipped: {why}").unwrap();
            None
        }
        other => Some(other.unwrap()),
    }
}

/// A pod that runs a shell script.
fn pod(name: &str, node: &str, gpus: u32, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/hostname": node},
            // A node may be away for as long as a test takes.
            "tolerations": [{"operator": "Exists"}],
            // With 0 the kubelet forgets a pod, and gives its GPUs away, before it has ended its processes.
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "pollux.test/busybox:1",
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
            }],
        },
    })
}

trait Pods {
    fn create(&self, pod: &Value);
    fn await_phase(&self, name: &str, phase: &str) -> Value;
    fn delete(&self, name: &str);
    fn await_ready(&self, node: &str, ready: bool);
}

impl Pods for Cluster {
    fn create(&self, pod: &Value) {
        self.kubectl_with(&["create", "--filename=-"], pod).unwrap();
    }

    fn await_phase(&self, name: &str, phase: &str) -> Value {
        let reached = wait_for(&format!("{name} is {phase}"), LIMIT, || {
            let pod = self.get(&["get", "pod", name])?;
            Ok((pod["status"]["phase"] == phase).then_some(pod))
        });
        reached.unwrap()
    }

    fn delete(&self, name: &str) {
        self.kubectl(&["delete", "pod", name, "--timeout=120s"]).unwrap();
    }

    fn await_ready(&self, node: &str, ready: bool) {
        wait_for(&format!("{node} ready: {ready}"), LIMIT, || {
            Ok((is_ready(&self.get(&["get", "node", node])?) == ready).then_some(()))
        })
        .unwrap();
    }
}

fn container_id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn three_nodes_are_ready_with_four_gpus_each() {
    let Some(cluster) = cluster() else { return };
    let nodes = cluster.get(&["get", "nodes"]).unwrap();
    let seen = nodes["items"].as_array().unwrap().iter().map(|node| {
        let gpus = &node["status"]["allocatable"]["nvidia.com/gpu"];
        json!([node["metadata"]["name"], is_ready(node), gpus, node["metadata"]["labels"]["nvidia.com/gpu.product"]])
    });
    let expected = |name| json!([name, true, "4", "NVIDIA-A100"]);
    assert_eq!(seen.collect::<Vec<_>>(), ["node-1", "node-2", "node-3"].map(expected));
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn the_record_says_which_pod_had_which_gpus() {
    let Some(cluster) = cluster() else { return };
    cluster.create(&pod("first", "node-1", 3, "echo $NVIDIA_VISIBLE_DEVICES $FAKE_GPU_ALLOCATION; sleep 1000"));
    cluster.await_phase("first", "Running");
    let told = cluster.kubectl(&["logs", "first"]).unwrap();
    let (devices, allocation) = told.trim().split_once(' ').unwrap();
    let devices: Vec<String> = devices.split(',').map(str::to_owned).collect();
    assert_eq!(devices.len(), 3);
    // Two do not fit beside three, so they wait until those are back.
    cluster.create(&pod("second", "node-1", 2, "true"));
    cluster.delete("first");
    cluster.await_phase("second", "Succeeded");
    cluster.delete("second");
    let node = cluster.node("node-1").unwrap();
    let record = wait_for("the record has the second pod", LIMIT, || {
        let record = node.gpu_record()?;
        let released = |kind: &GpuEventKind| matches!(kind, GpuEventKind::Released(holder) if holder.pod == "second");
        Ok(record.events.iter().any(|event| released(&event.kind)).then_some(record))
    })
    .unwrap();
    assert!(record.pods().contains(&("first", devices.as_slice())), "{record:?}");
    assert!(record.events.iter().any(|event| event.devices == devices
        && matches!(&event.kind, GpuEventKind::Allocated { allocation: given, .. } if given == allocation)));
    assert_eq!(record.given_twice(), Vec::<String>::new());
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_broken_gpu_is_not_given() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.node("node-2").unwrap();
    let await_gpus = |count: &str| {
        wait_for(&format!("{count} GPUs"), LIMIT, || {
            let node = cluster.get(&["get", "node", "node-2"])?;
            Ok((node["status"]["allocatable"]["nvidia.com/gpu"] == count).then_some(()))
        })
        .unwrap();
    };
    node.break_gpus(&["GPU-0", "GPU-2"]).unwrap();
    await_gpus("2");
    cluster.create(&pod("careful", "node-2", 2, "echo $NVIDIA_VISIBLE_DEVICES"));
    cluster.await_phase("careful", "Succeeded");
    assert_eq!(cluster.kubectl(&["logs", "careful"]).unwrap(), "GPU-1,GPU-3\n");
    cluster.delete("careful");
    node.break_gpus(&[]).unwrap();
    await_gpus("4");
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_node_that_is_cut_off_runs_on_and_comes_back() {
    let Some(cluster) = cluster() else { return };
    cluster.create(&pod("lonely", "node-3", 1, "while sleep 0.2; do echo tick; done"));
    let before = container_id(&cluster.await_phase("lonely", "Running"));
    let node = cluster.node("node-3").unwrap();
    node.cut_off().unwrap();
    cluster.await_ready("node-3", false);
    let tasks = node.run("ctr", &["--namespace", "k8s.io", "tasks", "list"]).unwrap();
    assert!(tasks.contains(before.trim_start_matches("containerd://")), "{tasks}");
    node.mend().unwrap();
    cluster.await_ready("node-3", true);
    assert_eq!(container_id(&cluster.await_phase("lonely", "Running")), before);
    cluster.delete("lonely");
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn containers_outlive_their_kubelet() {
    let Some(cluster) = cluster() else { return };
    cluster.create(&pod("steady", "node-1", 4, "sleep 1000"));
    let before = cluster.await_phase("steady", "Running");
    let node = cluster.node("node-1").unwrap();
    node.kill_kubelet().unwrap();
    cluster.await_ready("node-1", false);
    node.start_kubelet().unwrap();
    cluster.await_ready("node-1", true);
    // It has read what it knew of devices: what is taken is not given again.
    cluster.create(&pod("patient", "node-1", 1, "true"));
    assert_eq!(container_id(&cluster.await_phase("steady", "Running")), container_id(&before));
    cluster.delete("steady");
    cluster.await_phase("patient", "Succeeded");
    cluster.delete("patient");
    assert_eq!(node.gpu_record().unwrap().given_twice(), Vec::<String>::new());
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn pods_outlive_the_api_server_and_etcd() {
    let Some(cluster) = cluster() else { return };
    cluster.create(&pod("deaf", "node-2", 1, "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 5"));
    let before = container_id(&cluster.await_phase("deaf", "Running"));
    cluster.stop_api_server().unwrap();
    assert!(cluster.kubectl(&["get", "nodes"]).is_err());
    cluster.restart_etcd().unwrap();
    cluster.start_api_server().unwrap();
    let exec = ["exec", "deaf", "--", "touch", "/tmp/end"];
    wait_for("a command in the pod", LIMIT, || cluster.kubectl(&exec).map(Some)).unwrap();
    let after = cluster.await_phase("deaf", "Failed");
    assert_eq!(container_id(&after), before);
    assert_eq!(after["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 5);
    cluster.delete("deaf");
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn pods_reach_pods_of_other_nodes_services_by_name_and_the_api_server() {
    let Some(cluster) = cluster() else { return };
    cluster.create(&pod("server", "node-1", 0, "while :; do echo hello | nc -l -p 7000; done"));
    cluster.kubectl(&["expose", "pod", "server", "--port=80", "--target-port=7000"]).unwrap();
    let address = cluster.await_phase("server", "Running")["status"]["podIP"].as_str().unwrap().to_owned();
    let script = format!(
        "hear() {{ until nc $1 $2 </dev/null 2>/dev/null; do sleep 0.1; done; }}
        hear {address} 7000; hear server 80; hear server.default.svc.cluster.local 80
        nc kubernetes.default.svc 443 </dev/null && echo reached"
    );
    cluster.create(&pod("client", "node-2", 0, &script));
    cluster.await_phase("client", "Succeeded");
    assert_eq!(cluster.kubectl(&["logs", "client"]).unwrap(), "hello\nhello\nhello\nreached\n");
    cluster.kubectl(&["delete", "service", "server"]).unwrap();
    cluster.delete("server");
    cluster.delete("client");
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn an_image_of_a_static_program_runs_on_every_node() {
    let Some(cluster) = cluster() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("hello.rs"), folder.path().join("hello"));
    fs::write(&source, "fn main() { println!(\"hello\"); }").unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["-C", "target-feature=+crt-static", "-o"]).args([&program, &source]);
    assert!(rustc.status().unwrap().success());
    let image = Image::new("pollux.test/hello:1").program("bin/hello", &program).entrypoint(&["/bin/hello"]);
    cluster.import(&image).unwrap();
    for node in ["node-1", "node-2", "node-3"] {
        let name = format!("hello-{node}");
        let mut pod = pod(&name, node, 0, "");
        pod["spec"]["containers"][0]["image"] = image.name().into();
        pod["spec"]["containers"][0].as_object_mut().unwrap().remove("command");
        cluster.create(&pod);
        cluster.await_phase(&name, "Succeeded");
        assert_eq!(cluster.kubectl(&["logs", &name]).unwrap(), "hello\n");
        cluster.delete(&name);
    }
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn nodes_come_and_go() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.add_node(&NodeSettings { gpus: 2, gpu_type: "NVIDIA-T4".to_owned() }).unwrap();
    assert_eq!(node.name(), "node-4");
    cluster.create(&pod("guest", "node-4", 2, "sleep 1000"));
    cluster.await_phase("guest", "Running");
    cluster.remove_node(&node).unwrap();
    assert!(!node.is_on());
    let nodes = cluster.kubectl(&["get", "nodes", "--output=name"]).unwrap();
    assert_eq!(nodes, "node/node-1\nnode/node-2\nnode/node-3\n");
    cluster.kubectl(&["delete", "pod", "guest", "--force", "--ignore-not-found"]).unwrap();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn a_cluster_without_nodes_has_fake_ones_and_runs_beside_others() {
    let Some(one) = usable(Cluster::without_nodes(None)) else { return };
    let Some(two) = usable(Cluster::without_nodes(None)) else { return };
    one.add_fake_nodes(20, &NodeSettings { gpus: 8, ..NodeSettings::default() }).unwrap();
    assert_eq!(two.get(&["get", "nodes"]).unwrap()["items"], json!([]));
    drop(two);
    one.create(&pod("fake", "fake-7", 8, "unused"));
    one.await_phase("fake", "Running");
    one.kubectl(&["annotate", "pod", "fake", "testbed.pollux.dev/exit-code=3"]).unwrap();
    let ended = one.await_phase("fake", "Failed");
    assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    let folder = one.folder().to_owned();
    drop(one);
    assert!(!folder.exists());
}

/// Processes that belong to a cluster of this name, whoever started it.
fn processes(name: &str) -> String {
    let script = "cd /proc && grep -lsz \"^POLLUX_TESTBED=.*/$1\\(/.*\\)\\?$\" [0-9]*/environ || true";
    let found = Command::new("sh").args(["-c", script, "sh", name]).output().unwrap();
    String::from_utf8(found.stdout).unwrap()
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn nothing_is_left_of_a_cluster_whose_starter_was_killed() {
    if usable(Cluster::without_nodes(Some("probe"))).is_none() {
        return;
    }
    let mut up = Command::new(env!("CARGO_BIN_EXE_pollux-testbed"));
    let mut up = up.args(["up", "killed", "--nodes=0"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("etcd runs", LIMIT, || Ok((processes("killed").lines().count() > 1).then_some(()))).unwrap();
    up.kill().unwrap();
    up.wait().unwrap();
    wait_for("nothing is left", LIMIT, || {
        Ok((processes("killed").is_empty() && !Cluster::names()?.contains(&"killed".to_owned())).then_some(()))
    })
    .unwrap();
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn what_a_killed_starter_and_its_janitor_left_is_removed_by_the_next_start() {
    if usable(Cluster::with_nodes(Some("probe-nodes"), &[])).is_none() {
        return;
    }
    let mut up = Command::new(env!("CARGO_BIN_EXE_pollux-testbed"));
    let mut up = up.args(["up", "orphaned", "--nodes=1"]).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the node's machine runs", LIMIT, || Ok(processes("orphaned/node-1").contains("environ").then_some(())))
        .unwrap();
    let kill = "kill -9 $1 $(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' $2)";
    let pid_file = Cluster::open("orphaned").map(|cluster| cluster.folder().join("janitor.pid")).unwrap();
    let killed = Command::new("sh").args(["-c", kill, "sh", &up.id().to_string()]).arg(pid_file).status().unwrap();
    assert!(killed.success());
    up.wait().unwrap();
    drop(usable(Cluster::without_nodes(None)));
    assert_eq!(processes("orphaned"), "");
    assert!(!Cluster::names().unwrap().contains(&"orphaned".to_owned()));
}

#[test]
#[ignore = "starts a real cluster: make test-kube"]
fn what_was_kept_stays_until_it_is_removed() {
    let Some(cluster) = usable(Cluster::without_nodes(Some("kept"))) else { return };
    cluster.keep().unwrap();
    // Another start removes what nobody wants, and nothing else.
    drop(usable(Cluster::without_nodes(None)));
    let cluster = Cluster::open("kept").unwrap();
    assert_eq!(cluster.kubectl(&["get", "--raw=/readyz"]).unwrap(), "ok");
    drop(cluster);
    Cluster::remove("kept").unwrap();
    assert_eq!(processes("kept"), "");
    assert_eq!(Cluster::open("kept").unwrap_err().to_string(), "cluster kept does not run");
}
