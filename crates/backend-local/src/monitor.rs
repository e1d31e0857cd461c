//! The thread that owns what is known of this machine's replicas, and waits for what happens to them.

mod found;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use pollux_backend::{Epoch, Exit, Observation, Observer, ReplicaId, ReplicaOrder};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tracing::{error, info, warn};

use crate::LocalSettings;
use crate::epoch_gate::{EpochGate, Refusal};
use crate::folder::{Ending, Folder, Record};
use crate::inherited;
use crate::limits::raise_files_max;
use crate::live::{Hold, Live, Stage, slots_for};
use crate::nodes::Node;
use crate::process::{kill, marked, signal};
pub(crate) use found::{all, left_behind};

/// Before another look where the system refuses one, or nothing to wait with.
const PAUSE: Duration = Duration::from_secs(1);

/// What a backend is asked for, and by whom.
pub(crate) struct Asked {
    pub(crate) epoch: Epoch,
    pub(crate) request: Request,
}

/// What a backend is asked for.
pub(crate) enum Request {
    Adopt(Vec<ReplicaId>),
    Start(Box<ReplicaOrder>),
    Stop(ReplicaId, Duration),
    Forget(ReplicaId),
    KeepOnly(Vec<ReplicaId>),
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
    /// What was asked for and not done yet, in its order.
    waiting: VecDeque<Asked>,
    /// Starts that were told to be pending, because nobody may give orders at the moment; `None` while somebody may.
    held_back: Option<BTreeSet<ReplicaId>>,
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
        Ok(Self {
            replicas,
            settings,
            nodes,
            gate,
            observer,
            folders,
            live: BTreeMap::new(),
            waiting: VecDeque::new(),
            held_back: None,
        })
    }

    /// Does what is asked for until nobody can ask any more.
    pub(crate) fn run(mut self, left_behind: &BTreeSet<ReplicaId>, requests: &Receiver<Asked>, wake: &OwnedFd) {
        left_behind.iter().for_each(|&replica| self.find(replica));
        loop {
            match requests.try_recv() {
                Ok(asked) => self.waiting.push_back(asked),
                Err(TryRecvError::Empty) => {
                    self.work_off();
                    self.wait(wake);
                }
                Err(TryRecvError::Disconnected) => {
                    self.work_off();
                    if !self.waiting.is_empty() {
                        warn!(orders = self.waiting.len(), "orders are dropped that could not be carried out");
                    }
                    return;
                }
            }
        }
    }

    /// Carries out what was asked for. As long as nobody knows whether another scheduler has taken over, all of it waits.
    fn work_off(&mut self) {
        let gate = self.gate.clone();
        while let Some(asked) = self.waiting.pop_front() {
            match gate.admit(asked.epoch) {
                Ok(_admission) => {
                    if self.held_back.take().is_some() {
                        info!("orders are carried out again");
                    }
                    self.carry_out(asked.request);
                }
                Err(Refusal::Superseded(by)) => (self.observer)(Observation::Superseded { by }),
                Err(Refusal::Unchecked(error)) => {
                    self.waiting.push_front(asked);
                    return self.hold_back(&Refusal::Unchecked(error));
                }
            }
        }
    }

    /// Says once that nothing is done, and of every start that it waits.
    fn hold_back(&mut self, refusal: &Refusal) {
        if self.held_back.is_none() {
            error!(error = %refusal, "no order is carried out for now");
        }
        let told = self.held_back.get_or_insert_default();
        for asked in &self.waiting {
            if let Request::Start(order) = &asked.request
                && let replica = order.replica
                && !self.live.contains_key(&replica)
                && told.insert(replica)
            {
                (self.observer)(Observation::Pending { replica, reason: refusal.to_string() });
            }
        }
    }

    fn carry_out(&mut self, request: Request) {
        match request {
            Request::Adopt(known) => self.adopt(&known),
            Request::Start(order) => self.start(*order),
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
        let looks_again = !unseen.is_empty() || !self.waiting.is_empty();
        let timeout = looks_again.then_some(PAUSE).and_then(|pause| pause.try_into().ok());
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
            match self.live.get(&replica).map(|live| &live.stage) {
                Some(Stage::Unseen { .. }) => self.look_for_shim(replica, true),
                Some(Stage::Shimmed { .. } | Stage::Lost { .. }) | None => self.conclude(replica),
            }
        }
    }

    fn adopt(&mut self, known: &[ReplicaId]) {
        self.nodes.iter().map(Node::observation).for_each(&self.observer);
        for &replica in known {
            match self.live.get(&replica) {
                Some(Live { stage: Stage::Shimmed { starting: None, .. }, .. }) => {
                    (self.observer)(Observation::Started { replica });
                }
                // What becomes of it is observed.
                Some(_) => {}
                None => self.observe_end(replica),
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
                    self.observe_end(replica);
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

    fn try_start(&mut self, folder: &Folder, mut order: ReplicaOrder) -> Result<Live, Ending> {
        self.read_holds_again();
        let Some(node) = self.nodes.iter().find(|node| node.name == order.node) else {
            return Err(failure(format!("{} is not a node of this machine", order.node)));
        };
        let slots = slots_for(&self.live, node, &order).map_err(failure)?;
        order.environment.extend(node.environment(&slots));
        if !order.checkpoint_dir.is_empty() {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&order.checkpoint_dir);
            made.map_err(|error| failure(format!("{}: cannot be made: {error}", order.checkpoint_dir)))?;
        }
        let record = Record::new(order, slots, &self.settings, raise_files_max());
        let stage = folder.write_order(&record).and_then(|()| self.spawn(folder, &record.order.secrets));
        let stage = stage.map_err(|error| failure(format!("its shim cannot be started: {error}")))?;
        Ok(Live { hold: Hold::new(&record), stage })
    }

    /// What could not be read of a replica may be readable now.
    fn read_holds_again(&mut self) {
        for (&replica, live) in self.live.iter_mut().filter(|(_, live)| live.hold == Hold::Unknown) {
            live.hold = Hold::read(&Folder::of(&self.replicas, replica));
        }
    }

    /// Secrets are handed down from process to process, beside the files.
    fn spawn(&self, folder: &Folder, secrets: &BTreeMap<String, String>) -> io::Result<Stage> {
        let mut command = Command::new(&self.settings.program);
        // It starts in its folder, so that it cannot take one that is made anew under that name for its own.
        command.arg("shim").arg(folder.path()).current_dir(folder.path());
        command.env_clear().envs(inherited::variables()).envs(secrets);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(folder.open_log()?.0);
        let watch = watch(&self.folders, folder)?;
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
                    signal(shim, Signal::TERM).unwrap_or_else(|error| {
                        warn!(replica = replica.0, %error, "it cannot be told to stop");
                    });
                }
            }
            Some(Live { stage: Stage::Unseen { kill_at }, .. }) => {
                *kill_at = Instant::now().checked_add(grace).into_iter().chain(*kill_at).min();
            }
            Some(Live { stage: Stage::Lost { .. }, .. }) => {}
            None => self.observe_end(replica),
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
            #[expect(
                clippy::let_underscore_must_use,
                reason = "one that a daemon before this one started is not our child"
            )]
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
        self.observe_end(replica);
    }

    fn observe_end(&mut self, replica: ReplicaId) {
        match self.folder(replica).ending() {
            Ok(ending) => (self.observer)(ending.observation(replica)),
            Err(error) => {
                warn!(replica = replica.0, %error, "how it ended cannot be read at the moment");
                let stage = Stage::Lost { leftovers: Vec::new() };
                self.live.insert(replica, Live { hold: Hold::Nothing, stage });
            }
        }
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

fn watch(folders: &OwnedFd, folder: &Folder) -> io::Result<i32> {
    Ok(inotify::add_watch(folders, folder.path(), inotify::WatchFlags::MOVED_TO)?)
}

fn unwatch(folders: &OwnedFd, watch: Option<i32>) {
    if let Some(watch) = watch {
        #[expect(clippy::let_underscore_must_use, reason = "it is gone already if its folder is")]
        let _ = inotify::remove_watch(folders, watch);
    }
}

fn drain(handle: &OwnedFd) {
    let mut buffer = [0_u8; 4096];
    while read(handle, &mut buffer).is_ok_and(|bytes| bytes > 0) {}
}
