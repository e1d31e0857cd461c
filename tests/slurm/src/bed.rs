//! A Slurm of its own.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// Where the next bed looks for ports.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Waits for something that must happen.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A cluster of one controller and some nodes.
#[derive(Debug)]
pub struct Bed {
    folder: tempfile::TempDir,
    munge: Child,
    controller: Option<Child>,
    nodes: Vec<Child>,
}

impl Bed {
    /// Nothing where it cannot be: that is said past the capture of the tests' output.
    pub fn start(nodes: u16) -> Option<Self> {
        let programs = ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun", "sinfo", "scontrol"];
        let missing = programs.into_iter().find(|program| path(program).is_none());
        let why = match missing {
            Some(program) => Some(format!("{program} is not installed: `make setup` installs Slurm on Debian")),
            None if !rustix::process::geteuid().is_root() => {
                Some("Slurm needs root to run jobs of its users".to_owned())
            }
            None => None,
        };
        if let Some(why) = why {
            let mut stderr = std::io::stderr();
            writeln!(stderr, "skipped: {why}").unwrap();
            return None;
        }
        let folder = tempfile::Builder::new().prefix("slurm").tempdir().unwrap();
        for name in ["state", "spool", "munge", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        configure(folder.path(), nodes);
        let munge = munge(&folder.path().join("munge"));
        let mut bed = Self { folder, munge, controller: None, nodes: Vec::new() };
        bed.start_controller();
        for node in 1..=nodes {
            let mut slurmd = bed.command("slurmd");
            slurmd.args(["-D", "-N", &format!("n{node}"), "-f"]).arg(bed.conf());
            bed.nodes.push(bed.started(slurmd, "slurmd"));
        }
        eventually("idle nodes", || {
            (bed.printed("sinfo", &["-h", "-N", "-t", "idle"]).lines().count() == usize::from(nodes)).then_some(())
        });
        Some(bed)
    }

    /// Where everything of it is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its configuration.
    pub fn conf(&self) -> PathBuf {
        self.folder().join("slurm.conf")
    }

    /// A program that uses this Slurm.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(path(program).unwrap_or_else(|| program.into()));
        command.env("SLURM_CONF", self.conf()).env("TMPDIR", self.folder().join("tmp")).stdin(Stdio::null());
        command
    }

    /// What a program says that uses it.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().unwrap()
    }

    /// What it prints.
    pub fn printed(&self, program: &str, arguments: &[&str]) -> String {
        String::from_utf8_lossy(&self.output(program, arguments).stdout).into_owned()
    }

    /// Number, state and name of every job that was ever submitted.
    pub fn jobs(&self) -> Vec<(u64, String, String)> {
        let listed = self.printed("squeue", &["-h", "--states=all", "--format=%i|%T|%j"]);
        let job = |line: &str| {
            let mut fields = line.splitn(3, '|').map(str::trim);
            let number = fields.next()?.parse().ok()?;
            Some((number, fields.next()?.to_owned(), fields.next()?.to_owned()))
        };
        listed.lines().filter_map(job).collect()
    }

    /// Those that wait or run.
    pub fn live_jobs(&self) -> Vec<u64> {
        let is_live = |state: &str| matches!(state, "PENDING" | "CONFIGURING" | "RUNNING" | "COMPLETING");
        self.jobs().into_iter().filter(|(_, state, _)| is_live(state)).map(|(number, ..)| number).collect()
    }

    /// Starts `slurmctld`, and waits until it answers.
    pub fn start_controller(&mut self) {
        let mut slurmctld = self.command("slurmctld");
        slurmctld.args(["-D", "-f"]).arg(self.conf());
        self.controller = Some(self.started(slurmctld, "slurmctld"));
        eventually("a controller", || self.output("scontrol", &["ping"]).status.success().then_some(()));
    }

    /// Kills `slurmctld`.
    pub fn kill_controller(&mut self) {
        if let Some(mut controller) = self.controller.take() {
            controller.kill().unwrap();
            controller.wait().unwrap();
        }
    }

    fn started(&self, mut command: Command, name: &str) -> Child {
        let log = File::options().create(true).append(true).open(self.folder().join(format!("{name}.out"))).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// Ends what mentions this bed on its command line: agents and shims that a test which went wrong has left.
    fn end_strays(&self) {
        let mark = self.folder().to_str().unwrap();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let names = |text: &[u8]| text.windows(mark.len()).any(|part| part == mark.as_bytes());
            if pid != std::process::id().cast_signed()
                && (names(&command) || names(&environment))
                && let Some(pid) = Pid::from_raw(pid)
            {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("Slurm had:\n{}", self.printed("squeue", &["--states=all"]));
            for entry in fs::read_dir(self.folder()).unwrap().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.ends_with("ctld.log") {
                    eprintln!("{name}:\n{}", fs::read_to_string(entry.path()).unwrap_or_default());
                }
            }
        }
        for child in self.nodes.iter_mut().chain(&mut self.controller).chain([&mut self.munge]) {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.end_strays();
    }
}

