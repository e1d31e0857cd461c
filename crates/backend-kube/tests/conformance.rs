//! The backend on a real cluster: every check of the suite, with real pods, kubelets and faults.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{env, fs};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pollux_backend::conformance::{Faults, Trial};
use pollux_backend::{Backend, Epoch, Observation};
use pollux_backend_kube::{JobPods, KubeBackend, KubeSettings, PodTemplates};
use pollux_policy::JobId;
use pollux_testbed::{Cluster, Image, NodeSettings, TestbedError, wait_for};
use serde_json::json;
use tokio::runtime::Runtime;

/// The image that has the supervisor.
const SUPERVISOR: &str = "pollux.test/supervisor:1";

/// One cluster for all checks, for one at a time: some of them break something and mend it again.
fn cluster() -> Option<MutexGuard<'static, Cluster>> {
    static CLUSTER: OnceLock<Option<Mutex<Cluster>>> = OnceLock::new();
    Some(CLUSTER.get_or_init(start).as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
}

fn start() -> Option<Mutex<Cluster>> {
    let Some(programs) = env::var_os("POLLUX_STATIC").map(PathBuf::from) else {
        return skip("POLLUX_STATIC is not set; `make test-kube` builds static programs and sets it");
    };
    let supervisor = programs.join("pollux-supervise");
    let cluster = match Cluster::with_nodes(None, &vec![NodeSettings::default(); 2]) {
        Err(TestbedError::Unavailable(why)) => return skip(&why.to_string()),
        other => other.unwrap(),
    };
    cluster.import(&Image::new(SUPERVISOR).program("bin/pollux", &supervisor)).unwrap();
    Some(Mutex::new(cluster))
}

fn skip<T>(why: &str) -> Option<T> {
    // Past what the test runner holds back.
    let mut stderr = io::stderr();
    writeln!(stderr, "skipped: {why}").unwrap();
    None
}

/// Pods that see the folder for temporary files of this machine, where the checks have theirs.
#[derive(Debug)]
struct Shell {
    namespace: String,
}

impl PodTemplates for Shell {
    fn of(&self, _: JobId) -> Option<JobPods> {
        let folder = env::temp_dir();
        let template: PodTemplateSpec = serde_json::from_value(json!({"spec": {
            "containers": [{
                "name": "main",
                "image": "pollux.test/busybox:1",
                "imagePullPolicy": "Never",
                "volumeMounts": [{"name": "temporary", "mountPath": folder}],
            }],
            "volumes": [{"name": "temporary", "hostPath": {"path": folder}}],
        }}))
        .unwrap();
        Some(JobPods { namespace: self.namespace.clone(), owner: None, template })
    }
}

