use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pollux_backend::{Backend, Observer};
use pollux_backend_local::{LocalBackend, LocalSettings, LogLimits, MachineIdentity, NodeLayout};
use pollux_backend_remote::{Nodes, NodesError, RemoteBackend};
use pollux_policy::PolicySettings;
use pollux_server::http::HttpSettings;
use pollux_server::{Daemon, ServerError, ServerSettings, Stopper};

/// What anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A scheduler's interface with a backend of its own, beside which the backend under test has the machines; and agents.
#[derive(Clone)]
pub(crate) struct Site(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    address: SocketAddr,
    serving: Mutex<Option<Serving>>,
    agents: Mutex<BTreeMap<String, Child>>,
}

struct Serving {
    nodes: Nodes,
    stopper: Stopper,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl Serving {
    fn end(self) {
        self.stopper.stop();
        self.thread.join().unwrap().unwrap();
    }
}

impl Site {
    pub(crate) fn new(test: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("node").join(test);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        // It must be the same after a restart, and none that the system gives to others meanwhile.
        static NEXT: Mutex<u16> = Mutex::new(0);
        let mut next = NEXT.lock().unwrap();
        let first = 10_000 + u16::try_from(std::process::id() % 9_000).unwrap() + *next;
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (first..).find(is_free).unwrap();
        *next += port - first + 1;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let site = Self(Arc::new(Inner { folder, address, serving: Mutex::default(), agents: Mutex::default() }));
        // The interface is there before any backend, so that there can be a token.
        drop(site.open(Box::new(|_| {})));
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.folder.join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// The scheduler of a new process: all that was connected is not any more.
    pub(crate) fn open(&self, observer: Observer) -> Box<RemoteBackend> {
        let mut serving = self.0.serving.lock().unwrap();
        if let Some(earlier) = serving.take() {
            earlier.end();
        }
        let nodes = Nodes::default();
        let own = |observer| self.own("own", observer);
        let backend = RemoteBackend::open(&nodes, &self.0.folder, own, observer).unwrap();
        let http = HttpSettings { nodes: Some(nodes.clone()), ..HttpSettings::new(self.0.address) };
        let settings = ServerSettings::new(self.path("server"), "", PolicySettings::default());
        let unused = |observer| self.own("unused", observer).map(|own| Box::new(own) as Box<dyn Backend>);
        let daemon = Daemon::start(settings, &http, unused).unwrap();
        let stopper = daemon.stopper();
        *serving = Some(Serving { nodes, stopper, thread: thread::spawn(move || daemon.wait()) });
        Box::new(backend)
    }

    fn own(&self, folder: &str, observer: Observer) -> Result<LocalBackend, NodesError> {
        let settings = LocalSettings {
            nodes: NodeLayout::Nothing,
            program: env!("CARGO_BIN_EXE_pollux").into(),
            grace: Duration::from_secs(600),
            log: LogLimits::default(),
            checkpoint_dir: None,
            identity: MachineIdentity::default(),
        };
        Ok(LocalBackend::new(&self.path(folder), settings, observer).unwrap())
    }

    pub(crate) fn nodes(&self) -> Nodes {
        self.0.serving.lock().unwrap().as_ref().unwrap().nodes.clone()
    }

    /// A file with a token to join.
    pub(crate) fn token(&self, lifetime: Duration) -> PathBuf {
        let (token, _) = self.nodes().issue_token(lifetime).unwrap();
        let file = self.path("join-token");
        fs::write(&file, token).unwrap();
        file
    }

    /// `pollux node` with a state folder of its own.
    pub(crate) fn agent(&self, name: &str, state: &Path, token: Option<&Path>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
        command.args(["node", "--join", &self.url(), "--name", name, "--slots", "4"]).arg("--state").arg(state);
        if let Some(token) = token {
            command.arg("--token-file").arg(token);
        }
        for variable in ["POLLUX_URL", "POLLUX_TOKEN", "POLLUX_STATE", "POLLUX_LOG"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn run_agent(&self, name: &str) {
        let token = self.token(Duration::from_secs(3600));
        self.spawn(name, &self.path(name), Some(&token));
    }

    /// With the state folder of an agent that was elsewhere.
    pub(crate) fn run_moved_agent(&self, name: &str, state: &Path) {
        let token = self.token(Duration::from_secs(3600));
        self.spawn(name, state, Some(&token));
    }

    /// One that says more of itself.
    pub(crate) fn run_agent_with(&self, name: &str, options: &[&str]) {
        let token = self.token(Duration::from_secs(3600));
        self.spawn_with(name, &self.path(name), Some(&token), options);
    }

    fn spawn(&self, name: &str, state: &Path, token: Option<&Path>) {
        self.spawn_with(name, state, token, &[]);
    }

    fn spawn_with(&self, name: &str, state: &Path, token: Option<&Path>, options: &[&str]) {
        let log = File::options().create(true).append(true).open(self.path(&format!("{name}.log"))).unwrap();
        let mut command = self.agent(name, state, token);
        command.args(options).stdout(log.try_clone().unwrap()).stderr(log);
        self.0.agents.lock().unwrap().insert(name.to_owned(), command.spawn().unwrap());
    }

    /// Sends an agent a signal, by the name that `kill` knows.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        let pid = self.0.agents.lock().unwrap()[name].id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }

    /// Waits until an agent ends by itself; returns its exit code.
    pub(crate) fn end_of(&self, name: &str) -> Option<i32> {
        let mut code = None;
        self.wait_until("the agent has ended", || {
            self.0.agents.lock().unwrap().get_mut(name).unwrap().try_wait().unwrap().is_some()
        });
        if let Some(mut agent) = self.0.agents.lock().unwrap().remove(name) {
            code = agent.wait().unwrap().code();
        }
        code
    }

    pub(crate) fn kill_agent(&self, name: &str) {
        if let Some(mut agent) = self.0.agents.lock().unwrap().remove(name) {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    /// With what it has kept, unless it runs or was removed.
    pub(crate) fn run_agent_again(&self, name: &str) {
        let is_known = self.nodes().machines().iter().any(|machine| machine.name == name);
        if is_known && !self.0.agents.lock().unwrap().contains_key(name) {
            self.spawn(name, &self.path(name), None);
        }
    }

    pub(crate) fn remove(&self, name: &str) {
        self.nodes().remove(name, Duration::ZERO).unwrap();
    }

    /// Waits until something is so.
    pub(crate) fn wait_until(&self, what: &str, so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < deadline, "not so within {PATIENCE:?}: {what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nothing keeps running after a test: a machine that is removed ends what it runs, and itself.
        for (name, agent) in self.agents.get_mut().unwrap() {
            let (deadline, mut is_removed) = (Instant::now() + PATIENCE, false);
            while agent.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
                // A short test is over before it has joined.
                if let Some(serving) = self.serving.get_mut().unwrap().as_ref().filter(|_| !is_removed) {
                    is_removed = serving.nodes.remove(name, Duration::ZERO).is_ok();
                }
                thread::sleep(Duration::from_millis(10));
            }
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if let Some(serving) = self.serving.get_mut().unwrap().take() {
            serving.end();
        }
    }
}
