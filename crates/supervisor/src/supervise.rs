use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use pollux_backend::{Epoch, Exit, ReplicaId, ReplicaOrder};
use pollux_backend_local::{Foreground, Stopper};
use pollux_policy::JobId;
use rustix::io::ioctl_fionread;
use thiserror::Error;

use crate::stops::{grace_in, stop_in};
use crate::{Bundle, Ending, MARK_EVERY, Report, Supervision, mark, supervise_bundle};

/// How often a supervisor looks whether it is to end. The kubelet puts a new file into the place of the old one.
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// Grace of a stop by the kubelet, which kills after its own.
pub(crate) const GRACE: Duration = Duration::from_secs(3600);
/// How long a log may take to be read by those who keep it, and to be passed on between them.
const READ_MAX: Duration = Duration::from_secs(10);
const PASSED_ON: Duration = Duration::from_millis(300);
/// The exit code of a pod whose program could not be run, as of a shell.
const NOT_RUN: u8 = 127;

/// Why a supervisor cannot do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// The system refused something.
    #[error("the supervisor cannot {what}: {error}")]
    System {
        /// What it wanted.
        what: String,
        /// Why not.
        error: io::Error,
    },
    /// What it is to run makes no sense.
    #[error("POLLUX_REPLICAS: {0}")]
    Bundle(String),
    /// There is nothing to run.
    #[error("nothing to supervise; expected `supervise -- PROGRAM ARGUMENTS`")]
    NoProgram,
}

pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> SupervisorError {
    let what = what.into();
    |error| SupervisorError::System { what, error }
}

/// Puts this very program where every container of its pod finds it.
pub fn install(path: &Path) -> Result<(), SupervisorError> {
    let copy = || {
        let aside = path.with_extension("new");
        fs::copy("/proc/self/exe", &aside)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
        fs::rename(&aside, path)
    };
    copy().map_err(system(format!("be put at {}", path.display())))
}

/// Whether the program that a supervisor watches over runs, or did; all of them, if they are several.
pub fn is_started() -> bool {
    match given_bundle() {
        Ok(Some(bundle)) => supervise_bundle::are_started(&bundle),
        Ok(None) => Foreground::has_started(&folder()),
        Err(_) => false,
    }
}

/// The replicas of this pod, if they are several.
pub(crate) fn given_bundle() -> Result<Option<Bundle>, SupervisorError> {
    let Some(text) = env::var_os(Bundle::VARIABLE) else { return Ok(None) };
    Bundle::from_text(&text.to_string_lossy()).map(Some).map_err(SupervisorError::Bundle)
}

fn folder() -> PathBuf {
    // Nobody else has it, whatever a template mounts over the folder for temporary files.
    Path::new(Supervision::FOLDER).join("replica")
}

/// Runs a program to its end, or one for each replica of the pod; the exit code for the container.
pub fn supervise(command: &[impl AsRef<OsStr>]) -> Result<u8, SupervisorError> {
    let command: Vec<String> = command.iter().map(|part| part.as_ref().to_string_lossy().into_owned()).collect();
    if command.is_empty() {
        return Err(SupervisorError::NoProgram);
    }
    if let Some(checkpoints) = env::var_os("POLLUX_CHECKPOINT_DIR") {
        fs::create_dir_all(&checkpoints).map_err(system(format!("make {}", checkpoints.display())))?;
    }
    let report = match given_bundle()? {
        Some(bundle) => supervise_bundle::supervise(&bundle, &command)?,
        None => supervise_one(command)?,
    };
    wait_until_read();
    let text = serde_json::to_string(&report).expect("our own records have text for keys");
    fs::write(Supervision::TERMINATION_MESSAGE, text).map_err(system("say how it ended"))?;
    Ok(match report.ending {
        Ending::Exited(exit) => code_of(exit),
        Ending::StartFailed { .. } => NOT_RUN,
    })
}

/// What a replica is to run, by this process or a child.
pub(crate) fn order(
    command: Vec<String>,
    environment: BTreeMap<String, String>,
) -> Result<ReplicaOrder, SupervisorError> {
    Ok(ReplicaOrder {
        epoch: Epoch::default(),
        replica: ReplicaId::default(),
        job: JobId(0),
        node: String::new(),
        gpus: 0,
        cpus: None,
        memory: None,
        shares_with: None,
        bundle: Vec::new(),
        command,
        working_dir: env::current_dir().map_err(system("find its folder"))?,
        checkpoint_dir: String::new(),
        restores: true,
        environment,
        secrets: BTreeMap::new(),
    })
}

