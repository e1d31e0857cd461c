//! Trainer processes, their folder, and what they leave behind.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Far above what anything here takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A folder of one test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// A pace of steps that take so long on any number of GPUs.
    pub(crate) fn pace(&self, step_s: f64) -> String {
        let path = self.path("pace.toml");
        let text = format!(
            "parallelism = \"data_parallel\"\nalpha_compute = {step_s}\nbeta_compute = 1e-7\nalpha_internode = 1e-6\n\
             beta_internode = 1e-6\nalpha_intranode = 1e-6\nbeta_intranode = 1e-6\ngamma = 1.0\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Everything that was printed, by process.
    pub(crate) fn logs(&self) -> String {
        let mut logs: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        logs.iter().map(|path| format!("\n{}:\n{}", path.display(), fs::read_to_string(path).unwrap())).collect()
    }

    /// The lines of the audit, checked: every epoch once, in order, each with every one of its samples once.
    pub(crate) fn audited_epochs(&self, samples: u32) -> u32 {
        let text = fs::read_to_string(self.path("audit")).unwrap_or_default();
        let mut checksum = None;
        for (line, epoch) in text.lines().zip(1_u32..) {
            let parts: Vec<_> = line.split(' ').collect();
            assert_eq!(parts[..2], [epoch.to_string(), samples.to_string()], "{text}");
            assert_eq!(*checksum.get_or_insert(parts[2].to_owned()), parts[2], "{text}");
        }
        text.lines().count() as u32
    }

    /// The losses by epoch that all processes printed, and the last accuracy.
    pub(crate) fn losses(&self) -> (Vec<f64>, f64) {
        let logs = self.logs();
        let mut epochs: Vec<_> = logs
            .lines()
            .filter(|line| line.starts_with("epoch "))
            .map(|line| {
                let read = |name| number(line, name).unwrap();
                (read("epoch ") as u32, read("loss "), read("accuracy "))
            })
            .collect();
        epochs.sort_by_key(|&(epoch, ..)| epoch);
        (epochs.iter().map(|&(_, loss, _)| loss).collect(), epochs.last().unwrap().2)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// A process; it is killed if the test does not wait for it.
pub(crate) struct Trainer(Child);

impl Trainer {
    pub(crate) fn start(folder: &Folder, name: &str, arguments: &[&str], variables: &[(&str, String)]) -> Self {
        let log = File::create(folder.path(&format!("{name}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-trainer"));
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Self(command.spawn().unwrap())
    }

    /// A process of a group that is not scheduled by anybody.
    pub(crate) fn start_rank(folder: &Folder, rank: usize, count: usize, port: u16, arguments: &[&str]) -> Self {
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", count.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        Self::start(folder, &format!("rank-{rank}"), arguments, &variables)
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// The exit code, if there is one already.
    pub(crate) fn ended(&mut self) -> Option<Option<i32>> {
        self.0.try_wait().unwrap().map(|status| status.code())
    }

    /// The exit code; `None` if a signal ended it.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(code) = self.ended() {
                return code;
            }
            assert!(Instant::now() < deadline, "a process never ended");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nobody listens on just now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The number that follows a name in a line.
pub(crate) fn number(line: &str, name: &str) -> Option<f64> {
    line.split(name).nth(1)?.split([',', ':', '/']).next()?.trim().parse().ok()
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !look() {
        assert!(Instant::now() < deadline, "{what} never came");
        thread::sleep(Duration::from_millis(5));
    }
}
