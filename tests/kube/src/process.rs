//! Processes by number and moment of start, and programs that run in the background.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::{TestbedError, at};

/// The variable by which the janitor knows what belongs to a folder of the test bed.
pub(crate) const MARK: &str = "POLLUX_TESTBED";
/// How long a program may take to end once it was killed.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A process, and never another one that got its number later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pid: i32,
    /// In clock ticks since the machine started.
    start_ticks: u64,
    boot: String,
}

impl Process {
    fn of(pid: i32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name in parentheses may hold anything; the moment of the start is the 20th field behind it.
        let start_ticks = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(19)?.parse().ok());
        let start_ticks = start_ticks.ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat: {stat}")))?;
        Ok(Self { pid, start_ticks, boot: boot()? })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// A handle on it; `None` once it has ended.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            other => other?,
        };
        // Looked at after the handle was taken, so that both are the same process.
        Ok(Self::of(self.pid).is_ok_and(|now| now == *self).then_some(handle))
    }

    pub(crate) fn is_running(&self) -> io::Result<bool> {
        match self.open()? {
            Some(handle) => Ok(!has_ended(&handle, Duration::ZERO)?),
            None => Ok(false),
        }
    }

    fn kill(&self) -> io::Result<()> {
        let Some(handle) = self.open()? else { return Ok(()) };
        match pidfd_send_signal(&handle, Signal::KILL) {
            Err(Errno::SRCH) => return Ok(()),
            other => other?,
        }
        if has_ended(&handle, END_LIMIT)? {
            Ok(())
        } else {
            Err(io::Error::other(format!("process {} does not end", self.pid)))
        }
    }
}

/// Names this start of the machine.
pub(crate) fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn has_ended(handle: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
    Ok(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit))? > 0)
}

/// A program in the background, known by a file with its process, beside its log.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    folder: PathBuf,
    name: String,
}

impl Daemon {
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        Self { folder: folder.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join(format!("{}.pid", self.name))
    }

    /// Starts a program that runs in this process's own namespaces.
    pub(crate) fn start(&self, command: &mut Command) -> Result<Process, TestbedError> {
        self.spawn(command, |pid| Ok(Some(pid)))
    }

    /// Starts a program through another that forks it into a PID namespace and waits for it.
    pub(crate) fn start_inside(&self, command: &mut Command) -> Result<Process, TestbedError> {
        self.spawn(command, |pid| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
            Ok(children.split_whitespace().next().and_then(|child| child.parse().ok()))
        })
    }

    /// Starts a program that its caller talks to and waits for.
    pub(crate) fn start_child(&self, command: &mut Command) -> Result<Child, TestbedError> {
        let child = command.process_group(0).env(MARK, &self.folder).spawn();
        let child =
            child.map_err(|source| TestbedError::File { what: format!("cannot start {}", self.name), source })?;
        self.save(&Process::of(number(&child)).map_err(at(&self.pid_file()))?)?;
        Ok(child)
    }

    fn spawn(
        &self,
        command: &mut Command,
        find: impl Fn(i32) -> io::Result<Option<i32>>,
    ) -> Result<Process, TestbedError> {
        let log = File::options().create(true).append(true).open(self.log()).map_err(at(&self.log()))?;
        let errors = log.try_clone().map_err(at(&self.log()))?;
        // A group of its own: an interrupt at the terminal is not for it.
        command.stdout(log).stderr(errors).process_group(0).env(MARK, &self.folder);
        let failure =
            |error: io::Error| TestbedError::File { what: format!("cannot start {}", self.name), source: error };
        let mut child = command.spawn().map_err(failure)?;
        let wrapper = number(&child);
        let limit = Instant::now() + END_LIMIT;
        let process = loop {
            if let Some(status) = child.try_wait().map_err(failure)? {
                return Err(failure(io::Error::other(format!("{status}: {}", self.last_words()))));
            }
            match find(wrapper) {
                Ok(Some(pid)) => break Process::of(pid).map_err(failure)?,
                Ok(None) if Instant::now() < limit => thread::sleep(Duration::from_millis(2)),
                Ok(None) => return Err(failure(io::Error::other("it forks nothing"))),
                Err(error) => return Err(failure(error)),
            }
        };
        // Somebody has to collect it, whenever it ends.
        thread::spawn(move || child.wait());
        self.save(&process)?;
        Ok(process)
    }

    fn save(&self, process: &Process) -> Result<(), TestbedError> {
        let text = serde_json::to_vec(process).expect("plain data");
        fs::write(self.pid_file(), text).map_err(at(&self.pid_file()))
    }

    /// Its process, if it was ever started; it may have ended since.
    pub(crate) fn process(&self) -> Result<Option<Process>, TestbedError> {
        let path = self.pid_file();
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).map_err(io::Error::other).map_err(at(&path))?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&path)(error)),
        }
    }

    pub(crate) fn is_running(&self) -> Result<bool, TestbedError> {
        self.process()?.map_or(Ok(false), |process| process.is_running().map_err(at(&self.pid_file())))
    }

    /// Ends it as a crash would, and returns when it is gone.
    pub(crate) fn kill(&self) -> Result<(), TestbedError> {
        self.process()?.map_or(Ok(()), |process| process.kill().map_err(at(&self.pid_file())))
    }

    /// The end of its log, for error messages.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

fn number(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("process numbers are small")
}

/// A command whose standard input is empty.
pub(crate) fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_file_and_gone_when_kill_returns() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(folder.path(), "sleeper");
        assert!(!daemon.is_running().unwrap());
        daemon.start(quiet("sleep").arg("1000")).unwrap();
        assert!(Daemon::new(folder.path(), "sleeper").is_running().unwrap());
        daemon.kill().unwrap();
        assert!(!daemon.is_running().unwrap());
        daemon.kill().unwrap();
    }

    #[test]
    fn another_process_with_the_same_number_is_never_killed() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(folder.path(), "sleeper");
        let mut process = daemon.start(quiet("sleep").arg("1000")).unwrap();
        process.start_ticks += 1;
        process.kill().unwrap();
        assert!(!process.is_running().unwrap());
        assert!(daemon.is_running().unwrap());
        daemon.kill().unwrap();
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(folder.path(), "failing");
        let error = daemon.start_inside(quiet("sh").args(["-c", "echo no such thing; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "cannot start failing: exit status: 3: no such thing");
    }
}
