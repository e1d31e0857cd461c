//! Which replica is where, and what each machine has to be told.

mod handover;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use pollux_backend::{
    Backend, Epoch, Exit, LogAnswer, LogReader, LogStart, NodeEnd, NodeInfo, Observation, Observer, ReplicaId,
    ReplicaOrder,
};
use pollux_backend_local::LocalBackend;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{info, warn};

use self::handover::Handover;
use crate::members::Members;
use crate::nodes::now_ms;
use crate::protocol::{Ending, FromNode, Hello, Leave, SharedFolder, ToNode};
use crate::saved::line::LineEnd;

/// What replicas of a machine may take to end that left or was removed while it was away.
const LAST_GRACE: Duration = Duration::from_secs(30);

/// The routes, for everybody who speaks to machines; `None` while there is no backend.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Option<Routes>>>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The routes, for whoever does not keep them.
#[derive(Clone)]
pub(crate) struct WeakShared(Weak<Mutex<Option<Routes>>>);

impl WeakShared {
    fn upgrade(&self) -> Option<Shared> {
        self.0.upgrade().map(Shared)
    }
}

impl Shared {
    pub(crate) fn downgrade(&self) -> WeakShared {
        WeakShared(Arc::downgrade(&self.0))
    }

    pub(crate) fn open(&self, routes: Routes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(routes);
    }

    /// What is due to readers of logs is called when nobody holds the routes any more.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Routes) -> T) -> Option<T> {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let acted = routes.as_mut().map(|routes| (act(routes), std::mem::take(&mut routes.answers)));
        drop(routes);
        let (outcome, answers) = acted?;
        answers.into_iter().for_each(|answer| answer());
        Some(outcome)
    }
}

/// Where a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// On the scheduler's own machine.
    Here,
    /// On a machine that has joined.
    At(String),
}

/// A machine that is connected.
struct Link {
    id: u64,
    to: UnboundedSender<ToNode>,
    nodes: Vec<String>,
    address: String,
    /// Its nodes as they were seen last, and when they end.
    seen: BTreeMap<String, NodeInfo>,
    end: Option<NodeEnd>,
    reads: BTreeMap<u64, LogAnswer>,
    next_read: u64,
    saved: LineEnd,
}

struct Stop {
    epoch: Epoch,
    until: Instant,
}

struct Read {
    replica: ReplicaId,
    from: LogStart,
    bytes_max: usize,
    answer: LogAnswer,
}

/// The owner of all that is known of machines.
pub(crate) struct Routes {
    pub(crate) members: Members,
    pub(crate) folder: SharedFolder,
    /// `None` once the scheduler has ended.
    pub(crate) observer: Option<Observer>,
    pub(crate) own: Option<LocalBackend>,
    own_nodes: BTreeSet<String>,
    /// Under which others reach replicas of its own nodes, if there are any.
    own_address: Option<String>,
    own_logs: Arc<dyn LogReader>,
    links: BTreeMap<String, Link>,
    /// When machines were heard last.
    heard: BTreeMap<String, SystemTime>,
    next_link: u64,
    /// The highest that has given an order since the start. The machines themselves keep it for longer.
    epoch: Epoch,
    has_adopted: bool,
    /// Machines may still come back from before the start.
    pub(crate) is_early: bool,
    /// Replicas that have not been seen to end.
    known: BTreeSet<ReplicaId>,
    /// Replicas of which something is to be kept, once somebody has said so.
    kept: Option<BTreeSet<ReplicaId>>,
    placed: BTreeMap<ReplicaId, Place>,
    /// Orders of which nothing was heard yet: they are given again to a machine that comes back without.
    held: BTreeMap<ReplicaId, ReplicaOrder>,
    stops: BTreeMap<ReplicaId, Stop>,
    early_reads: Vec<Read>,
    answers: Vec<Box<dyn FnOnce() + Send>>,
    handover: Handover,
    shared: WeakShared,
}

