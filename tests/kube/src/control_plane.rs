//! etcd, the API server and what acts on it.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::certificates::{ADMINISTRATORS, Certificates};
use crate::error::{TestbedError, at, run};
use crate::machine::Machine;
use crate::process::{Daemon, quiet};

/// By which pods know the API server: the first address of all services.
const SERVICE_ADDRESS: &str = "10.96.0.1";
const SERVICES: &str = "10.96.0.0/16";
/// By which pods know the cluster's names.
pub(crate) const DNS_ADDRESS: &str = "10.96.0.10";
/// By which nodes know it.
const SWITCH_ADDRESS: &str = "10.99.0.1";
const PLUG_IN: &str = include_str!("../machines/control-plane.sh");

/// Where the parts of a control plane listen. It is written down, so that they can be started again alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Addresses {
    /// Of etcd and the API server, apart from all others on the machine.
    own: String,
    /// The API server as its own clients see it.
    api: String,
    api_port: u16,
    /// The API server as processes outside of its machine see it.
    outside: String,
    /// Nodes that were not heard of for so long are not ready.
    node_grace_s: u32,
}

/// The control plane of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct ControlPlane {
    programs: PathBuf,
    folder: PathBuf,
    certificates: Certificates,
    addresses: Addresses,
    machine: Machine,
}

impl ControlPlane {
    /// One on the loopback network, at an address that follows from the folder.
    pub(crate) fn on_loopback(programs: &Path, folder: &Path) -> Result<Self, TestbedError> {
        let hash = Sha256::digest(folder.as_os_str().as_encoded_bytes());
        let own = format!("127.{}.{}.{}", 64 + hash[0] % 64, hash[1], 1 + hash[2] % 254);
        let api = format!("https://{own}:6443");
        // Fake nodes are many and are heard of rarely.
        let addresses = Addresses { outside: api.clone(), api, own, api_port: 6443, node_grace_s: 50 };
        Self::create(programs, folder, addresses, Machine::Host)
    }

    /// One on a machine of its own, which a port of this machine leads to.
    pub(crate) fn on_machine(programs: &Path, folder: &Path) -> Result<Self, TestbedError> {
        fs::create_dir(folder).map_err(at(folder))?;
        let machine = Machine::start(programs, folder)?;
        machine.network_script(PLUG_IN, &[])?;
        let port = forward_port(programs, folder, &machine)?;
        let addresses = Addresses {
            own: "127.0.0.1".to_owned(),
            api: format!("https://{SWITCH_ADDRESS}:443"),
            api_port: 443,
            outside: format!("https://127.0.0.1:{port}"),
            node_grace_s: 12,
        };
        Self::create(programs, folder, addresses, machine)
    }

