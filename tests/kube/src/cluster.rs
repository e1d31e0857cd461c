//! A cluster and what can be done to it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control_plane::ControlPlane;
use crate::error::{TestbedError, at, run};
use crate::image::Image;
use crate::instance::{Instance, Janitor};
use crate::node::{Node, NodeSettings};
use crate::process::{Daemon, quiet};
use crate::requirements::{Tier, prepare};
use crate::write::Write;

/// How long the cluster may take to get where it must; generous, for machines that are busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A running cluster. It ends and leaves nothing behind when this is dropped or this process dies, unless it was kept.
#[derive(Debug)]
pub struct Cluster {
    instance: Instance,
    programs: PathBuf,
    control_plane: ControlPlane,
    /// `None` for a cluster that another process started.
    janitor: Option<Janitor>,
}

impl Cluster {
    /// Starts a control plane without a node, as any user.
    ///
    /// # Errors
    ///
    /// [`TestbedError::Unavailable`] where it cannot run, others where it should have.
    pub fn without_nodes(name: Option<&str>) -> Result<Self, TestbedError> {
        let programs = prepare(Tier::ControlPlane)?;
        let (instance, janitor) = Instance::create(name, &programs)?;
        let control_plane = ControlPlane::on_loopback(&programs, &instance.folder.join("control-plane"))?;
        let cluster = Self { instance, programs, control_plane, janitor: Some(janitor) };
        cluster.start_control_plane()?;
        Ok(cluster)
    }

    /// Starts a cluster with real nodes, which needs root.
    ///
    /// # Errors
    ///
    /// [`TestbedError::Unavailable`] where it cannot run, others where it should have.
    pub fn with_nodes(name: Option<&str>, nodes: &[NodeSettings]) -> Result<Self, TestbedError> {
        let programs = prepare(Tier::Nodes)?;
        let (instance, janitor) = Instance::create(name, &programs)?;
        let control_plane = ControlPlane::on_machine(&programs, &instance.folder.join("control-plane"))?;
        let cluster = Self { instance, programs, control_plane, janitor: Some(janitor) };
        let images = cluster.images();
        fs::create_dir(&images).map_err(at(&images))?;
        Image::pause().save(&images.join("pause.tar"))?;
        Image::busybox().save(&images.join("busybox.tar"))?;
        let nodes: Vec<(Node, &NodeSettings)> =
            (1..).zip(nodes).map(|(index, settings)| (cluster.node_at(index), settings)).collect();
        thread::scope(|scope| {
            // Containerd needs no API server, so both start at once.
            let booting: Vec<_> =
                nodes.iter().map(|(node, settings)| scope.spawn(|| node.boot(settings, &images))).collect();
            cluster.start_control_plane()?;
            booting.into_iter().try_for_each(|thread| thread.join().expect("booting does not panic"))
        })?;
        for (node, _) in &nodes {
            node.join()?;
        }
        for (node, settings) in &nodes {
            cluster.wait_ready(node, settings)?;
        }
        Ok(cluster)
    }

