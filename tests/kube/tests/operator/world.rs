//! One cluster with the operator in it, for one test at a time: each breaks something and mends it again.

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pollux_testbed::{Cluster, Node, NodeSettings, TestbedError, is_ready, wait_for};
use serde_json::Value;

/// Generous: machines may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);
const NODES: usize = 3;

/// The cluster and where trainings save.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    /// Where the static programs are.
    pub(crate) programs: PathBuf,
}

/// A replica of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) address: String,
    container: String,
}

/// The cluster, in good order, unless none can run here.
pub(crate) fn world() -> Option<MutexGuard<'static, World>> {
    static WORLD: OnceLock<Option<Mutex<World>>> = OnceLock::new();
    let world = WORLD.get_or_init(|| World::start().map(Mutex::new)).as_ref()?;
    let world = world.lock().unwrap_or_else(PoisonError::into_inner);
    world.tidy();
    Some(world)
}

fn skip<T>(why: &str) -> Option<T> {
    say(&format!("skipped: {why}"));
    None
}

/// Says something past what the test runner holds back.
pub(crate) fn say(what: &str) {
    let mut stderr = io::stderr();
    writeln!(stderr, "{what}").unwrap();
}

impl World {
    fn start() -> Option<Self> {
        let Some(programs) = env::var_os("POLLUX_STATIC").map(PathBuf::from) else {
            return skip("POLLUX_STATIC is not set; `make test-kube` builds static programs and sets it");
        };
        let cluster = match Cluster::with_nodes(None, &vec![NodeSettings::default(); NODES]) {
            Err(TestbedError::Unavailable(why)) => return skip(&why.to_string()),
            other => other.unwrap(),
        };
        cluster.install_operator(&programs, "replicaCount=2,roundIntervalSeconds=2,graceSeconds=10").unwrap();
        Some(Self { cluster, programs })
    }

    /// Changes a setting of the chart.
    pub(crate) fn upgrade(&self, setting: &str) {
        self.cluster.helm(&["upgrade", "--reuse-values", "--set", setting]).unwrap();
        let rollout = ["rollout", "status", "deployment/pollux", "--namespace=pollux", "--timeout=120s"];
        self.cluster.kubectl(&rollout).unwrap();
    }

    /// Mends what a test that failed has left broken, and removes its jobs.
    fn tidy(&self) {
        self.cluster.start_api_server().unwrap();
        for node in self.nodes() {
            node.mend().unwrap();
            node.start_kubelet().unwrap();
            self.cluster.kubectl(&["uncordon", node.name()]).unwrap();
            self.await_ready(&node, true);
        }
        self.cluster.kubectl(&["delete", "polluxjobs", "--all", "--namespace=team", "--timeout=120s"]).unwrap();
        self.leader();
    }