impl Routes {
    pub(crate) fn new(
        members: Members,
        state_dir: &Path,
        folder: SharedFolder,
        own: LocalBackend,
        observer: Observer,
        shared: WeakShared,
    ) -> io::Result<Self> {
        let handover = Handover::open(state_dir, own.checkpoint_dir())?;
        let placed = own.replicas()?.into_iter().map(|replica| (replica, Place::Here)).collect();
        Ok(Self {
            members,
            folder,
            observer: Some(observer),
            own_nodes: own.nodes().iter().map(|node| node.name.clone()).collect(),
            own_address: own.nodes().first().map(|node| node.address.clone()),
            own_logs: own.logs(),
            own: Some(own),
            links: BTreeMap::new(),
            heard: BTreeMap::new(),
            next_link: 0,
            epoch: Epoch::default(),
            has_adopted: false,
            is_early: true,
            known: BTreeSet::new(),
            kept: None,
            placed,
            held: BTreeMap::new(),
            stops: BTreeMap::new(),
            early_reads: Vec::new(),
            answers: Vec::new(),
            handover,
            shared,
        })
    }

    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn has_own_node(&self, name: &str) -> bool {
        self.own_nodes.contains(name)
    }

    /// Whether replicas of the scheduler's own nodes are reached there.
    pub(crate) fn has_own_address(&self, address: &str) -> bool {
        self.own_address.as_deref() == Some(address)
    }

    pub(crate) fn is_connected(&self, machine: &str) -> bool {
        self.links.contains_key(machine)
    }

    /// When a machine was heard last, if it was since the start.
    pub(crate) fn heard(&self, machine: &str) -> Option<SystemTime> {
        self.heard.get(machine).copied()
    }

    fn observe(&self, seen: Observation) {
        if let Some(observer) = &self.observer {
            observer(seen);
        }
    }

    fn admit(&mut self, epoch: Epoch) -> bool {
        if epoch < self.epoch {
            self.observe(Observation::Superseded { by: self.epoch });
            return false;
        }
        self.epoch = epoch;
        true
    }

