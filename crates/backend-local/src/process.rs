//! Processes by number and moment of start, and the families they come in.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// The variable by which everything that a worker starts is known to belong to its replica: the replica's folder.
pub(crate) const MARK: &str = "POLLUX_REPLICA_DIR";

/// A process, and never another one that got its number later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pid: i32,
    /// When it started, in clock ticks since the machine did.
    start_ticks: u64,
    /// Which start of the machine that was.
    boot: String,
}

impl Process {
    pub(crate) fn current() -> io::Result<Self> {
        Self::of(getpid())
    }

    /// The process that has this number now.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        let start_ticks = Stat::read(pid)?.start_ticks;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { pid: pid.as_raw_pid(), start_ticks, boot })
    }

    /// A handle on it; `None` once it has ended.
    pub(crate) fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = pid(self.pid) else { return Ok(None) };
        // The handle comes first: if the process of that number is the right one after that, so is the handle.
        let Some(handle) = open(pid)? else { return Ok(None) };
        match Self::of(pid) {
            Ok(process) => Ok((process == *self).then_some(handle)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Kills everything below this process; what is forked meanwhile is for the next call.
pub(crate) fn kill_descendants() -> io::Result<()> {
    let all = processes()?.filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect::<Vec<_>>();
    let mut family = HashSet::from([getpid()]);
    loop {
        let children = |(pid, stat): &&(Pid, Stat)| {
            stat.parent.is_some_and(|parent| family.contains(&parent)) && !family.contains(pid)
        };
        let more: Vec<Pid> = all.iter().filter(children).map(|(pid, _)| *pid).collect();
        if more.is_empty() {
            break;
        }
        family.extend(more);
    }
    family.remove(&getpid());
    for (pid, stat) in all.iter().filter(|(pid, _)| family.contains(pid)) {
        if let Some(handle) = open(*pid)?
            && Stat::read(*pid).is_ok_and(|now| now.start_ticks == stat.start_ticks)
        {
            #[expect(
                clippy::let_underscore_must_use,
                reason = "what became another user's cannot be killed; it is waited for"
            )]
            let _ = kill(&handle);
        }
    }
    Ok(())
}

/// Handles on every process that carries the mark of a replica's folder.
pub(crate) fn marked(folder: &Path) -> io::Result<Vec<OwnedFd>> {
    let mark = [MARK.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let mut found = Vec::new();
    for pid in processes()? {
        let Some(handle) = open(pid)? else { continue };
        let environment = match fs::read(format!("/proc/{}/environ", pid.as_raw_pid())) {
            Ok(environment) => environment,
            // Processes of other users hide theirs, and those that have ended have none.
            Err(error) if error.kind() == ErrorKind::PermissionDenied || is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        if environment.split(|&byte| byte == 0).any(|variable| variable == mark) {
            found.push(handle);
        }
    }
    Ok(found)
}

/// Sends SIGKILL; a process that has ended is as dead as can be.
pub(crate) fn kill(process: &OwnedFd) -> io::Result<()> {
    signal(process, Signal::KILL)
}

/// Sends a signal; one that has ended does not mind.
pub(crate) fn signal(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    match pidfd_send_signal(process, signal) {
        Err(Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

/// A process by its number; others than positive ones mean something else, or nothing.
pub(crate) fn pid(number: i32) -> Option<Pid> {
    if number > 0 { Pid::from_raw(number) } else { None }
}

/// Whether what could not be read of a process is missing because it has ended.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

fn open(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        // The second is said of a thread that has the number now.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(None),
        other => Ok(Some(other?)),
    }
}

fn processes() -> io::Result<impl Iterator<Item = Pid>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| pid(entry.ok()?.file_name().to_str()?.parse().ok()?)))
}

/// What the system tells of a process.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// `None` for the first process.
    parent: Option<Pid>,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: Pid) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{}/stat", pid.as_raw_pid()))?;
        Self::parse(&text).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name of the program, in parentheses, may hold anything, parentheses included.
        let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let fields: Vec<_> = str::from_utf8(&text[after_name..]).ok()?.split_ascii_whitespace().collect();
        // The fields `ppid` (4) and `starttime` (22) of proc(5), where the name is field 2.
        Some(Self { parent: pid(fields.get(1)?.parse().ok()?), start_ticks: fields.get(19)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn the_name_of_a_program_may_be_anything() {
        let text = b"42 (a) R 7 (b\xff) S 17 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5551 8 9";
        assert_eq!(Stat::parse(text), Some(Stat { parent: Pid::from_raw(17), start_ticks: 5551 }));
        assert_eq!(Stat::parse(b"42 sh S 17"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    /// Set for the process that may open hardly any file.
    const FEW_FILES: &str = "POLLUX_TEST_FEW_FILES";

    #[test]
    fn a_process_that_cannot_be_looked_at_has_not_ended() {
        if env::var_os(FEW_FILES).is_none() {
            let name = "process::tests::a_process_that_cannot_be_looked_at_has_not_ended";
            let mut alone = Command::new(env::current_exe().unwrap());
            let alone = alone.args(["--exact", name, "--nocapture"]).env(FEW_FILES, "1").output().unwrap();
            return assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
        }
        let process = Process::current().unwrap();
        let next = fs::File::open("/").unwrap().as_raw_fd() as u64;
        let allow = |files| {
            let limit = Rlimit { current: Some(next + files), ..getrlimit(Resource::Nofile) };
            setrlimit(Resource::Nofile, limit).unwrap();
        };
        let is_refused = |error: io::Error| error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
        // There is a handle, and nothing to compare the process with.
        allow(1);
        assert!(is_refused(process.open().unwrap_err()));
        // There is a list of processes and a handle on the first of them, whose variables cannot be read.
        allow(2);
        assert!(is_refused(marked(Path::new("/")).unwrap_err()));
    }

    #[test]
    fn a_number_that_was_given_again_is_another_process() {
        let process = Process::current().unwrap();
        assert!(process.open().unwrap().is_some());
        let earlier = Process { start_ticks: process.start_ticks - 1, ..process.clone() };
        assert!(earlier.open().unwrap().is_none());
        let before_reboot = Process { boot: "another".to_owned(), ..process };
        assert!(before_reboot.open().unwrap().is_none());
    }
}
