use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use pollux_backend::{Exit, Observation, ReplicaId, ReplicaOrder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::LogLimits;
use crate::process::Process;

const ORDER: &str = "order.json";
const SHIM: &str = "shim.pid";
const WORKER: &str = "worker.pid";
const STOP: &str = "stop.json";
const EXIT: &str = "exit.json";
const EXIT_RESERVED: &str = "exit.json.new";
const LOG: &str = "log";

/// Room for any ending; a reason that is longer is cut.
const EXIT_BYTES: usize = 4096;
const REASON_CHARS: usize = 500;

/// All that is kept of one replica. Files appear whole or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

/// What a shim has to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) order: ReplicaOrder,
    /// Slots that it takes.
    pub(crate) slots: Vec<u32>,
    /// Grace of a stop that says none.
    pub(crate) grace: Duration,
    pub(crate) log: LogLimits,
    /// Files that it may have open, if there is a limit.
    #[serde(default)]
    pub(crate) files_max: Option<u64>,
}

/// Who may carry an order out.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Claim {
    /// This process, which does.
    Shim(Process),
    /// Nobody any more.
    Void,
}

/// How a replica ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    Exited(Exit),
    StartFailed { reason: String, retryable: bool },
}

impl Ending {
    pub(crate) fn observation(self, replica: ReplicaId) -> Observation {
        match self {
            Self::Exited(exit) => Observation::Exited { replica, exit },
            Self::StartFailed { reason, retryable } => Observation::StartFailed { replica, reason, retryable },
        }
    }
}

impl Folder {
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub(crate) fn of(replicas: &Path, replica: ReplicaId) -> Self {
        Self { path: replicas.join(replica.0.to_string()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, for nobody else to read: orders hold what users set in the environment.
    pub(crate) fn create(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }

    pub(crate) fn write_order(&self, record: &Record) -> io::Result<()> {
        let new = self.write_aside(ORDER, record)?;
        // What is renamed before it is on the disk may be found empty after a power failure.
        File::open(&new)?.sync_all()?;
        fs::rename(new, self.path.join(ORDER))
    }

    pub(crate) fn order(&self) -> io::Result<Record> {
        self.read(ORDER)
    }

    /// Claims the order, unless somebody has; tells who has it now.
    pub(crate) fn claim(&self, claim: Claim) -> io::Result<Claim> {
        if self.is_claimed() {
            return self.read(SHIM);
        }
        let new = self.write_aside(SHIM, &claim)?;
        let linked = fs::hard_link(&new, self.path.join(SHIM));
        fs::remove_file(new)?;
        match linked {
            Ok(()) => Ok(claim),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.read(SHIM),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.path.join(SHIM).exists()
    }

    pub(crate) fn write_worker(&self, worker: &Process) -> io::Result<()> {
        fs::rename(self.write_aside(WORKER, worker)?, self.path.join(WORKER))
    }

    pub(crate) fn worker_has_started(&self) -> bool {
        self.path.join(WORKER).exists()
    }

    pub(crate) fn write_stop(&self, grace: Duration) -> io::Result<()> {
        fs::rename(self.write_aside(STOP, &grace)?, self.path.join(STOP))
    }

    /// The grace of the stop that was asked for last.
    pub(crate) fn stop(&self) -> Option<Duration> {
        self.read(STOP).ok()
    }

    /// Takes the room for an ending, so that a disk that is full by then does not keep it from being told.
    pub(crate) fn reserve_ending(&self) -> io::Result<()> {
        self.create_file(EXIT_RESERVED)?.write_all(&[b' '; EXIT_BYTES])
    }

    pub(crate) fn write_ending(&self, ending: &Ending) -> io::Result<()> {
        let cut = match ending {
            Ending::StartFailed { reason, retryable } => {
                &Ending::StartFailed { reason: reason.chars().take(REASON_CHARS).collect(), retryable: *retryable }
            }
            Ending::Exited(_) => ending,
        };
        let new = self.path.join(EXIT_RESERVED);
        if !new.exists() {
            self.reserve_ending()?;
        }
        let file = OpenOptions::new().write(true).open(&new)?;
        file.write_all_at(&serde_json::to_vec(cut)?, 0)?;
        file.sync_all()?;
        fs::rename(new, self.path.join(EXIT))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.path.join(EXIT).exists()
    }

    /// How it ended; `None` as long as that is not known.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.read(EXIT).ok()
    }

    pub(crate) fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(self.path.join(LOG))
    }

    /// Begins a new log beside up to `old_files` old ones.
    pub(crate) fn rotate_log(&self, old_files: u32) -> io::Result<()> {
        for age in (1..old_files).rev() {
            match fs::rename(self.old_log(age), self.old_log(age + 1)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
        let log = self.path.join(LOG);
        if old_files == 0 { fs::remove_file(log) } else { fs::rename(log, self.old_log(1)) }
    }

    /// Logs, oldest first.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        let mut logs: Vec<_> = (1..).map(|age| self.old_log(age)).take_while(|log| log.exists()).collect();
        logs.reverse();
        logs.extend(Some(self.path.join(LOG)).filter(|log| log.exists()));
        logs
    }

    fn old_log(&self, age: u32) -> PathBuf {
        self.path.join(format!("{LOG}.{age}"))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<T> {
        Ok(serde_json::from_slice(&fs::read(self.path.join(name))?)?)
    }

    /// Writes a file under a name that no other process uses.
    fn write_aside(&self, name: &str, value: &impl Serialize) -> io::Result<PathBuf> {
        let aside = format!("{name}.{}", process::id());
        let mut file = self.create_file(&aside)?;
        serde_json::to_writer(&mut file, value)?;
        Ok(self.path.join(aside))
    }

    fn create_file(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.path.join(name))
    }
}
