//! A child for each replica of a pod.

use std::io::{self, Read, Stdout};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, thread};

use pollux_backend::{Exit, ReplicaId};
use pollux_backend_local::{Foreground, Stopper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::bundle::alike;
use crate::bundle_log::BundleLog;
use crate::supervise::{GRACE, LOOK, asked_to_stop, given_bundle, order, send_stop, system};
use crate::{Bundle, Ending, Place, Report, Supervision, SupervisorError, gpus, oom};

/// How a replica ends that is told to before its program runs, and by the kernel for want of memory.
const TERM: i32 = 15;
const KILL: i32 = 9;
/// Room for the reasons of all, of what a kubelet keeps of a report.
const REASONS_CHARS: usize = 1500;

fn folder(replica: ReplicaId) -> PathBuf {
    Path::new(Supervision::FOLDER).join("replicas").join(replica.0.to_string())
}

/// Whether the programs of all run, or did.
pub(crate) fn are_started(bundle: &Bundle) -> bool {
    let folders = bundle.replicas.iter().map(|place| folder(place.replica));
    folders.into_iter().all(|folder| Foreground::has_started(&folder) || Foreground::has_ended(&folder))
}

/// Whether no replica of this pod has ended.
pub fn is_whole() -> bool {
    let bundle = given_bundle().ok().flatten();
    bundle.is_none_or(|bundle| !bundle.replicas.iter().any(|place| Foreground::has_ended(&folder(place.replica))))
}

/// Runs the replica that was written into a folder, as a child of the pod's main process.
pub fn run_replica(folder: &Path) -> Result<u8, SupervisorError> {
    let replica = Foreground::open(folder).map_err(system("get ready"))?;
    replica.run_as_child(Box::new(io::stdout())).map_err(system("watch over its program"))?;
    Ok(0)
}

/// What the threads of a supervisor share.
struct Shared {
    log: Mutex<BundleLog<Stdout>>,
    /// Processes whose end by the kernel is told already.
    oom_kills_told: AtomicU64,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, BundleLog<Stdout>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a program for each replica, until all have ended.
pub(crate) fn supervise(bundle: &Bundle, command: &[String]) -> Result<Report, SupervisorError> {
    let is_told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        flag::register(signal, Arc::clone(&is_told)).map_err(system("listen for signals"))?;
    }
    let ids = bundle.replicas.iter().map(|place| place.replica);
    let shared =
        Shared { log: Mutex::new(BundleLog::new(io::stdout(), ids)), oom_kills_told: AtomicU64::new(oom::kills()) };
    let of = |name: &str| env::var(name).ok();
    let seen =
        gpus::visible(&bundle.replicas, of("CUDA_VISIBLE_DEVICES").as_deref(), of("NVIDIA_VISIBLE_DEVICES").as_deref());
    let mut children = Vec::new();
    for (place, seen) in bundle.replicas.iter().zip(seen) {
        // Dropped on the way out, the others end with this process.
        children.push((place.replica, spawn(place, seen, command)?));
    }
    let mut stoppers = Vec::new();
    for (replica, child) in &children {
        let stopper = Stopper::of_child(&folder(*replica), child).map_err(system("watch over its program"))?;
        stoppers.push((*replica, stopper, None));
    }
    // Children end with the thread that made them: this one.
    thread::spawn(move || listen(&mut stoppers, &is_told));
    thread::scope(|scope| {
        for (replica, child) in &mut children {
            let shared = &shared;
            scope.spawn(move || follow(*replica, child, shared));
        }
    });
    let log = shared.log();
    let reason_chars = REASONS_CHARS / bundle.replicas.len();
    let lost = Ending::Exited(Exit::Lost);
    let ends: Vec<(ReplicaId, Ending, u64)> =
        log.ends().map(|(id, ending, written)| (id, cut(ending.unwrap_or(&lost), reason_chars), written)).collect();
    let is_bad = |ending: &&Ending| **ending != Ending::Exited(Exit::Code(0));
    let ending = ends.iter().map(|(_, ending, _)| ending).find(is_bad).cloned();
    let ending = ending.unwrap_or(Ending::Exited(Exit::Code(0)));
    Ok(Report { ending, written: None, replicas: alike(ends.into_iter()) })
}

fn spawn(place: &Place, seen: Option<String>, command: &[String]) -> Result<Child, SupervisorError> {
    let mut environment = place.environment.clone();
    environment.extend(seen.map(|seen| ("CUDA_VISIBLE_DEVICES".to_owned(), seen)));
    let (folder, stop) = (folder(place.replica), asked_to_stop(Some(place.replica)));
    let order = order(command.to_vec(), environment)?;
    Foreground::write(&folder, order, GRACE, stop).map_err(system("get ready"))?;
    let mut child = Command::new("/proc/self/exe");
    child.args(["supervise", "--replica"]).arg(&folder).env_remove(Bundle::VARIABLE);
    child.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(system("start a process"))
}

/// Tells the replicas of every stop that is asked for, by the scheduler for some or by the kubelet for all.
fn listen(stoppers: &mut [(ReplicaId, Stopper, Option<Duration>)], is_told: &AtomicBool) {
    loop {
        let all = is_told.swap(false, Ordering::Relaxed);
        for (replica, stopper, told) in &mut *stoppers {
            send_stop(stopper, asked_to_stop(Some(*replica)), told);
            if all && let Err(error) = stopper.terminate() {
                eprintln!("pollux: replica {} cannot be told to end: {error}", replica.0);
            }
        }
        thread::sleep(LOOK);
    }
}

/// Hands on what a replica writes, and says how it ended.
fn follow(replica: ReplicaId, child: &mut Child, shared: &Shared) {
    let mut lost_bytes = 0;
    if let Some(pipe) = child.stdout.take() {
        lost_bytes = hand_on(replica, pipe, shared);
    }
    let signal = child.wait().ok().and_then(|status| status.signal());
    let ending = match Foreground::conclude(&folder(replica), replica) {
        // It was told before it could listen.
        Ok(_) if signal == Some(TERM) => Ending::Exited(Exit::Signal(TERM)),
        Ok(observation) => Ending::of(observation),
        Err(error) => {
            eprintln!("pollux: how replica {} ended cannot be read: {error}", replica.0);
            Ending::Exited(Exit::Lost)
        }
    };
    let ending = told_from_oom(ending, signal, shared);
    if shared.log().end(replica, ending).is_err() || lost_bytes > 0 {
        eprintln!("pollux: {lost_bytes} bytes of replica {} and more could not be written here", replica.0);
    }
}

/// The bytes that could not be written.
fn hand_on(replica: ReplicaId, mut pipe: ChildStdout, shared: &Shared) -> u64 {
    let (mut buffer, mut lost_bytes) = (vec![0; 64 * 1024], 0);
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return lost_bytes,
            Ok(bytes) => {
                if shared.log().write(replica, &buffer[..bytes]).is_err() {
                    lost_bytes += bytes as u64;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return lost_bytes,
        }
    }
}

/// A replica that was killed while the kernel has killed one more for want of memory is that one.
fn told_from_oom(ending: Ending, child_signal: Option<i32>, shared: &Shared) -> Ending {
    let is_killed = child_signal == Some(KILL) || ending == Ending::Exited(Exit::Signal(KILL));
    let told = |told: u64| (oom::kills() > told).then_some(told + 1);
    if is_killed && shared.oom_kills_told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, told).is_ok() {
        return Ending::Exited(Exit::OutOfMemory);
    }
    ending
}

fn cut(ending: &Ending, chars: usize) -> Ending {
    match ending {
        Ending::StartFailed { reason, retryable } => {
            Ending::StartFailed { reason: reason.chars().take(chars).collect(), retryable: *retryable }
        }
        Ending::Exited(_) => ending.clone(),
    }
}