struct Broken(Rc<MutexGuard<'static, Cluster>>);

impl Broken {
    fn for_all_nodes(&self, command: &str) {
        for node in self.0.nodes().unwrap().iter().filter(|node| node.is_on()) {
            self.0.kubectl(&[command, node.name()]).unwrap();
        }
    }
}

impl Faults for Broken {
    fn hold_starts(&self, _: &str) {
        self.for_all_nodes("cordon");
    }

    fn release_starts(&self) {
        self.for_all_nodes("uncordon");
    }

    fn cut(&self, node: &str) {
        self.0.node(node).unwrap().cut_off().unwrap();
    }

    fn mend(&self, node: &str) {
        // One that is lost has nothing to mend.
        if let Ok(node) = self.0.node(node)
            && node.is_on()
        {
            node.mend().unwrap();
        }
    }

    fn lose(&self, node: &str) {
        let node = self.0.node(node).unwrap();
        self.0.power_off(&node).unwrap();
        self.0.remove_node(&node).unwrap();
        self.0.add_node(&NodeSettings::default()).unwrap();
    }
}

/// Removes what an earlier trial has left: those that failed leave something.
fn clean(cluster: &Cluster) {
    let ours = ["get", "pods", "--all-namespaces", "--selector=pollux.dev/instance"];
    let pods = cluster.get(&ours).unwrap();
    for pod in pods["items"].as_array().unwrap() {
        let [name, namespace] = ["name", "namespace"].map(|key| pod["metadata"][key].as_str().unwrap());
        let within = format!("--namespace={namespace}");
        // It may be gone by now.
        drop(cluster.kubectl(&["delete", "pod", name, &within, "--grace-period=1", "--wait=false"]));
        let unpin = r#"{"metadata": {"finalizers": null}}"#;
        drop(cluster.kubectl(&["patch", "pod", name, &within, "--type=merge", "--patch", unpin]));
    }
    let are_gone = || Ok(cluster.get(&ours)?["items"].as_array().is_some_and(Vec::is_empty).then_some(()));
    wait_for("pods of earlier trials to go", Duration::from_secs(120), are_gone).unwrap();
}

/// Settings of a backend in a namespace of its own.
fn settings(cluster: &Cluster, test: &str) -> KubeSettings {
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    clean(cluster);
    let namespace = format!("trial-{}", TRIALS.fetch_add(1, Ordering::Relaxed));
    cluster.kubectl(&["create", "namespace", &namespace]).unwrap();
    let checkpoints = env::temp_dir().join(format!("pollux-{namespace}-{}", std::process::id()));
    fs::create_dir_all(&checkpoints).unwrap();
    KubeSettings {
        namespace,
        instance: test.replace('_', "-").chars().take(60).collect(),
        image: SUPERVISOR.to_owned(),
        pull_policy: "Never".to_owned(),
        checkpoint_dir: checkpoints.clone(),
        checkpoints_mounted: Some(checkpoints),
        ..KubeSettings::default()
    }
}

/// A trial in a namespace of its own.
fn trial(test: &str) -> Option<Trial> {
    let cluster = Rc::new(cluster()?);
    let (settings, config) = (settings(&cluster, test), config(&cluster.kubeconfig()));
    let namespace = settings.namespace.clone();
    let faults = Broken(Rc::clone(&cluster));
    let open = move |observer| {
        // The cluster is this trial's as long as it can be opened.
        let _cluster = &cluster;
        let templates = Arc::new(Shell { namespace: namespace.clone() });
        let backend =
            KubeBackend::new(|| kube::Client::try_from(config.clone()), settings.clone(), templates, observer).unwrap();
        Box::new(backend) as Box<dyn Backend>
    };
    Some(Trial::new(open).with_faults(faults))
}

fn config(kubeconfig: &std::path::Path) -> kube::Config {
    let read = Kubeconfig::read_from(kubeconfig).unwrap();
    Runtime::new().unwrap().block_on(kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())).unwrap()
}

#[test]
fn a_pod_that_an_earlier_scheduler_makes_late_never_runs() {
    let Some(cluster) = cluster() else { return };
    let settings = settings(&cluster, "late");
    let (namespace, config) = (settings.namespace.clone(), config(&cluster.kubeconfig()));
    let templates = Arc::new(Shell { namespace: namespace.clone() });
    let (seen, sees) = std::sync::mpsc::channel();
    let observer = Box::new(move |observation| drop(seen.send(observation)));
    let connect = || kube::Client::try_from(config);
    let mut backend = KubeBackend::new(connect, settings, templates, observer).unwrap();
    backend.adopt(Epoch(2), &[]);
    // From then on it acts.
    let is_node = |observation| matches!(observation, Observation::NodeUp(_));
    while !is_node(sees.recv_timeout(Duration::from_secs(120)).unwrap()) {}
    let labels = json!({"pollux.dev/instance": "late", "pollux.dev/job": "1", "pollux.dev/replica": "7"});
    let pod = |epoch: &str, replica: &str| {
        let mut labels = labels.clone();
        labels["pollux.dev/replica"] = replica.into();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("pollux-1-{replica}"), "namespace": namespace, "labels": labels,
                "annotations": {"pollux.dev/epoch": epoch}, "finalizers": ["pollux.dev/release"],
            },
            "spec": {
                "schedulingGates": [{"name": "pollux.dev/placement"}],
                "containers": [{"name": "main", "image": "pollux.test/busybox:1", "imagePullPolicy": "Never"}],
            },
        })
    };
    // One of a later scheduler is not ours to judge.
    for (epoch, replica) in [("3", "8"), ("1", "7")] {
        cluster.kubectl_with(&["create", "--filename=-"], &pod(epoch, replica)).unwrap();
    }
    let list = ["get", "pods", "--output=name", &format!("--namespace={namespace}")];
    let is_gone = || Ok((cluster.kubectl(&list)? == "pod/pollux-1-8\n").then_some(()));
    wait_for("the late pod is gone", Duration::from_secs(120), is_gone).unwrap();
}

pollux_backend::conformance_tests!(trial, without shared_gpus: "pods do not share GPUs");