/// Daemons are where the search path of users need not lead.
fn path(program: &str) -> Option<PathBuf> {
    let search = std::env::var("PATH").unwrap_or_default();
    let folders = search.split(':').chain(["/usr/sbin", "/usr/local/sbin"]).map(PathBuf::from);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn munge(folder: &Path) -> Child {
    use std::os::unix::fs::PermissionsExt;
    let key = folder.join("key");
    let mut bytes = [0; 128];
    File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    fs::write(&key, bytes).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let at = |name: &str| format!("--{name}={}", folder.join(name.trim_end_matches("-file")).display());
    let log = File::create(folder.join("munged.out")).unwrap();
    let mut munged = Command::new(path("munged").unwrap());
    munged.args(["--force", "--foreground", &format!("--key-file={}", key.display()), &at("socket")]);
    munged.args([at("pid-file"), at("log-file"), at("seed-file")]);
    munged.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// Ports that nobody listens at now.
pub fn ports(count: u16) -> u16 {
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap() + NEXT.fetch_add(50, Ordering::Relaxed);
    let is_free = |port: u16| TcpListener::bind(("0.0.0.0", port)).is_ok();
    (first..).find(|&port| (port..port + count).all(is_free)).unwrap()
}

fn configure(folder: &Path, nodes: u16) {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let (host, port) = (host.trim().split('.').next().unwrap(), ports(nodes + 1));
    let at = |name: &str| folder.join(name).display().to_string();
    let mut text = format!(
        "ClusterName=bed\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={port}\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={}\nStateSaveLocation={}\nSlurmdSpoolDir={}\n\
         SlurmdPidFile={}\nSlurmdLogFile={}\nSlurmctldPidFile={}\nSlurmctldLogFile={}\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
         ReturnToService=2\nSchedulerType=sched/backfill\n\
         SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n\
         KillWait=1\nMinJobAge=600\nMessageTimeout=20\nAccountingStorageType=accounting_storage/none\n\
         JobAcctGatherType=jobacct_gather/none\nJobCompType=jobcomp/none\n",
        at("munge/socket"),
        at("state"),
        at("spool/%n"),
        at("%n.pid"),
        at("%n.log"),
        at("ctld.pid"),
        at("ctld.log"),
    );
    for node in 1..=nodes {
        // Each node has an address of its own, as machines have.
        text += &format!(
            "NodeName=n{node} NodeHostname={host} NodeAddr=127.0.7.{node} Port={} CPUs=2 RealMemory=500\n",
            port + node
        );
    }
    text +=
        &format!("PartitionName=debug Nodes=n[1-{nodes}] Default=YES MaxTime=60 State=UP OverSubscribe=EXCLUSIVE\n");
    fs::write(folder.join("slurm.conf"), text).unwrap();
}