    /// Its nodes that are on.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        self.cluster.nodes().unwrap().into_iter().filter(Node::is_on).collect()
    }

    pub(crate) fn await_ready(&self, node: &Node, ready: bool) {
        wait_for(&format!("{} ready: {ready}", node.name()), LIMIT, || {
            Ok((is_ready(&self.cluster.get(&["get", "node", node.name()])?) == ready).then_some(()))
        })
        .unwrap();
    }

    /// No GPU was ever given to two, by what the device plugins have seen.
    pub(crate) fn check_gpus(&self) {
        for node in self.nodes() {
            assert_eq!(node.gpu_record().unwrap().given_twice(), Vec::<String>::new(), "{}", node.name());
        }
    }

    /// The epoch of the scheduler that acts.
    pub(crate) fn epoch(&self) -> u64 {
        let map = || Ok(Some(self.cluster.get(&["get", "configmap", "pollux-epoch", "--namespace=pollux"])?));
        wait_for("an epoch", LIMIT, map).unwrap()["data"]["epoch"].as_str().unwrap().parse().unwrap()
    }

    /// Waits until a scheduler of a higher epoch acts.
    pub(crate) fn await_epoch_above(&self, epoch: u64) {
        wait_for("another operator acts", LIMIT, || Ok((self.epoch() > epoch).then_some(()))).unwrap();
    }

    /// All replicas of the operator that run.
    pub(crate) fn replicas(&self) -> Result<Vec<Replica>, TestbedError> {
        let pods = self.cluster.get(&["get", "pods", "--namespace=pollux"])?;
        Ok(pods["items"].as_array().unwrap().iter().filter_map(replica).collect())
    }

    /// The replica that holds the lease and acts.
    pub(crate) fn leader(&self) -> Replica {
        self.leader_other_than("nobody")
    }

    /// Waits until another replica leads, and the Service leads to it alone.
    pub(crate) fn leader_other_than(&self, pod: &str) -> Replica {
        wait_for(&format!("a leader other than {pod}"), LIMIT, || {
            let lease = self.cluster.get(&["get", "lease", "pollux", "--namespace=pollux"])?;
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            let leader = self.replicas()?.into_iter().find(|replica| replica.pod == holder && holder != pod);
            let slices =
                ["get", "endpointslices", "--namespace=pollux", "--selector=kubernetes.io/service-name=pollux"];
            let slices = self.cluster.get(&slices)?;
            let all = slices["items"].as_array().unwrap().iter().flat_map(|slice| slice["endpoints"].as_array());
            let addresses: Vec<&str> = all.flatten().filter_map(|it| it["addresses"][0].as_str()).collect();
            Ok(leader.filter(|leader| addresses == [leader.address.as_str()]))
        })
        .unwrap()
    }

    /// How often a replica was started again.
    pub(crate) fn restarts(&self, replica: &Replica) -> u64 {
        let pod = self.cluster.get(&["get", "pod", &replica.pod, "--namespace=pollux"]).unwrap();
        pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap()
    }

    /// Waits until a replica was started again; how it ended before.
    pub(crate) fn await_restart(&self, replica: &Replica, restarts: u64) -> Value {
        wait_for(&format!("{} starts again", replica.pod), LIMIT, || {
            let pod = self.cluster.get(&["get", "pod", &replica.pod, "--namespace=pollux"])?;
            let main = &pod["status"]["containerStatuses"][0];
            let has_restarted = main["restartCount"].as_u64() > Some(restarts) && !main["state"]["running"].is_null();
            Ok(has_restarted.then(|| main["lastState"]["terminated"].clone()))
        })
        .unwrap()
    }

    /// Sends a signal to the process of a replica.
    pub(crate) fn signal(&self, replica: &Replica, signal: &str) {
        assert!(self.try_signal(replica, signal), "{} does not run", replica.pod);
    }

    /// Sends a signal to the process of a replica, if it still runs.
    pub(crate) fn try_signal(&self, replica: &Replica, signal: &str) -> bool {
        let node = self.cluster.node(&replica.node).unwrap();
        let tasks = node.run("ctr", &["--namespace", "k8s.io", "tasks", "list"]).unwrap();
        let task = tasks.lines().find(|task| task.starts_with(&replica.container) && task.contains("RUNNING"));
        let Some(pid) = task.and_then(|task| task.split_whitespace().nth(1)) else { return false };
        node.run("kill", &[signal, pid]).is_ok()
    }

    /// Cuts a replica off from the API server, and only from that, or mends it again.
    pub(crate) fn cut_from_api_server(&self, replica: &Replica, is_cut: bool) {
        let node = self.cluster.node(&replica.node).unwrap();
        let change = if is_cut { "-I" } else { "-D" };
        let rule = ["FORWARD", "-s", &replica.address, "-d", "10.99.0.1", "-j", "DROP"];
        node.run("iptables", &[&[change], rule.as_slice()].concat()).unwrap();
    }

    /// The replicas that have changed something but their lease since a moment, each once for every time that it began to.
    pub(crate) fn turns_since(&self, moment: &str) -> Vec<String> {
        let writes = self.cluster.writes().unwrap();
        let acts = writes.iter().filter(|it| it.is_done() && it.resource != "leases" && it.at.as_str() > moment);
        let mut turns: Vec<String> = acts.map(|it| it.pod.clone()).collect();
        turns.dedup();
        turns
    }

    /// The moment of the last change that any replica has made.
    pub(crate) fn now(&self) -> String {
        self.cluster.writes().unwrap().last().map(|write| write.at.clone()).unwrap_or_default()
    }
}

fn replica(pod: &Value) -> Option<Replica> {
    let main = &pod["status"]["containerStatuses"][0];
    (!main["state"]["running"].is_null() && pod["metadata"]["deletionTimestamp"].is_null()).then_some(())?;
    Some(Replica {
        pod: pod["metadata"]["name"].as_str()?.to_owned(),
        node: pod["spec"]["nodeName"].as_str()?.to_owned(),
        address: pod["status"]["podIP"].as_str()?.to_owned(),
        container: main["containerID"].as_str()?.strip_prefix("containerd://")?.to_owned(),
    })
}