fn supervise_one(command: Vec<String>) -> Result<Report, SupervisorError> {
    let order = order(command, BTreeMap::new())?;
    let replica = Foreground::prepare(&folder(), order, GRACE).map_err(system("get ready"))?;
    let stopper = replica.stopper().map_err(system("get ready"))?;
    if let Some(grace) = asked_to_stop(None) {
        stopper.stop(grace).map_err(system("end"))?;
    }
    thread::spawn(move || listen(&stopper));
    let (log, written) = MarkedLog::new(io::stdout());
    let observation = replica.run(Box::new(log)).map_err(system("watch over its program"))?;
    let written = Some(written.load(Relaxed));
    Ok(Report { ending: Ending::of(observation), written, replicas: Vec::new() })
}

/// A runtime may drop what it has not read of a container's log when the main process ends.
fn wait_until_read() {
    let end = Instant::now() + READ_MAX;
    while ioctl_fionread(io::stdout()).is_ok_and(|unread| unread > 0) && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    // It was read by somebody who passes it on.
    thread::sleep(PASSED_ON);
}

fn code_of(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code).unwrap_or(1),
        Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
        Exit::OutOfMemory => 137,
        Exit::Evicted | Exit::Lost => 1,
    }
}

/// Tells the replica of every stop that is asked for.
fn listen(stopper: &Stopper) {
    let mut told = None;
    loop {
        send_stop(stopper, asked_to_stop(None), &mut told);
        thread::sleep(LOOK);
    }
}

/// Tells a replica of a stop, if it is another than it was told of.
pub(crate) fn send_stop(stopper: &Stopper, asked: Option<Duration>, told: &mut Option<Duration>) {
    if let Some(grace) = asked.filter(|_| asked != *told) {
        match stopper.stop(grace) {
            Ok(()) => *told = asked,
            Err(error) => eprintln!("pollux: the program cannot be told to end: {error}; it is tried again"),
        }
    }
}

/// The grace of the stop that is asked for, if one is.
pub(crate) fn asked_to_stop(replica: Option<ReplicaId>) -> Option<Duration> {
    let file = Path::new(Supervision::POD_INFO).join(Supervision::ANNOTATIONS);
    grace_in(stop_in(&fs::read_to_string(file).ok()?)?, replica)
}

/// A log that says now and then how far it is.
struct MarkedLog<W> {
    log: W,
    written: Arc<AtomicU64>,
    /// The last position that was said.
    marked: Option<u64>,
    is_at_line_start: bool,
}

impl<W: Write> MarkedLog<W> {
    fn new(log: W) -> (Self, Arc<AtomicU64>) {
        let written = Arc::default();
        (Self { log, written: Arc::clone(&written), marked: None, is_at_line_start: true }, written)
    }
}

impl<W: Write> Write for MarkedLog<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let position = self.written.load(Relaxed);
        if self.is_at_line_start && self.marked.is_none_or(|marked| position - marked >= MARK_EVERY) {
            self.log.write_all(mark(position).as_bytes())?;
            self.marked = Some(position);
        }
        // Up to the end of a line, where a mark may stand.
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        let count = self.log.write(&bytes[..line])?;
        self.written.store(position + count as u64, Relaxed);
        self.is_at_line_start = bytes[..count].ends_with(b"\n");
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.log.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_says_how_far_it_is() {
        let (mut log, written) = MarkedLog::new(Vec::new());
        let line = format!("{}\n", "x".repeat(1023));
        for _ in 0..130 {
            log.write_all(line.as_bytes()).expect("memory");
        }
        assert_eq!(written.load(Relaxed), 130 * 1024);
        let lines = log.log.split_inclusive(|byte| *byte == b'\n');
        let marks: Vec<u64> = lines.filter_map(crate::position_of).collect();
        assert_eq!(marks, [0, MARK_EVERY, 2 * MARK_EVERY]);
    }
}
