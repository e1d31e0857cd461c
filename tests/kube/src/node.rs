//! A real node: a machine with containerd, a kubelet and fake GPUs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cluster::wait_for;
use crate::control_plane::{ControlPlane, DNS_ADDRESS, NodeAccess};
use crate::error::{TestbedError, at, run};
use crate::gpu_record::GpuRecord;
use crate::image::Image;
use crate::instance::{self, cgroup};
use crate::machine::Machine;
use crate::process::Daemon;
use crate::registry;

const MACHINE: &str = include_str!("../machines/node.sh");
const LINK: &str = include_str!("../machines/link.sh");
/// Addresses end with ten more than the index of the node.
const INDEX_MAX: u32 = 200;
const START_LIMIT: Duration = Duration::from_secs(60);

/// What a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// How many GPUs, named `GPU-0` and so on.
    pub gpus: u32,
    /// Their type, which the label `nvidia.com/gpu.product` tells.
    pub gpu_type: String,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self { gpus: 4, gpu_type: "NVIDIA-A100".to_owned() }
    }
}

/// A node of a cluster, running or not.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    index: u32,
    folder: PathBuf,
    programs: PathBuf,
    control_plane: ControlPlane,
}

impl Node {
    pub(crate) fn new(programs: &Path, cluster: &Path, control_plane: &ControlPlane, index: u32) -> Self {
        let name = format!("node-{index}");
        let folder = cluster.join(&name);
        Self { name, index, folder, programs: programs.to_owned(), control_plane: control_plane.clone() }
    }

