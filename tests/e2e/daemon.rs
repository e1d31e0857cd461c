use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use pollux_api::Job;
use pollux_client::{Client, ClientError, Connection, JobQuery};
use pollux_job::JobSpec;

/// What anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A program of this build.
pub(crate) fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(Path::parent).unwrap().join(name);
    assert!(path.is_file(), "{name} is not built: run `cargo build --workspace --bins` first");
    path
}

/// Where the next site looks for a port.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A state folder, and how daemons on it are started.
pub(crate) struct Site {
    folder: tempfile::TempDir,
    port: u16,
    arguments: Vec<String>,
    /// The host of a certificate, if it is reached over the network.
    tls_host: Option<String>,
}

impl Site {
    pub(crate) fn new(arguments: &[&str]) -> Self {
        // Workers keep the address of their server, so that it has to be the same after a restart.
        // It must not be one that the system gives to others while there is no daemon, which begin at 32768.
        let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let first =
            20_000 + u16::try_from(std::process::id() % 10_000).unwrap() + NEXT.fetch_add(100, Ordering::Relaxed);
        let port = (first..).find(free).unwrap();
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { folder: tempfile::tempdir().unwrap(), port, arguments, tls_host: None }
    }

    /// With a certificate of its own for this host, at all addresses.
    pub(crate) fn over_tls(host: &str, arguments: &[&str]) -> Self {
        Self::new(arguments).with_certificate(host)
    }

    /// Another that pretends to be this one: at the same address, with another certificate and another state.
    pub(crate) fn impostor(&self) -> Self {
        let mut other = Self::new(&["--slots", "0"]);
        other.port = self.port;
        other.with_certificate(self.tls_host.as_deref().unwrap())
    }

    fn with_certificate(mut self, host: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), host.to_owned()]).unwrap();
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| self.folder().join(name));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        self.tls_host = Some(host.to_owned());
        let [certificate, key] = [certificate, key].map(|path| path.to_str().unwrap().to_owned());
        let url = self.url();
        let arguments =
            ["--tls-cert", &certificate, "--tls-key", &key, "--worker-url", &url, "--worker-ca", &certificate];
        self.arguments.extend(arguments.map(str::to_owned));
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder().join("state")
    }

    /// `pollux up` that nobody waits for.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(program("pollux"));
        command.arg("up").arg("--state").arg(self.state());
        let host = if self.tls_host.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        command.args(["--listen", &format!("{host}:{}", self.port)]).args(&self.arguments);
        let talk = File::options().create(true).append(true).open(self.folder().join("daemon.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(talk);
        for variable in ["POLLUX_URL", "POLLUX_TOKEN", "POLLUX_STATE"] {
            command.env_remove(variable);
        }
        command
    }

    /// A daemon that has just been started, and may not listen yet.
    pub(crate) fn spawn(&self) -> Daemon {
        Daemon { child: self.command().spawn().unwrap() }
    }

    /// A daemon that answers.
    pub(crate) fn start(&self) -> Daemon {
        self.answering(self.spawn())
    }

    /// A daemon that answers, started by a command around that of [`Site::command`].
    pub(crate) fn start_by(&self, mut command: Command) -> Daemon {
        self.answering(Daemon { child: command.spawn().unwrap() })
    }

    fn answering(&self, mut daemon: Daemon) -> Daemon {
        let deadline = Instant::now() + PATIENCE;
        while self.client().and_then(|client| client.cluster()).is_err() {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "no server: {ended:?}\n{}", self.talk());
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    pub(crate) fn url(&self) -> String {
        match &self.tls_host {
            Some(host) => format!("https://{host}:{}", self.port),
            None => format!("http://127.0.0.1:{}", self.port),
        }
    }

    pub(crate) fn client(&self) -> Result<Client, ClientError> {
        // Beside that for the network there is one for this machine.
        let url = self.tls_host.is_none().then(|| self.url());
        Client::new(&Connection::find(url.as_deref(), None, &self.state())?)
    }

    /// What daemons have said.
    pub(crate) fn talk(&self) -> String {
        fs::read_to_string(self.folder().join("daemon.log")).unwrap_or_default()
    }

    /// A job that trains for real.
    pub(crate) fn training(&self, name: &str, options: &[&str]) -> JobSpec {
        let mut command = vec![program("pollux-trainer").to_str().unwrap().to_owned()];
        command.extend(options.iter().map(|&option| option.to_owned()));
        command.extend(["--audit".to_owned(), self.audit(name).to_str().unwrap().to_owned()]);
        self.job(name, command)
    }

    pub(crate) fn job(&self, name: &str, command: Vec<String>) -> JobSpec {
        JobSpec { command, working_dir: self.folder().to_owned(), ..JobSpec::new(name, 1) }
    }

    fn audit(&self, name: &str) -> PathBuf {
        self.folder().join(format!("{name}.audit"))
    }

    /// Number and samples of each epoch that a training has finished, in the order in which it did.
    pub(crate) fn epochs(&self, name: &str) -> Vec<(u32, u32)> {
        let text = fs::read_to_string(self.audit(name)).unwrap_or_default();
        let epoch = |line: &str| {
            let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
            (numbers.next().unwrap(), numbers.next().unwrap())
        };
        text.lines().map(epoch).collect()
    }

    /// Every job that the server knows, live or ended.
    pub(crate) fn jobs(&self) -> Result<Vec<Job>, ClientError> {
        Ok(self.client()?.jobs_up_to(10_000, JobQuery::default())?.jobs)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.talk());
        }
        crate::processes::end_workers(self.folder());
    }
}

/// A daemon, which dies with its test.
pub(crate) struct Daemon {
    pub(crate) child: Child,
}

impl Daemon {
    /// `SIGKILL`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// `SIGTERM`, and waits until it has ended.
    pub(crate) fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