    fn create(programs: &Path, folder: &Path, addresses: Addresses, machine: Machine) -> Result<Self, TestbedError> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        let certificates = Certificates::create(&folder.join("certificates"))?;
        let names = [
            addresses.own.as_str(),
            "127.0.0.1",
            SWITCH_ADDRESS,
            SERVICE_ADDRESS,
            "localhost",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        certificates.issue("apiserver", "kube-apiserver", ADMINISTRATORS, &names)?;
        certificates.issue("admin", "admin", ADMINISTRATORS, &[])?;
        certificates.configure("admin", &addresses.outside)?;
        for (file, name) in [
            ("controllers", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
            ("proxy", "system:kube-proxy"),
        ] {
            certificates.issue(file, name, "testbed", &[])?;
            certificates.configure(file, &addresses.api)?;
        }
        // KWOK plays any node, and who knows all names may as well know all else.
        certificates.issue("inside", "inside", ADMINISTRATORS, &[])?;
        certificates.configure("inside", &addresses.api)?;
        let path = folder.join("addresses.json");
        fs::write(&path, serde_json::to_vec(&addresses).expect("plain data")).map_err(at(&path))?;
        Ok(Self { programs: programs.to_owned(), folder: folder.to_owned(), certificates, addresses, machine })
    }

    pub(crate) fn open(programs: &Path, folder: &Path) -> Result<Self, TestbedError> {
        let path = folder.join("addresses.json");
        let text = fs::read(&path).map_err(at(&path))?;
        let addresses = serde_json::from_slice(&text).map_err(std::io::Error::other).map_err(at(&path))?;
        let certificates = Certificates::open(&folder.join("certificates"));
        let machine = Machine::open(folder)?;
        Ok(Self { programs: programs.to_owned(), folder: folder.to_owned(), certificates, addresses, machine })
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// For clients outside of the cluster, who may do everything.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.certificates.file("admin.kubeconfig")
    }

    /// A node's certificate, its configuration, and that of the authority.
    pub(crate) fn admit_node(&self, name: &str, address: &str) -> Result<NodeAccess, TestbedError> {
        self.certificates.issue(name, &format!("system:node:{name}"), "system:nodes", &[name, address])?;
        Ok(NodeAccess {
            kubeconfig: self.certificates.configure(name, &self.addresses.api)?,
            authority: self.certificates.file("ca.crt"),
            certificate: self.certificates.file(&format!("{name}.crt")),
            key: self.certificates.file(&format!("{name}.key")),
        })
    }

    /// For the proxies of services, one on each node.
    pub(crate) fn proxy_kubeconfig(&self) -> PathBuf {
        self.certificates.file("proxy.kubeconfig")
    }

    pub(crate) fn daemon(&self, name: &str) -> Daemon {
        Daemon::new(&self.folder, name)
    }

    fn start(&self, name: &str, arguments: impl FnOnce(&mut Command)) -> Result<(), TestbedError> {
        let mut command = self.machine.command(self.programs.join(name));
        arguments(&mut command);
        self.machine.start_daemon(&self.daemon(name), &mut command)?;
        Ok(())
    }

    pub(crate) fn start_etcd(&self) -> Result<(), TestbedError> {
        let (clients, peers) = (self.etcd(), format!("http://{}:2380", self.addresses.own));
        self.start("etcd", |command| {
            command.arg("--data-dir").arg(self.folder.join("etcd"));
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            command.args(["--initial-cluster", &format!("default={peers}"), "--log-level=warn"]);
            // What is lost with the power of this machine is no loss.
            command.arg("--unsafe-no-fsync");
        })
    }

    fn etcd(&self) -> String {
        format!("http://{}:2379", self.addresses.own)
    }

    pub(crate) fn start_api_server(&self) -> Result<(), TestbedError> {
        let policy = self.folder.join("audit-policy.json");
        fs::write(&policy, audit_policy().to_string()).map_err(at(&policy))?;
        self.start("kube-apiserver", |command| {
            command.arg("--audit-policy-file").arg(&policy).arg("--audit-log-path").arg(self.audit_log());
            let file = |flag: &str, name: &str| format!("--{flag}={}", self.certificates.file(name).display());
            command.arg(format!("--etcd-servers={}", self.etcd()));
            command.arg(format!("--secure-port={}", self.addresses.api_port));
            command.args(match self.machine {
                // An address of the loopback network cannot be an endpoint of a service.
                Machine::Host => [
                    format!("--bind-address={}", self.addresses.own),
                    format!("--advertise-address={}", self.addresses.own),
                    "--endpoint-reconciler-type=none".to_owned(),
                ],
                Machine::Namespaces(_) => [
                    "--bind-address=0.0.0.0".to_owned(),
                    format!("--advertise-address={SWITCH_ADDRESS}"),
                    "--endpoint-reconciler-type=lease".to_owned(),
                ],
            });
            command.args([file("tls-cert-file", "apiserver.crt"), file("tls-private-key-file", "apiserver.key")]);
            command.arg(file("client-ca-file", "ca.crt"));
            command.args([
                file("kubelet-client-certificate", "apiserver.crt"),
                file("kubelet-client-key", "apiserver.key"),
                file("kubelet-certificate-authority", "ca.crt"),
            ]);
            command.args([
                file("service-account-key-file", "tokens.pub"),
                file("service-account-signing-key-file", "tokens.key"),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            ]);
            command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
            command.args(["--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true"]);
            command.arg(format!("--service-cluster-ip-range={SERVICES}"));
        })
    }

    /// Where the API server writes down what programs in pods have changed.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.jsonl")
    }

