//! The thread that owns what is known of this machine's replicas, and waits for what happens to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use pollux_backend::{Epoch, Exit, Observation, Observer, ReplicaId, ReplicaOrder};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tracing::{error, warn};

use crate::LocalSettings;
use crate::epoch_gate::EpochGate;
use crate::folder::{Claim, Ending, Folder, Record};
use crate::limits::raise_files_max;
use crate::nodes::Node;
use crate::process::{kill, marked, signal};

/// Before another look where the system refuses one, or nothing to wait with.
const PAUSE: Duration = Duration::from_secs(1);

/// What a backend is asked for.
pub(crate) enum Request {
    Adopt(Vec<ReplicaId>),
    Start(ReplicaOrder),
    Stop(ReplicaId, Duration),
    Forget(ReplicaId),
    KeepOnly(Vec<ReplicaId>),
}

/// A replica that has not ended.
struct Live {
    slots: Vec<u32>,
    stage: Stage,
}

enum Stage {
    /// Its shim watches over it.
    Shimmed {
        shim: OwnedFd,
        /// When the patience of the stops that were asked for is over.
        kill_at: Option<Instant>,
        /// The watch on its folder until its worker runs.
        starting: Option<i32>,
    },
    /// Its shim is gone without a word; what is left of its worker has been killed and is waited for.
    Lost { leftovers: Vec<OwnedFd> },
}

impl Stage {
    /// What can be read from when it is over.
    fn handles(&self) -> &[OwnedFd] {
        match self {
            Self::Shimmed { shim, .. } => std::slice::from_ref(shim),
            Self::Lost { leftovers } => leftovers,
        }
    }
}

/// Replicas without an end. Those with one are many, and nothing happens to them any more.
pub(crate) fn left_behind(replicas: &Path) -> io::Result<BTreeSet<ReplicaId>> {
    let mut left_behind = all(replicas)?;
    left_behind.retain(|replica| !Folder::of(replicas, *replica).has_ended());
    Ok(left_behind)
}

/// Replicas of which anything is kept.
fn all(replicas: &Path) -> io::Result<BTreeSet<ReplicaId>> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(replicas)? {
        // Whatever else is there is not ours.
        all.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()).map(ReplicaId));
    }
    Ok(all)
}

/// The owner of all replicas.
pub(crate) struct ProcessMonitor {
    replicas: PathBuf,
    settings: LocalSettings,
    nodes: Vec<Node>,
    /// Who may give orders.
    gate: EpochGate,
    observer: Observer,
    /// Tells of files that appear in folders of replicas that start.
    folders: OwnedFd,
    live: BTreeMap<ReplicaId, Live>,
}