    /// Its name in Kubernetes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    fn address(&self) -> String {
        format!("10.99.0.{}", 10 + self.index)
    }

    fn machine(&self) -> Result<Machine, TestbedError> {
        match Machine::open(&self.folder)? {
            Machine::Host => Err(TestbedError::Name(format!("{} is off", self.name))),
            machine @ Machine::Namespaces(_) => Ok(machine),
        }
    }

    /// Whether its machine is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.machine().is_ok_and(|machine| machine.is_running())
    }

    /// Makes its machine and starts containerd with the images of the cluster.
    pub(crate) fn boot(&self, settings: &NodeSettings, images: &Path) -> Result<(), TestbedError> {
        if self.index > INDEX_MAX {
            return Err(TestbedError::Name(format!("{}: expected up to {INDEX_MAX} nodes", self.name)));
        }
        fs::create_dir(&self.folder).map_err(at(&self.folder))?;
        let text = serde_json::to_vec(settings).expect("plain data");
        fs::write(self.file("settings.json"), text).map_err(at(&self.folder))?;
        let machine = Machine::start(&self.programs, &self.folder)?;
        let init = machine.init().expect("a machine of its own").to_string();
        let index = self.index.to_string();
        self.control_plane.machine().network_script(LINK, &[&index, &init])?;
        machine.script(MACHINE, &[&self.path(""), &index, &cgroup(&self.folder).display().to_string()])?;
        self.start_containerd(&machine)?;
        let mut archives = Vec::new();
        for entry in fs::read_dir(images).map_err(at(images))? {
            archives.push(entry.map_err(at(images))?.path());
        }
        archives.iter().try_for_each(|archive| self.import(archive))
    }

    fn start_containerd(&self, machine: &Machine) -> Result<(), TestbedError> {
        let networks = self.file("cni");
        fs::create_dir(&networks).map_err(at(&networks))?;
        let network = json!({
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{
                "type": "bridge",
                "bridge": "pods",
                "isGateway": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.file("addresses"),
                    "ranges": [[{"subnet": format!("10.98.{}.0/24", self.index)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        fs::write(networks.join("10-pods.conflist"), network.to_string()).map_err(at(&networks))?;
        let configuration = self.file("containerd.toml");
        fs::write(&configuration, self.containerd_configuration()).map_err(at(&configuration))?;
        let mut command = machine.command("containerd");
        machine.start_daemon(&self.daemon("containerd"), command.arg("--config").arg(&configuration))?;
        wait_for(&format!("containerd of {}", self.name), START_LIMIT, || {
            run(machine.command("ctr").arg("version")).map(Some)
        })?;
        Ok(())
    }

    fn containerd_configuration(&self) -> String {
        // Neither containerd nor its containers may ask for more than this machine lets root have.
        format!(
            r#"version = 2
root = "{root}"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pollux.test/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
"#,
            root = self.path("containerd"),
            networks = self.path("cni"),
        )
    }

    /// Makes an image of this archive known to containerd.
    pub(crate) fn import(&self, archive: &Path) -> Result<(), TestbedError> {
        let mut command = self.machine()?.command("ctr");
        run(command.args(["--namespace", "k8s.io", "images", "import"]).arg(archive))?;
        Ok(())
    }

    /// Makes it a node of the cluster, with its GPUs.
    pub(crate) fn join(&self) -> Result<(), TestbedError> {
        let access = self.control_plane.admit_node(&self.name, &self.address())?;
        let configuration = self.file("kubelet.json");
        fs::write(&configuration, self.kubelet_configuration(&access)).map_err(at(&configuration))?;
        self.start_kubelet()?;
        let machine = self.machine()?;
        let mut gpus = machine.command(self.programs.join("fake-gpus"));
        gpus.args(["-count", &self.settings()?.gpus.to_string()]);
        gpus.arg("-record").arg(self.record()).arg("-unhealthy").arg(self.file("unhealthy"));
        machine.start_daemon(&self.daemon("fake-gpus"), &mut gpus)?;
        let mut proxy = machine.command(self.programs.join("kube-proxy"));
        proxy.arg("--kubeconfig").arg(self.control_plane.proxy_kubeconfig());
        proxy.args(["--hostname-override", &self.name, "--cluster-cidr=10.98.0.0/16", "--proxy-mode=iptables"]);
        // Limits of the whole machine are not a node's to set.
        proxy.args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s"]);
        proxy.args(["--conntrack-tcp-timeout-close-wait=0s"]);
        machine.start_daemon(&self.daemon("kube-proxy"), &mut proxy)?;
        Ok(())
    }

    fn kubelet_configuration(&self, access: &NodeAccess) -> String {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address(),
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": false},
                "x509": {"clientCAFile": access.authority},
            },
            // Only the API server has a certificate that passes.
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": access.certificate,
            "tlsPrivateKeyFile": access.key,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            // A program that a test kills again and again is started again soon.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "featureGates": {"KubeletCrashLoopBackOffMax": true},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup(&self.folder),
            "failCgroupV1": false,
            "failSwapOn": false,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            // The disk and the memory are shared with everything else on the machine.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": false,
            // Heard of every few seconds, so that a node that is cut off is soon noticed.
            "nodeLeaseDurationSeconds": 10,
            "nodeStatusUpdateFrequency": "4s",
            "oomScoreAdj": 0,
            "resolvConf": "",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        })
        .to_string()
    }

    fn settings(&self) -> Result<NodeSettings, TestbedError> {
        let path = self.file("settings.json");
        serde_json::from_slice(&fs::read(&path).map_err(at(&path))?).map_err(io::Error::other).map_err(at(&path))
    }

    /// Starts its kubelet, if it does not run.
    ///
    /// # Errors
    ///
    /// If the machine is off, or the kubelet ends at once.
    pub fn start_kubelet(&self) -> Result<(), TestbedError> {
        let daemon = self.daemon("kubelet");
        if daemon.is_running()? {
            return Ok(());
        }
        let machine = self.machine()?;
        let mut command = machine.command(self.programs.join("kubelet"));
        command.arg("--config").arg(self.file("kubelet.json"));
        command.arg("--kubeconfig").arg(self.control_plane.admit_node(&self.name, &self.address())?.kubeconfig);
        command.args(["--hostname-override", &self.name, "--node-ip", &self.address()]);
        command.arg(format!("--node-labels=nvidia.com/gpu.product={}", self.settings()?.gpu_type));
        machine.start_daemon(&daemon, &mut command)?;
        Ok(())
    }

    /// Kills its kubelet; containers run on.
    ///
    /// # Errors
    ///
    /// If it does not end.
    pub fn kill_kubelet(&self) -> Result<(), TestbedError> {
        self.daemon("kubelet").kill()
    }

    /// Cuts it off from the network; containers run on.
    ///
    /// # Errors
    ///
    /// If the machine is off.
    pub fn cut_off(&self) -> Result<(), TestbedError> {
        self.control_plane.machine().network_script(&format!("ip link set {} down", self.name), &[])
    }

    /// Mends what [`Node::cut_off`] did.
    ///
    /// # Errors
    ///
    /// If the machine is off.
    pub fn mend(&self) -> Result<(), TestbedError> {
        self.control_plane.machine().network_script(&format!("ip link set {} up", self.name), &[])
    }

    /// Who got which of its GPUs, from its start until now.
    ///
    /// # Errors
    ///
    /// If the record cannot be read.
    pub fn gpu_record(&self) -> Result<GpuRecord, TestbedError> {
        GpuRecord::read(&self.record())
    }

    fn record(&self) -> PathBuf {
        self.file("gpus.jsonl")
    }

    /// Says which of its GPUs are broken, such as `GPU-1`; all others are well.
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn break_gpus(&self, gpus: &[&str]) -> Result<(), TestbedError> {
        let path = self.file("unhealthy");
        fs::write(&path, gpus.join("\n")).map_err(at(&path))
    }

    /// Runs a command on its machine, such as `ps` or `ctr`, and returns what it prints.
    ///
    /// # Errors
    ///
    /// If the machine is off or the command fails.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, TestbedError> {
        run(self.machine()?.command(program).args(arguments))
    }

    /// Has a registry on its machine hand out an image slowly, each part in so many seconds; `program` is `pollux-testbed`.
    ///
    /// # Errors
    ///
    /// If the image cannot be made, or the machine is off.
    pub fn serve_image(&self, image: &Image, program: &Path, seconds: u32) -> Result<(), TestbedError> {
        let folder = self.file("registry");
        registry::write(image, &folder)?;
        let machine = self.machine()?;
        let mut command = machine.command(program);
        command.arg("serve-image").arg(&folder).arg(seconds.to_string());
        machine.start_daemon(&self.daemon("registry-server"), &mut command)?;
        Ok(())
    }

    /// Where its logs are, those of containers in `log/pods` among them.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends its machine with all that runs there, without a word to anybody.
    pub(crate) fn power_off(&self) -> Result<(), TestbedError> {
        instance::remove(&self.programs, &self.folder)
    }

    fn daemon(&self, name: &str) -> Daemon {
        Daemon::new(&self.folder, name)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).display().to_string().trim_end_matches('/').to_owned()
    }
}