    fn send(&self, machine: &str, message: ToNode) {
        if let Some(link) = self.links.get(machine) {
            #[expect(
                clippy::let_underscore_must_use,
                reason = "a connection that has just ended is caught up with later"
            )]
            let _ = link.to.send(message);
        }
    }

    fn is_at(&self, replica: ReplicaId, machine: &str) -> bool {
        matches!(self.placed.get(&replica), Some(Place::At(at)) if at == machine)
    }

    /// Whether every machine has said what it has.
    fn is_complete(&self) -> bool {
        self.members.machines().iter().all(|machine| self.links.contains_key(&machine.name))
    }

    pub(crate) fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]) {
        if !self.admit(epoch) {
            return;
        }
        self.has_adopted = true;
        self.known = known.iter().copied().chain(self.held.keys().copied()).collect();
        let here: Vec<ReplicaId> =
            self.known.iter().filter(|it| self.placed.get(it) == Some(&Place::Here)).copied().collect();
        if let Some(own) = &mut self.own {
            own.adopt(epoch, &here);
        }
        for removed in self.members.removed().iter().flat_map(|removed| &removed.nodes) {
            if self.members.machine_of(removed).is_none() && !self.own_nodes.contains(removed) {
                self.observe(Observation::NodeGone { node: removed.clone() });
            }
        }
        let connected: Vec<String> = self.links.keys().cloned().collect();
        connected.iter().for_each(|machine| self.catch_up(machine));
        if !self.is_early {
            self.report_unreachable();
        }
        self.settle();
    }

    fn report_unreachable(&self) {
        let away = self.members.machines().iter().filter(|machine| !self.links.contains_key(&machine.name));
        for node in away.flat_map(|machine| &machine.nodes) {
            self.observe(Observation::NodeUnreachable { node: node.clone() });
        }
    }

    /// Machines from before the start are waited for no longer.
    pub(crate) fn stop_waiting(&mut self) {
        self.is_early = false;
        if self.has_adopted {
            self.report_unreachable();
        }
        self.read_again();
    }

    /// Tells a machine that is connected all that it may have missed.
    fn catch_up(&self, machine: &str) {
        if self.members.machine(machine).is_some_and(|it| it.is_leaving) {
            if self.has_adopted {
                self.send(machine, ToNode::Leave(self.last_leave()));
            }
            return;
        }
        let is_sent =
            |order: &&ReplicaOrder| self.is_at(order.replica, machine) && !self.handover.is_waiting(order.replica);
        for order in self.held.values().filter(is_sent) {
            self.send(machine, start(order));
        }
        if !self.has_adopted {
            return;
        }
        let there = |replicas: &BTreeSet<ReplicaId>| {
            replicas.iter().filter(|replica| self.is_at(**replica, machine)).copied().collect()
        };
        self.send(machine, ToNode::Adopt { epoch: self.epoch, replicas: there(&self.known) });
        if let Some(kept) = &self.kept {
            self.send(machine, ToNode::KeepOnly { epoch: self.epoch, replicas: there(kept) });
        }
        for (replica, stop) in self.stops.iter().filter(|(replica, _)| self.is_at(**replica, machine)) {
            self.send(machine, stop.order(*replica));
        }
    }

    /// What is on no machine, and all of them have said so, is lost.
    fn settle(&mut self) {
        if !self.is_complete() {
            return;
        }
        let sought = self.known.iter().chain(self.stops.keys());
        let lost: BTreeSet<ReplicaId> = sought.filter(|it| !self.placed.contains_key(it)).copied().collect();
        lost.into_iter().for_each(|replica| self.lose(replica));
    }

    fn lose(&mut self, replica: ReplicaId) {
        self.ended(replica);
        self.observe(Observation::Exited { replica, exit: Exit::Lost });
    }

    fn ended(&mut self, replica: ReplicaId) {
        self.known.remove(&replica);
        self.held.remove(&replica);
        self.stops.remove(&replica);
    }

    pub(crate) fn start(&mut self, order: &ReplicaOrder) {
        if !self.admit(order.epoch) {
            return;
        }
        let replica = order.replica;
        let machine = self.members.machine_of(&order.node).map(str::to_owned);
        self.known.insert(replica);
        if let Some(kept) = &mut self.kept {
            kept.insert(replica);
        }
        let Some(machine) = machine else {
            self.placed.insert(replica, Place::Here);
            if !self.awaits_saved(order, None)
                && let Some(own) = &mut self.own
            {
                own.start(order);
            }
            return;
        };
        self.placed.insert(replica, Place::At(machine.clone()));
        self.held.insert(replica, order.clone());
        if self.awaits_saved(order, Some(&machine)) {
            return;
        }
        if self.links.contains_key(&machine) {
            self.send(&machine, start(order));
        } else {
            self.observe(Observation::Pending { replica, reason: format!("{machine} does not answer") });
        }
    }

    pub(crate) fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration) {
        if !self.admit(epoch) {
            return;
        }
        self.handover.withdraw(replica);
        match self.placed.get(&replica).cloned() {
            Some(Place::Here) => {
                if let Some(own) = &mut self.own {
                    own.stop(epoch, replica, grace);
                }
            }
            place => {
                // A machine that has not heard of it yet need not any more.
                self.held.remove(&replica);
                let now = Instant::now();
                let until = now.checked_add(grace).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
                let earlier = self.stops.get(&replica).map(|stop| stop.until);
                let stop = Stop { epoch, until: earlier.map_or(until, |earlier| earlier.min(until)) };
                let order = stop.order(replica);
                self.stops.insert(replica, stop);
                match place {
                    Some(Place::At(machine)) => self.send(&machine, order),
                    Some(Place::Here) | None => self.settle(),
                }
            }
        }
    }

    pub(crate) fn forget(&mut self, epoch: Epoch, replica: ReplicaId) {
        if !self.admit(epoch) {
            return;
        }
        if let Some(kept) = &mut self.kept {
            kept.remove(&replica);
        }
        match self.placed.get(&replica).cloned() {
            Some(Place::At(machine)) => {
                self.send(&machine, ToNode::Forget { epoch, replica });
            }
            Some(Place::Here) | None => {
                if let Some(own) = &mut self.own {
                    own.forget(epoch, replica);
                }
            }
        }
        if !self.known.contains(&replica) {
            self.placed.remove(&replica);
        }
    }

    pub(crate) fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]) {
        if !self.admit(epoch) {
            return;
        }
        let kept: BTreeSet<ReplicaId> = replicas.iter().chain(&self.known).copied().collect();
        if let Some(own) = &mut self.own {
            own.keep_only(epoch, replicas);
        }
        for machine in self.links.keys() {
            let there = kept.iter().filter(|replica| self.is_at(**replica, machine)).copied().collect();
            self.send(machine, ToNode::KeepOnly { epoch, replicas: there });
        }
        self.placed.retain(|replica, _| kept.contains(replica));
        self.kept = Some(kept);
    }

    /// The scheduler's own machine has seen something.
    pub(crate) fn saw_here(&mut self, seen: Observation) {
        if let Observation::Exited { replica, .. } | Observation::StartFailed { replica, .. } = &seen {
            self.ended(*replica);
        }
        self.observe(seen);
    }

    /// A machine is connected; returns what its connection is known by. One from before it is over.
    pub(crate) fn connect(&mut self, hello: &Hello, to: UnboundedSender<ToNode>) -> io::Result<u64> {
        let machine = &hello.name;
        let before = self.members.machine(machine).map(|it| it.nodes.clone()).unwrap_or_default();
        self.members.join(hello)?;
        for node in before.into_iter().filter(|node| !hello.nodes.contains(node)) {
            self.observe(Observation::NodeUnreachable { node });
        }
        self.next_link += 1;
        let (id, nodes, address) = (self.next_link, hello.nodes.clone(), hello.address.clone());
        let (seen, end) = (BTreeMap::new(), hello.end.map(end_of));
        let ask = to.clone();
        let saved = LineEnd::new(move |request, question| {
            #[expect(clippy::let_underscore_must_use, reason = "whoever asks is told that the connection is over")]
            let _ = ask.send(ToNode::AskSaved { request, ask: question });
        });
        let link = Link { id, to, nodes, address, seen, end, reads: BTreeMap::new(), next_read: 0, saved };
        self.heard.insert(machine.clone(), SystemTime::now());
        if let Some(earlier) = self.links.insert(machine.clone(), link) {
            self.break_off(machine, earlier);
        }
        for &replica in &hello.replicas {
            let place = self.placed.entry(replica).or_insert_with(|| Place::At(machine.clone()));
            if !matches!(place, Place::At(at) if at == machine) {
                warn!(machine, replica = replica.0, "a machine says that it has what is elsewhere");
            }
        }
        let there: BTreeSet<ReplicaId> = hello.replicas.iter().copied().collect();
        let is_missing =
            |it: &ReplicaId| self.is_at(*it, machine) && !there.contains(it) && !self.held.contains_key(it);
        let missing: Vec<ReplicaId> = self.placed.keys().filter(|it| is_missing(it)).copied().collect();
        for replica in missing {
            self.placed.remove(&replica);
            if self.known.contains(&replica) || self.stops.contains_key(&replica) {
                self.lose(replica);
            }
        }
        info!(machine, version = hello.version, replicas = there.len(), "machine is connected");
        self.catch_up(machine);
        self.settle();
        self.read_again();
        Ok(id)
    }

    /// A connection is over.
    pub(crate) fn disconnect(&mut self, machine: &str, id: u64, reason: &str) {
        if self.links.get(machine).is_none_or(|link| link.id != id) {
            return;
        }
        if let Some(link) = self.links.remove(machine) {
            warn!(machine, reason, "machine does not answer; what runs there runs on");
            for node in &link.nodes {
                self.observe(Observation::NodeUnreachable { node: node.clone() });
            }
            self.break_off(machine, link);
        }
    }

    fn break_off(&mut self, machine: &str, link: Link) {
        for answer in link.reads.into_values() {
            let error = unanswered(machine);
            self.answers.push(Box::new(move || answer(Err(error))));
        }
    }

    /// A machine has said something.
    pub(crate) fn told(&mut self, machine: &str, id: u64, message: FromNode) {
        let Some(link) = self.links.get_mut(machine).filter(|link| link.id == id) else { return };
        self.heard.insert(machine.to_owned(), SystemTime::now());
        let seen = match message {
            FromNode::Up { node } => return self.up(machine, node),
            FromNode::Log { request, piece } => {
                if let Some(answer) = link.reads.remove(&request) {
                    self.answers.push(Box::new(move || answer(piece.into())));
                }
                return;
            }
            FromNode::Keeps { .. }
            | FromNode::Saved { .. }
            | FromNode::AskSaved { .. }
            | FromNode::AnswerSaved { .. } => return self.told_of_saved(machine, message),
            FromNode::Ends(ending) => return self.ends(machine, ending),
            FromNode::AsksToLeave { at_once } => return self.asks_to_leave(machine, at_once),
            FromNode::Left => return self.left(machine),
            FromNode::Superseded { by } => {
                self.epoch = self.epoch.max(by);
                return self.observe(Observation::Superseded { by });
            }
            FromNode::Pending { replica, reason } => (replica, Observation::Pending { replica, reason }),
            FromNode::Started { replica } => (replica, Observation::Started { replica }),
            FromNode::StartFailed { replica, reason, retryable } => {
                (replica, Observation::StartFailed { replica, reason, retryable })
            }
            FromNode::Exited { replica, exit } => (replica, Observation::Exited { replica, exit }),
            FromNode::Hello(_) | FromNode::Alive | FromNode::Unknown => return,
        };
        let (replica, seen) = seen;
        if !self.is_at(replica, machine) {
            return warn!(machine, replica = replica.0, "a machine speaks of what is not there, and is not heard");
        }
        match seen {
            Observation::Exited { .. } | Observation::StartFailed { .. } => self.ended(replica),
            // It is still on its way into being: should the connection break, it is ordered again.
            Observation::Pending { .. } => {}
            _ => drop(self.held.remove(&replica)),
        }
        self.observe(seen);
    }

    fn up(&mut self, machine: &str, node: NodeInfo) {
        let is_own = |link: &&mut Link| link.nodes.contains(&node.name) && link.address == node.address;
        let Some(link) = self.links.get_mut(machine).filter(is_own) else {
            return warn!(machine, node = node.name, "a machine speaks of a node that is not its own");
        };
        let node = NodeInfo { end: link.end, ..node };
        link.seen.insert(node.name.clone(), node.clone());
        if self.members.machine(machine).is_some_and(|it| !it.is_leaving) {
            self.observe(Observation::NodeUp(node));
        }
    }

    /// A machine ends at another time than it said.
    fn ends(&mut self, machine: &str, ending: Ending) {
        let Some(link) = self.links.get_mut(machine) else { return };
        link.end = Some(end_of(ending));
        for node in link.seen.clone().into_values() {
            self.up(machine, node);
        }
    }

    /// A machine goes if nothing is there, or if it cannot stay.
    fn asks_to_leave(&mut self, machine: &str, at_once: bool) {
        let is_used = self.known.iter().any(|replica| self.is_at(*replica, machine));
        let is_leaving = self.members.machine(machine).is_some_and(|it| it.is_leaving);
        if !self.has_adopted || is_leaving || (is_used && !at_once) {
            return;
        }
        info!(machine, is_used, "machine leaves by itself");
        if let Err(error) = self.remove(machine, LAST_GRACE) {
            warn!(machine, %error, "a machine would leave, which cannot be written down: it asks again");
        }
    }

    /// Has a machine that is connected end what it runs, and then leave; one that is not is gone. Tells whether it is.
    pub(crate) fn remove(&mut self, machine: &str, grace: Duration) -> io::Result<bool> {
        if let Some(link) = self.links.get(machine) {
            self.members.let_go(machine)?;
            // It hears no other order any more.
            for node in &link.nodes {
                self.observe(Observation::NodeUnreachable { node: node.clone() });
            }
            self.send(machine, ToNode::Leave(self.leave(grace)));
            return Ok(false);
        }
        self.gone(machine)?;
        Ok(true)
    }

    /// How a machine ends what it runs that was removed while it was away.
    pub(crate) fn last_leave(&self) -> Leave {
        self.leave(LAST_GRACE)
    }

    fn leave(&self, grace: Duration) -> Leave {
        Leave { epoch: self.epoch, grace_ms: milliseconds(grace) }
    }

    fn left(&mut self, machine: &str) {
        let Some(link) = self.links.remove(machine) else { return };
        self.break_off(machine, link);
        if let Err(error) = self.gone(machine) {
            warn!(machine, %error, "a machine has left, which cannot be written down: remove it again");
        }
    }

    /// A machine is none of ours, and nothing runs there that is.
    fn gone(&mut self, machine: &str) -> io::Result<()> {
        let nodes = self.members.remove(machine)?;
        info!(machine, "machine is removed");
        self.lose_saved(machine);
        let there: Vec<ReplicaId> = self.placed.keys().filter(|it| self.is_at(**it, machine)).copied().collect();
        for replica in there {
            self.placed.remove(&replica);
            self.ended(replica);
        }
        for node in nodes {
            self.observe(Observation::NodeGone { node });
        }
        self.settle();
        self.read_again();
        Ok(())
    }

    pub(crate) fn read(&mut self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        let machine = match self.placed.get(&replica) {
            Some(Place::Here) => return self.own_logs.read(replica, from, bytes_max, answer),
            None if self.is_complete() => return self.own_logs.read(replica, from, bytes_max, answer),
            Some(Place::At(machine)) => machine.clone(),
            None => "the machine that has this log".to_owned(),
        };
        if let Some(link) = self.links.get_mut(&machine) {
            let request = link.next_read;
            link.next_read += 1;
            link.reads.insert(request, answer);
            let bytes_max = bytes_max as u64;
            self.send(&machine, ToNode::ReadLog { request, replica, from: from.into(), bytes_max });
        } else if self.is_early {
            self.early_reads.push(Read { replica, from, bytes_max, answer });
        } else {
            let error = unanswered(&machine);
            self.answers.push(Box::new(move || answer(Err(error))));
        }
    }

    fn read_again(&mut self) {
        for Read { replica, from, bytes_max, answer } in std::mem::take(&mut self.early_reads) {
            self.read(replica, from, bytes_max, answer);
        }
    }
}

impl Stop {
    fn order(&self, replica: ReplicaId) -> ToNode {
        let left = self.until.saturating_duration_since(Instant::now());
        ToNode::Stop { epoch: self.epoch, replica, grace_ms: milliseconds(left) }
    }
}

fn start(order: &ReplicaOrder) -> ToNode {
    ToNode::Start { order: Box::new(order.clone()), secrets: order.secrets.clone() }
}

fn unanswered(machine: &str) -> io::Error {
    io::Error::new(ErrorKind::NotConnected, format!("{machine} does not answer"))
}

/// By the clock of this machine.
fn end_of(Ending { drains_in_ms, ends_in_ms }: Ending) -> NodeEnd {
    let at = |in_ms: u64| now_ms().saturating_add(in_ms);
    NodeEnd { drains_at_ms: at(drains_in_ms), ends_at_ms: ends_in_ms.map(at) }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
