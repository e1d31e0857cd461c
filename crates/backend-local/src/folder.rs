use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use pollux_backend::{Exit, Observation, ReplicaId, ReplicaOrder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::process::Process;
use crate::{LocalSettings, LogLimits};

const ORDER: &str = "order.json";
const SHIM: &str = "shim.pid";
const WORKER: &str = "worker.pid";
const STOP: &str = "stop.json";
const EXIT: &str = "exit.json";
const EXIT_RESERVED: &str = "exit.json.new";
/// Followed by the position of a log file's first byte in the whole log.
const LOG: &str = "log-";
/// What the previous version called the newest file, and the others with `.1`, `.2`, ... behind it.
const PREVIOUS_LOG: &str = "log";

/// Of `order.json`. The previous version, 1, did not say.
const ORDER_VERSION: u32 = 2;

/// Room for any ending; a reason that is longer is cut.
const EXIT_BYTES: usize = 4096;
const REASON_CHARS: usize = 500;

/// All that is kept of one replica. Files appear whole or not at all.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

/// What a shim has to do: `order.json`. Fields of other versions are left alone, and those that an earlier one lacks have
/// defaults.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(default = "first_version")]
    version: u32,
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

const fn first_version() -> u32 {
    1
}

impl Record {
    pub(crate) fn new(order: ReplicaOrder, slots: Vec<u32>, settings: &LocalSettings, files_max: Option<u64>) -> Self {
        Self::of(order, slots, settings.grace, settings.log, files_max)
    }

    pub(crate) const fn of(
        order: ReplicaOrder,
        slots: Vec<u32>,
        grace: Duration,
        log: LogLimits,
        files_max: Option<u64>,
    ) -> Self {
        Self { version: ORDER_VERSION, order, slots, grace, log, files_max }
    }
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

/// Whether a file was read that makes no sense, and never will; anything else may be different at another time.
pub(crate) fn is_garbled(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
}

/// Whoever else removes it may have been faster.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
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

    /// The claim goes last: a shim that comes late finds it, or no folder in which it could claim anything.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name() != SHIM {
                remove_file(&entry.path())?;
            }
        }
        remove_file(&self.path.join(SHIM))?;
        fs::remove_dir(&self.path)
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

    /// How it ended. One that wrote nothing sensible about that, or nothing at all, is lost.
    pub(crate) fn ending(&self) -> io::Result<Ending> {
        match self.read(EXIT) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ending::Exited(Exit::Lost)),
            Err(error) if is_garbled(&error) => {
                warn!(folder = %self.path.display(), %error, "nobody knows how a replica ended");
                Ok(Ending::Exited(Exit::Lost))
            }
            other => other,
        }
    }

    /// Opens the newest file of the log, or begins the first; with its position in the whole log.
    pub(crate) fn open_log(&self) -> io::Result<(File, u64)> {
        let start = self.log_files()?.last().map_or(0, |(start, _)| *start);
        Ok((self.begin_log(start)?, start))
    }

    /// Begins a new file of the log at a position, and drops the oldest beyond `old_files` old ones.
    pub(crate) fn rotate_log(&self, start: u64, old_files: u32) -> io::Result<File> {
        let file = self.begin_log(start)?;
        let files = self.log_files()?;
        let excess = files.len().saturating_sub(old_files as usize + 1);
        for (_, path) in &files[..excess] {
            fs::remove_file(path)?;
        }
        Ok(file)
    }

    /// Files of the log with the positions of their first bytes, oldest first.
    pub(crate) fn logs(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let files = self.log_files()?;
        if !files.is_empty() {
            return Ok(files);
        }
        // A replica that the previous version started: positions count from what is left.
        let old = |age: u32| self.path.join(format!("{PREVIOUS_LOG}.{age}"));
        let mut paths: Vec<_> = (1..).map(old).take_while(|log| log.exists()).collect();
        paths.reverse();
        paths.extend(Some(self.path.join(PREVIOUS_LOG)).filter(|log| log.exists()));
        let mut start = 0;
        let mut files = Vec::new();
        for path in paths {
            let bytes = path.metadata()?.len();
            files.push((start, path));
            start += bytes;
        }
        Ok(files)
    }

    fn log_files(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            let start = entry.file_name().to_str().and_then(|name| name.strip_prefix(LOG)?.parse().ok());
            files.extend(start.map(|start| (start, entry.path())));
        }
        files.sort_unstable();
        Ok(files)
    }

    fn begin_log(&self, start: u64) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(self.path.join(format!("{LOG}{start}")))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    #[test]
    fn a_folder_is_claimed_until_nothing_else_is_left_in_it() {
        let parent = TestFolder::new("claimed-to-the-end");
        let folder = Folder::of(parent.path(), ReplicaId(1));
        folder.create().unwrap();
        assert!(matches!(folder.claim(Claim::Void), Ok(Claim::Void)));
        folder.reserve_ending().unwrap();
        // What cannot be removed as a file is.
        let in_the_way = folder.path().join("folder");
        fs::create_dir(&in_the_way).unwrap();
        assert!(folder.remove().is_err());
        assert!(folder.is_claimed());
        fs::remove_dir(in_the_way).unwrap();
        folder.remove().unwrap();
        assert!(!folder.path().exists());
    }
}