impl ProcessMonitor {
    pub(crate) fn new(
        replicas: PathBuf,
        settings: LocalSettings,
        nodes: Vec<Node>,
        gate: EpochGate,
        observer: Observer,
    ) -> io::Result<Self> {
        let folders = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self { replicas, settings, nodes, gate, observer, folders, live: BTreeMap::new() })
    }

    /// Does what is asked for until nobody can ask any more.
    pub(crate) fn run(
        mut self,
        left_behind: &BTreeSet<ReplicaId>,
        requests: &Receiver<(Epoch, Request)>,
        wake: &OwnedFd,
    ) {
        self.nodes.iter().map(Node::observation).for_each(&self.observer);
        left_behind.iter().for_each(|&replica| self.find(replica));
        loop {
            match requests.try_recv() {
                Ok((epoch, request)) => {
                    let gate = self.gate.clone();
                    if let Err(by) = gate.pass(epoch, || self.carry_out(request)) {
                        (self.observer)(Observation::Superseded { by });
                    }
                }
                Err(TryRecvError::Empty) => self.wait(wake),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn carry_out(&mut self, request: Request) {
        match request {
            Request::Adopt(known) => self.adopt(&known),
            Request::Start(order) => self.start(order),
            Request::Stop(replica, grace) => self.stop(replica, grace),
            Request::Forget(replica) => self.forget(replica),
            Request::KeepOnly(kept) => {
                let kept = BTreeSet::from_iter(kept);
                let there = all(&self.replicas).unwrap_or_else(|error| {
                    warn!(folder = %self.replicas.display(), %error, "old replicas are not deleted");
                    BTreeSet::new()
                });
                there.difference(&kept).for_each(|&replica| self.forget(replica));
            }
        }
    }

    fn forget(&self, replica: ReplicaId) {
        if self.live.contains_key(&replica) {
            return;
        }
        match self.folder(replica).remove() {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                // It costs only its room.
                warn!(replica = replica.0, %error, "the folder of an ended replica is not deleted");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Waits for a request, a start or an end.
    fn wait(&mut self, wake: &OwnedFd) {
        let ends = self.live.iter().flat_map(|(id, live)| live.stage.handles().iter().map(|handle| (*id, handle)));
        let ends: Vec<_> = ends.collect();
        let handles = [wake, &self.folders].into_iter().chain(ends.iter().map(|(_, handle)| *handle));
        let mut polled: Vec<_> = handles.map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
        let unseen = self.live.iter().filter(|(_, live)| live.stage.handles().is_empty()).map(|(id, _)| *id);
        let unseen: Vec<_> = unseen.collect();
        let timeout = (!unseen.is_empty()).then_some(PAUSE).and_then(|pause| pause.try_into().ok());
        if let Err(error) = poll(&mut polled, timeout.as_ref())
            && error != Errno::INTR
        {
            error!(%error, "replicas cannot be watched for a moment");
            thread::sleep(PAUSE);
        }
        let is_ready = |polled: &PollFd<'_>| !polled.revents().is_empty();
        let ended = ends.iter().zip(&polled[2..]).filter(|(_, polled)| is_ready(polled)).map(|((id, _), _)| *id);
        let ended: BTreeSet<ReplicaId> = ended.chain(unseen).collect();
        drain(wake);
        drain(&self.folders);
        self.look_for_starts();
        for replica in ended {
            self.conclude(replica);
        }
    }

    /// Takes note of a replica that a daemon before this one left behind without an end.
    fn find(&mut self, replica: ReplicaId) {
        let folder = self.folder(replica);
        let slots = folder.order().map(|record| record.slots).unwrap_or_default();
        // From here on a shim that was started and has not said so will not carry the order out.
        let shim = match folder.claim(Claim::Void) {
            Ok(Claim::Shim(process)) => process.open().ok().flatten(),
            // Nothing of it has run, so that it may be ordered anew.
            Ok(Claim::Void) if folder.remove().is_ok() => return,
            Ok(Claim::Void) => None,
            Err(error) => {
                warn!(replica = replica.0, %error, "nobody knows who watches over a replica from before");
                None
            }
        };
        let Some(shim) = shim else {
            self.live.insert(replica, Live { slots, stage: Stage::Lost { leftovers: Vec::new() } });
            return self.conclude(replica);
        };
        let unseen = |error: &io::Error| warn!(replica = replica.0, %error, "its start may be noticed late");
        let starting = self.watch(&folder).inspect_err(unseen).ok();
        self.live.insert(replica, Live { slots, stage: Stage::Shimmed { shim, kill_at: None, starting } });
        self.look_for_starts();
    }

    fn adopt(&mut self, known: &[ReplicaId]) {
        for &replica in known {
            match self.live.get(&replica) {
                Some(Live { stage: Stage::Shimmed { starting: None, .. }, .. }) => {
                    (self.observer)(Observation::Started { replica });
                }
                // What becomes of it is observed.
                Some(_) => {}
                None => self.tell_ending(replica),
            }
        }
        let known: BTreeSet<_> = known.iter().collect();
        let unknown: Vec<_> = self.live.keys().filter(|replica| !known.contains(replica)).copied().collect();
        for replica in unknown {
            self.stop(replica, self.settings.grace);
        }
    }

    fn start(&mut self, order: ReplicaOrder) {
        let replica = order.replica;
        let folder = self.folder(replica);
        let failure = match folder.create() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // Whoever orders it again has not heard of its end.
                if !self.live.contains_key(&replica) {
                    self.tell_ending(replica);
                }
                return;
            }
            Err(error) => failure(format!("its folder cannot be made: {error}")),
            Ok(()) => match self.try_start(&folder, order) {
                Ok(live) => {
                    self.live.insert(replica, live);
                    return self.look_for_starts();
                }
                Err(failure) => {
                    // The next daemon finds an order that nobody has claimed.
                    folder.write_ending(&failure).unwrap_or_else(|error| unwritten(replica, &error));
                    failure
                }
            },
        };
        (self.observer)(failure.observation(replica));
    }

    fn try_start(&self, folder: &Folder, mut order: ReplicaOrder) -> Result<Live, Ending> {
        let slots = self.slots_for(&order)?;
        let node = self.nodes.iter().find(|node| node.name == order.node);
        order.environment.extend(node.map(|node| node.environment(&slots)).unwrap_or_default());
        if !order.checkpoint_dir.is_empty() {
            // Without it the worker cannot save, and says so.
            let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(&order.checkpoint_dir);
        }
        let record = Record::new(order, slots, &self.settings, raise_files_max());
        let stage = folder.write_order(&record).and_then(|()| self.spawn(folder, &record.order.secrets));
        let stage = stage.map_err(|error| failure(format!("its shim cannot be started: {error}")))?;
        Ok(Live { slots: record.slots, stage })
    }

    /// Free slots of its node, or those of its host.
    fn slots_for(&self, order: &ReplicaOrder) -> Result<Vec<u32>, Ending> {
        let Some(node) = self.nodes.iter().find(|node| node.name == order.node) else {
            return Err(failure(format!("{} is not a node of this machine", order.node)));
        };
        if let Some(host) = order.shares_with {
            let host_slots = self.live.get(&host).map(|live| live.slots.clone());
            return host_slots.ok_or_else(|| failure(format!("{host}, whose slot it was to share, is gone")));
        }
        let is_free = |slot: &&u32| !self.live.values().any(|live| live.slots.contains(slot));
        let wanted = order.gpus as usize;
        let free: Vec<u32> = node.slots.iter().filter(is_free).take(wanted).copied().collect();
        if free.len() < wanted {
            return Err(failure(format!("{} has {} free slots of {wanted}", node.name, free.len())));
        }
        Ok(free)
    }

    /// Secrets are handed down from process to process, beside the files.
    fn spawn(&self, folder: &Folder, secrets: &BTreeMap<String, String>) -> io::Result<Stage> {
        let mut command = Command::new(&self.settings.program);
        // It starts in its folder, so that it cannot take one that is made anew under that name for its own.
        command.arg("shim").arg(folder.path()).current_dir(folder.path()).envs(secrets);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(folder.open_log()?.0);
        let watch = self.watch(folder)?;
        let spawned = command.spawn().and_then(Self::handle_on);
        match spawned {
            Ok(shim) => Ok(Stage::Shimmed { shim, kill_at: None, starting: Some(watch) }),
            Err(error) => {
                unwatch(&self.folders, Some(watch));
                Err(error)
            }
        }
    }

    fn handle_on(mut child: Child) -> io::Result<OwnedFd> {
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(handle) => Ok(handle),
            Err(error) => {
                // A shim that cannot be watched must not run; its worker, if it got that far, dies with it.
                child.kill()?;
                child.wait()?;
                Err(error.into())
            }
        }
    }

    fn stop(&mut self, replica: ReplicaId, grace: Duration) {
        let folder = self.folder(replica);
        match self.live.get_mut(&replica) {
            Some(Live { stage: Stage::Shimmed { shim, kill_at, .. }, .. }) => {
                // The shim may hear of several stops at once, and then reads only the last.
                let now = Instant::now();
                let over = now.checked_add(grace).into_iter().chain(*kill_at).min();
                *kill_at = over;
                let grace = over.map_or(grace, |over| over.saturating_duration_since(now));
                // A shim that has not claimed its order does not listen to signals yet, and looks for the file after
                // it has. Without the file it must be told now, whether that ends it or not.
                let written = folder.write_stop(grace);
                if let Err(error) = &written {
                    warn!(replica = replica.0, %error, "it is stopped without its grace period");
                }
                if folder.is_claimed() || written.is_err() {
                    // It is a process of ours, and one that has ended has nothing to be told.
                    let _ = signal(shim, Signal::TERM);
                }
            }
            Some(Live { stage: Stage::Lost { .. }, .. }) => {}
            None => self.tell_ending(replica),
        }
    }

    fn look_for_starts(&mut self) {
        for (&replica, live) in &mut self.live {
            if let Stage::Shimmed { starting: starting @ Some(_), .. } = &mut live.stage
                && Folder::of(&self.replicas, replica).worker_has_started()
            {
                unwatch(&self.folders, starting.take());
                (self.observer)(Observation::Started { replica });
            }
        }
    }

    /// Tells how a replica ended whose shim, or the last of whose leftovers, is gone; unless there are others.
    fn conclude(&mut self, replica: ReplicaId) {
        let folder = self.folder(replica);
        let Some(live) = self.live.get_mut(&replica) else { return };
        if let Stage::Shimmed { shim, starting, .. } = &live.stage {
            unwatch(&self.folders, *starting);
            // One that a daemon before this one started is not our child.
            let _ = waitid(WaitId::PidFd(shim.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        if !folder.has_ended() {
            let leftovers = marked(folder.path());
            if !leftovers.as_ref().is_ok_and(Vec::is_empty) {
                // What cannot be looked at is not known to be gone: the slots stay taken until another look.
                let leftovers = leftovers.unwrap_or_default();
                for leftover in &leftovers {
                    if let Err(error) = kill(leftover) {
                        // What became another user's cannot be killed; it is waited for.
                        warn!(replica = replica.0, %error, "something that it left behind cannot be killed");
                    }
                }
                live.stage = Stage::Lost { leftovers };
                return;
            }
            // The next daemon finds out again.
            folder.write_ending(&Ending::Exited(Exit::Lost)).unwrap_or_else(|error| unwritten(replica, &error));
        }
        self.live.remove(&replica);
        self.tell_ending(replica);
    }

    fn tell_ending(&self, replica: ReplicaId) {
        let ending = self.folder(replica).ending().unwrap_or(Ending::Exited(Exit::Lost));
        (self.observer)(ending.observation(replica));
    }

    fn watch(&self, folder: &Folder) -> io::Result<i32> {
        Ok(inotify::add_watch(&self.folders, folder.path(), inotify::WatchFlags::MOVED_TO)?)
    }

    fn folder(&self, replica: ReplicaId) -> Folder {
        Folder::of(&self.replicas, replica)
    }
}

/// Something that may be different the next time.
fn failure(reason: String) -> Ending {
    Ending::StartFailed { reason, retryable: true }
}

fn unwritten(replica: ReplicaId, error: &io::Error) {
    warn!(replica = replica.0, %error, "its end cannot be written down");
}

fn unwatch(folders: &OwnedFd, watch: Option<i32>) {
    if let Some(watch) = watch {
        // It is gone already if its folder is.
        let _ = inotify::remove_watch(folders, watch);
    }
}

fn drain(handle: &OwnedFd) {
    let mut buffer = [0_u8; 4096];
    while read(handle, &mut buffer).is_ok_and(|bytes| bytes > 0) {}
}