    /// A cluster that was started with this name and kept.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn open(name: &str) -> Result<Self, TestbedError> {
        let instance = Instance::open(name)?;
        let programs = prepare(Tier::ControlPlane)?;
        let control_plane = ControlPlane::open(&programs, &instance.folder.join("control-plane"))?;
        Ok(Self { instance, programs, control_plane, janitor: None })
    }

    /// The names of all clusters of this user.
    ///
    /// # Errors
    ///
    /// If their folder cannot be read.
    pub fn names() -> Result<Vec<String>, TestbedError> {
        Ok(Instance::all()?.into_iter().map(|instance| instance.name).collect())
    }

    /// Leaves it running after the end of this process, until somebody calls [`Cluster::remove`].
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn keep(mut self) -> Result<(), TestbedError> {
        self.janitor.take().map_or(Ok(()), |janitor| self.instance.keep(janitor))
    }

    /// Ends the cluster of this name, in whatever state it is, and removes all that is left of it.
    ///
    /// # Errors
    ///
    /// If there is none, or something cannot be removed.
    pub fn remove(name: &str) -> Result<(), TestbedError> {
        Instance::open(name)?.remove(&prepare(Tier::ControlPlane)?)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.instance.name
    }

    /// The configuration of a client that may do everything.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.control_plane.kubeconfig()
    }

    /// Where `kubectl` and `helm` are.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Where everything of it is, logs among it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.instance.folder
    }

    /// A command such as `kubectl` or `helm` that talks to this cluster.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = quiet(self.programs.join(program));
        command.env("KUBECONFIG", self.kubeconfig());
        // What they remember goes with the cluster.
        command.env("KUBECACHEDIR", self.folder().join("kubectl")).env("HELM_CACHE_HOME", self.folder().join("helm"));
        command
    }

    /// Runs kubectl and returns what it prints.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, TestbedError> {
        run(self.command("kubectl").args(arguments))
    }

    /// Runs kubectl with a resource as its input, such as `create --filename=-`.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn kubectl_with(&self, arguments: &[&str], input: &Value) -> Result<String, TestbedError> {
        let mut command = self.command("kubectl");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failure =
            |output: String| TestbedError::Command { command: format!("kubectl {}", arguments.join(" ")), output };
        let mut child = command.spawn().map_err(|error| failure(error.to_string()))?;
        let mut stdin = child.stdin.take().expect("it is piped");
        let text = input.to_string();
        let writer = thread::spawn(move || stdin.write_all(text.as_bytes()));
        let output = child.wait_with_output().map_err(|error| failure(error.to_string()))?;
        // One that fails before it has read all says why itself.
        let _ = writer.join();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failure(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        }
    }

    /// Asks for a resource as JSON, such as `["get", "node", "node-1"]`.
    ///
    /// # Errors
    ///
    /// If kubectl fails.
    pub fn get(&self, arguments: &[&str]) -> Result<Value, TestbedError> {
        let text = self.kubectl(&[arguments, &["--output=json"]].concat())?;
        serde_json::from_str(&text)
            .map_err(|error| TestbedError::Command { command: "kubectl".to_owned(), output: error.to_string() })
    }

    /// Kills the API server; what runs on nodes runs on.
    ///
    /// # Errors
    ///
    /// If it does not end.
    pub fn stop_api_server(&self) -> Result<(), TestbedError> {
        self.control_plane.daemon("kube-apiserver").kill()
    }

    /// Starts the API server, if it does not run, and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn start_api_server(&self) -> Result<(), TestbedError> {
        let daemon = self.control_plane.daemon("kube-apiserver");
        if !daemon.is_running()? {
            self.control_plane.start_api_server()?;
        }
        let ready = wait_for("the API server", LIMIT, || self.kubectl(&["get", "--raw=/readyz"]).map(Some));
        ready.map(drop).map_err(|error| match error {
            TestbedError::Late { what, limit_s, last } => {
                TestbedError::Late { what, limit_s, last: format!("{last}\n{}", daemon.last_words()) }
            }
            other => other,
        })
    }

    /// Kills etcd and starts it again with the data it had.
    ///
    /// # Errors
    ///
    /// If it does not end or start.
    pub fn restart_etcd(&self) -> Result<(), TestbedError> {
        self.control_plane.daemon("etcd").kill()?;
        self.control_plane.start_etcd()
    }

    /// What programs in pods have changed through the API server so far, in the order in which they asked for it.
    ///
    /// # Errors
    ///
    /// If the API server's log cannot be read.
    pub fn writes(&self) -> Result<Vec<Write>, TestbedError> {
        Write::read(&self.control_plane.audit_log())
    }

    /// Starts a program on this machine that ends with the cluster; its number. It logs to `NAME.log` in the cluster's folder.
    ///
    /// # Errors
    ///
    /// If it does not start, or ends at once.
    pub fn start_program(&self, name: &str, command: &mut Command) -> Result<u32, TestbedError> {
        let process = Daemon::new(self.folder(), name).start(command.stdin(Stdio::null()))?;
        Ok(process.pid().cast_unsigned())
    }

    /// Ends such a program as a crash would.
    ///
    /// # Errors
    ///
    /// If it does not end.
    pub fn kill_program(&self, name: &str) -> Result<(), TestbedError> {
        Daemon::new(self.folder(), name).kill()
    }

    fn start_control_plane(&self) -> Result<(), TestbedError> {
        self.control_plane.start_etcd()?;
        self.start_api_server()?;
        self.control_plane.start_controllers()?;
        // Pods are refused until there is one.
        let account = ["get", "serviceaccount", "default"];
        wait_for("the default service account", LIMIT, || self.kubectl(&account).map(Some)).map(drop)
    }

    /// All real nodes, running or not.
    ///
    /// # Errors
    ///
    /// If the cluster's folder cannot be read.
    pub fn nodes(&self) -> Result<Vec<Node>, TestbedError> {
        let mut indices = Vec::new();
        for entry in fs::read_dir(self.folder()).map_err(at(self.folder()))? {
            let name = entry.map_err(at(self.folder()))?.file_name();
            indices.extend(name.to_str().and_then(|name| name.strip_prefix("node-")?.parse::<u32>().ok()));
        }
        indices.sort_unstable();
        Ok(indices.into_iter().map(|index| self.node_at(index)).collect())
    }

    /// The node of this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn node(&self, name: &str) -> Result<Node, TestbedError> {
        let found = self.nodes()?.into_iter().find(|node| node.name() == name);
        found.ok_or_else(|| TestbedError::Name(format!("there is no node {name}")))
    }

    fn node_at(&self, index: u32) -> Node {
        Node::new(&self.programs, self.folder(), &self.control_plane, index)
    }

    /// Adds a real node and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If it does not become ready, or the cluster was started without nodes.
    pub fn add_node(&self, settings: &NodeSettings) -> Result<Node, TestbedError> {
        let index = self.nodes()?.last().map_or(1, |node| node.index() + 1);
        let node = self.node_at(index);
        node.boot(settings, &self.images())?;
        node.join()?;
        self.wait_ready(&node, settings)?;
        Ok(node)
    }

    /// Ends a node as a power cut would. Kubernetes is not told; its record of GPUs is gone too.
    ///
    /// # Errors
    ///
    /// If something of it cannot be removed.
    pub fn power_off(&self, node: &Node) -> Result<(), TestbedError> {
        node.power_off()
    }

    /// Ends a node and has Kubernetes forget it, as an autoscaler would.
    ///
    /// # Errors
    ///
    /// If something of it cannot be removed.
    pub fn remove_node(&self, node: &Node) -> Result<(), TestbedError> {
        node.power_off()?;
        self.kubectl(&["delete", "node", node.name()]).map(drop)
    }

    fn wait_ready(&self, node: &Node, settings: &NodeSettings) -> Result<(), TestbedError> {
        wait_for(&format!("{} is ready with {} GPUs", node.name(), settings.gpus), LIMIT, || {
            let found = self.get(&["get", "node", node.name()])?;
            let gpus = found["status"]["allocatable"]["nvidia.com/gpu"].as_str().unwrap_or("0");
            Ok((is_ready(&found) && gpus == settings.gpus.to_string()).then_some(()))
        })
    }

    fn images(&self) -> PathBuf {
        self.folder().join("images")
    }

    /// Brings an image to all nodes, also to those that are added later.
    ///
    /// # Errors
    ///
    /// If it cannot be made or imported.
    pub fn import(&self, image: &Image) -> Result<(), TestbedError> {
        let file = image.name().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-") + ".tar";
        let archive = self.images().join(file);
        image.save(&archive)?;
        let nodes = self.nodes()?;
        thread::scope(|scope| {
            let importing: Vec<_> = nodes.iter().map(|node| scope.spawn(|| node.import(&archive))).collect();
            importing.into_iter().try_for_each(|thread| thread.join().expect("importing does not panic"))
        })
    }
}

/// Whether a node says that it is ready.
#[must_use]
pub fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// Between two looks, at least.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Looks again and again until there is something; failures on the way are part of the error in the end.
///
/// # Errors
///
/// [`TestbedError::Late`] when the limit is over.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>, TestbedError>,
) -> Result<T, TestbedError> {
    let end = Instant::now() + limit;
    loop {
        let looked = Instant::now();
        let last = match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => "not yet so".to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > end {
            return Err(TestbedError::Late { what: what.to_owned(), limit_s: limit.as_secs(), last });
        }
        // Whoever looks keeps what is looked for from happening, on a machine that is busy.
        thread::sleep(looked.elapsed().clamp(LOOK_AGAIN, LOOK_AGAIN * 20));
    }
}
