//! A daemon beside a Slurm.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use pollux_api::AllocationQueue;
use pollux_client::{Client, ClientError, Connection};
use pollux_job::JobSpec;

use crate::bed::{Bed, eventually, ports};

/// A program of this build.
pub fn program(name: &str) -> PathBuf {
    // Tests are a folder below.
    let this = std::env::current_exe().unwrap();
    let found = this.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built: run `cargo build --workspace --bins` first"))
}

/// A state folder, a Slurm, and how daemons are started there.
#[derive(Debug)]
pub struct Site {
    /// The Slurm.
    pub bed: Bed,
    port: u16,
    daemon: Option<Child>,
}

impl Site {
    /// A daemon without slots of its own; nothing where there is no Slurm.
    pub fn start(nodes: u16) -> Option<Self> {
        let bed = Bed::start(nodes)?;
        // Agents keep the address of their scheduler, so that it has to be the same after a restart.
        let mut site = Self { bed, port: ports(1), daemon: None };
        site.start_daemon();
        Some(site)
    }

    /// Where the daemon keeps its state.
    pub fn state(&self) -> PathBuf {
        self.bed.folder().join("pollux")
    }

    /// Starts the daemon, and waits for nothing.
    pub fn spawn_daemon(&mut self) {
        let mut up = self.bed.command(program("pollux").to_str().unwrap());
        up.arg("up").arg("--state").arg(self.state());
        up.args([
            "--listen",
            &format!("127.0.0.1:{}", self.port),
            "--slots",
            "0",
            "--slurm-interval",
            "1s",
            "--grace",
            "5",
        ]);
        let log = File::options().create(true).append(true).open(self.bed.folder().join("daemon.log")).unwrap();
        for variable in ["POLLUX_URL", "POLLUX_TOKEN", "POLLUX_STATE"] {
            up.env_remove(variable);
        }
        self.daemon = Some(up.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// Starts the daemon, and waits until it answers.
    pub fn start_daemon(&mut self) {
        self.spawn_daemon();
        eventually("an answer of the daemon", || self.client().and_then(|client| client.cluster()).ok());
    }

    /// Kills the daemon.
    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    /// Speaks to the daemon.
    pub fn client(&self) -> Result<Client, ClientError> {
        let url = format!("http://127.0.0.1:{}", self.port);
        Client::new(&Connection::find(Some(&url), None, &self.state())?)
    }

    /// `pollux alloc`.
    pub fn alloc(&self, arguments: &str) -> Output {
        let mut command = Command::new(program("pollux"));
        command.arg("alloc").args(arguments.split(' ')).arg("--state").arg(self.state());
        // What follows `--` is for sbatch.
        if let Some((ours, theirs)) = arguments.split_once(" -- ") {
            command = Command::new(program("pollux"));
            command
                .arg("alloc")
                .args(ours.split(' '))
                .arg("--state")
                .arg(self.state())
                .arg("--")
                .args(theirs.split(' '));
        }
        command.env("NO_COLOR", "1").output().unwrap()
    }

    /// The same, which is to succeed; what it says.
    pub fn alloc_well(&self, arguments: &str) -> String {
        let Output { status, stdout, stderr } = self.alloc(arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "pollux alloc {arguments}: {stdout}{stderr}");
        format!("{stdout}{stderr}")
    }

    /// A queue of allocations, if it is there.
    pub fn queue(&self, name: &str) -> Option<AllocationQueue> {
        self.client().ok()?.allocation_queue(name).ok()
    }

    /// A job that trains for real, an epoch in some seconds; what each used is in a file.
    pub fn training(&self, name: &str, epochs: u32) -> JobSpec {
        let mut command = vec![program("pollux-trainer").to_str().unwrap().to_owned()];
        let options = format!("--epochs {epochs} --samples 2048 --pace good --checkpoint-every 2 -q");
        command.extend(options.split(' ').map(str::to_owned));
        command.extend(["--audit".to_owned(), self.audit(name).to_str().unwrap().to_owned()]);
        JobSpec { command, working_dir: self.bed.folder().to_owned(), ..JobSpec::new(name, 1) }
    }

    fn audit(&self, name: &str) -> PathBuf {
        self.bed.folder().join(format!("{name}.audit"))
    }

    /// Number and samples of each epoch that a training has finished, in the order in which it did.
    pub fn epochs(&self, name: &str) -> Vec<(u32, u32)> {
        let text = fs::read_to_string(self.audit(name)).unwrap_or_default();
        let epoch = |line: &str| {
            let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
            (numbers.next().unwrap(), numbers.next().unwrap())
        };
        text.lines().map(epoch).collect()
    }

    /// Replicas that a job has now.
    pub fn replicas(&self, job: u64) -> u32 {
        self.client().and_then(|client| client.job(job)).map_or(0, |detail| detail.job.replicas)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_daemon();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.bed.folder().join("daemon.log")).unwrap_or_default();
            eprintln!("the daemon said:\n{log}");
            let outputs = fs::read_dir(self.state().join("slurm")).into_iter().flatten().flatten();
            for file in outputs.map(|entry| entry.path()).filter(|file| file.extension().is_some_and(|it| it == "out"))
            {
                eprintln!("{}:\n{}", file.display(), fs::read_to_string(&file).unwrap_or_default());
            }
        }
    }
}