    /// Starts what acts on the API server, which must be there.
    pub(crate) fn start_controllers(&self) -> Result<(), TestbedError> {
        let file = |flag: &str, name: &str| format!("--{flag}={}", self.certificates.file(name).display());
        let client = |command: &mut Command, name: &str| {
            for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
                command.arg(file(flag, &format!("{name}.kubeconfig")));
            }
            command.arg(format!("--bind-address={}", self.addresses.own));
            // Two writers of one machine; the defaults hold back a thousand nodes.
            command.args(["--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000"]);
        };
        self.start("kube-controller-manager", |command| {
            client(command, "controllers");
            command.args(["--use-service-account-credentials=true", "--node-monitor-period=1s"]);
            command.arg(format!("--node-monitor-grace-period={}s", self.addresses.node_grace_s));
            // It would make a folder for them elsewhere.
            command.arg("--flex-volume-plugin-dir").arg(self.folder.join("volume-plugins"));
            command.args([
                file("service-account-private-key-file", "tokens.key"),
                file("root-ca-file", "ca.crt"),
                file("cluster-signing-cert-file", "ca.crt"),
                file("cluster-signing-key-file", "ca.key"),
            ]);
        })?;
        self.start("kube-scheduler", |command| client(command, "scheduler"))?;
        let inside = file("kubeconfig", "inside.kubeconfig");
        self.start_kwok(&inside)?;
        match self.machine {
            Machine::Host => Ok(()),
            Machine::Namespaces(_) => self.start("cluster-dns", |command| {
                command.args([inside, format!("--address={DNS_ADDRESS}:53")]);
            }),
        }
    }

    /// KWOK plays the nodes that carry its annotation.
    fn start_kwok(&self, kubeconfig: &str) -> Result<(), TestbedError> {
        let stages = self.folder.join("stages.yaml");
        fs::write(&stages, run(&mut quiet(self.programs.join("kwok-stages")))?).map_err(at(&stages))?;
        self.start("kwok", |command| {
            command.args([kubeconfig, "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"]);
            command.arg("--config").arg(stages);
            // A node renews its lease four times in this time.
            command.arg(format!("--node-lease-duration-seconds={}", self.addresses.node_grace_s * 4 / 5));
            command.args(["--cidr=10.97.0.0/16", "--node-ip=10.97.255.254"]);
            command.arg(format!("--server-address={}:10247", self.addresses.own));
        })
    }
}

/// Writes of programs in pods, which have accounts in namespaces other than those of Kubernetes itself.
fn audit_policy() -> serde_json::Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        ],
    })
}

/// What a kubelet needs to be let in, and to let the API server in.
#[derive(Clone, Debug)]
pub(crate) struct NodeAccess {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Opens a port of this machine that leads to the API server of another.
fn forward_port(programs: &Path, folder: &Path, machine: &Machine) -> Result<u16, TestbedError> {
    let failure = |source| TestbedError::File { what: "cannot listen on 127.0.0.1".to_owned(), source };
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failure)?;
    let port = listener.local_addr().map_err(failure)?.port();
    let init = machine.init().expect("a machine of its own");
    let mut command = Command::new(programs.join("port-forward"));
    command.stdin(OwnedFd::from(listener));
    command.args(["-namespace", &format!("/proc/{init}/ns/net"), "-target", &format!("{SWITCH_ADDRESS}:443")]);
    Daemon::new(folder, "port-forward").start(&mut command)?;
    Ok(port)
}
