//! A control plane with an operator beside it, which has exactly the rights of its chart, and users with rights of theirs.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs};

use pollux_testbed::{Cluster, TestbedError, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);
const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");

pub(crate) struct Bed {
    pub(crate) cluster: Cluster,
    folder: TempDir,
    operator: Child,
}

impl Drop for Bed {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.operator.kill());
        drop(self.operator.wait());
    }
}

/// An address of this machine that the API server may forward to: none of the loopback network. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

fn skip<T>(why: &str) -> Option<T> {
    // Past what the test runner holds back.
    io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
    None
}

impl Bed {
    /// Starts it, unless it cannot run here.
    pub(crate) fn start() -> Option<Self> {
        let Some(address) = own_address() else { return skip("this machine has no address but that of itself") };
        let cluster = match Cluster::without_nodes(None) {
            Err(TestbedError::Unavailable(why)) => return skip(&why.to_string()),
            other => other.unwrap(),
        };
        let folder = tempfile::tempdir().unwrap();
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/pollux");
        cluster.kubectl(&["create", "--filename", chart.join("crds").to_str().unwrap()]).unwrap();
        for namespace in ["pollux", "team", "other"] {
            cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        }
        let mut helm = cluster.command("helm");
        helm.arg("template").arg("pollux").arg(chart).args(["--namespace=pollux"]);
        helm.args(["--show-only=templates/rbac.yaml", "--show-only=templates/users.yaml"]);
        let rendered = helm.output().unwrap();
        assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
        let file = folder.path().join("rights.yaml");
        fs::write(&file, rendered.stdout).unwrap();
        cluster.kubectl(&["create", "--filename", file.to_str().unwrap()]).unwrap();
        for (user, namespace) in [("alice", "team"), ("bob", "other")] {
            let binding =
                ["create", "rolebinding", user, "--clusterrole=edit", "--user", user, "--namespace", namespace];
            cluster.kubectl(&binding).unwrap();
        }
        let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        let operator = start_operator(&cluster, folder.path(), SocketAddr::new(address, port));
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "pollux", "namespace": "pollux"},
            "spec": {"ports": [{"name": "https", "port": 443}]},
        });
        // The API server forwards to addresses of pods only.
        let spec = json!({"containers": [{"name": "operator", "image": "pollux"}], "nodeSelector": {"no": "node"}});
        let meta = json!({"name": "test", "namespace": "pollux"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec});
        cluster.kubectl_with(&["create", "--filename=-"], &pod).unwrap();
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}).to_string();
        let patch = ["patch", "pod", "test", "--namespace=pollux", "--subresource=status", "--type=merge", "--patch"];
        cluster.kubectl(&[&patch[..], &[status.as_str()]].concat()).unwrap();
        let pod = json!({"kind": "Pod", "name": "test", "namespace": "pollux"});
        let endpoints = json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "pollux", "namespace": "pollux"},
            "subsets": [{"addresses": [{"ip": address, "targetRef": pod}], "ports": [{"name": "https", "port": port}]}],
        });
        for object in [service, endpoints] {
            cluster.kubectl_with(&["create", "--filename=-"], &object).unwrap();
        }
        let bed = Self { cluster, folder, operator };
        let answers = || {
            let asked = bed.pollux("admin", &["ps", "-A"]);
            let output = String::from_utf8_lossy(&asked.stderr).into_owned();
            let failed = TestbedError::Command { command: "kubectl pollux ps".to_owned(), output };
            asked.status.success().then_some(Some(())).ok_or(failed)
        };
        wait_for("the operator answers", LIMIT, answers).unwrap();
        Some(bed)
    }

    /// The configuration of a user: the administrator as that user.
    fn kubeconfig(&self, user: &str) -> PathBuf {
        let file = self.folder.path().join(format!("{user}.json"));
        if !file.exists() {
            let mut config = configuration(&self.cluster);
            if user != "admin" {
                config["users"][0]["user"]["as"] = json!(user);
            }
            fs::write(&file, config.to_string()).unwrap();
        }
        file
    }

    /// `kubectl pollux`, as a user.
    pub(crate) fn command(&self, user: &str, arguments: &[&str]) -> Command {
        let plugin = self.folder.path().join("kubectl-pollux");
        if !plugin.exists() {
            std::os::unix::fs::symlink(POLLUX, &plugin).unwrap();
        }
        let mut command = Command::new(plugin);
        command.args(arguments).env("KUBECONFIG", self.kubeconfig(user)).env("POLLUX_URL", "http://127.0.0.1:1");
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn pollux(&self, user: &str, arguments: &[&str]) -> Output {
        self.command(user, arguments).output().unwrap()
    }

    /// What a command prints that succeeds.
    #[track_caller]
    pub(crate) fn told(&self, user: &str, arguments: &[&str]) -> String {
        let output = self.pollux(user, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command complains of that does not succeed.
    #[track_caller]
    pub(crate) fn refused(&self, user: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.pollux(user, arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// What the operator itself answers to a token, beside the API server.
    pub(crate) fn ask_operator(&self, token: &str, path: &str) -> String {
        let proxy = format!("/api/v1/namespaces/pollux/services/https:pollux:https/proxy{path}");
        let address = configuration(&self.cluster)["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned();
        let folder = self.cluster.folder().join("control-plane/certificates");
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--cacert", &file("ca.crt"), "--cert", &file("admin.crt"), "--key", &file("admin.key")]);
        curl.args(["--header", &format!("x-pollux-authorization: Bearer {token}"), &format!("{address}{proxy}")]);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        wait_for(what, LIMIT, || Ok(is_so(self).then_some(()))).unwrap_or_else(|error| {
            let log = fs::read_to_string(self.folder.path().join("operator.log")).unwrap_or_default();
            panic!("{error}\n{log}")
        });
    }
}

fn configuration(cluster: &Cluster) -> Value {
    cluster.get(&["config", "view", "--raw"]).unwrap()
}

/// With the service account of the chart, and its rights only.
fn start_operator(cluster: &Cluster, folder: &Path, listen: SocketAddr) -> Child {
    let token = cluster.kubectl(&["create", "token", "pollux", "--namespace=pollux", "--duration=2h"]).unwrap();
    let mut config = configuration(cluster);
    config["users"][0]["user"] = json!({"token": token.trim()});
    let file = folder.join("operator.json");
    fs::write(&file, config.to_string()).unwrap();
    let log = fs::File::create(folder.join("operator.log")).unwrap();
    Command::new(POLLUX)
        .args(["operator", "--identity=test", "--host=pollux.pollux.svc", "--image=pollux", "--round-interval=1"])
        .arg("--listen")
        .arg(listen.to_string())
        .arg("--state")
        .arg(folder.join("state"))
        .env("KUBECONFIG", file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}
