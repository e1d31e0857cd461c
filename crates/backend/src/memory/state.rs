use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::time::Duration;

use crate::{Epoch, Exit, LogChunk, LogStart, NodeInfo, Observation, Observer, ReplicaId, ReplicaOrder};

/// Grace of replicas that nobody knows.
const GRACE: Duration = Duration::from_secs(30);

/// Why a program does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// One line.
    pub reason: String,
    /// Whether another attempt makes sense.
    pub retryable: bool,
}

/// What a cluster consists of.
#[derive(Default)]
pub(super) struct State {
    pub(super) observers: Vec<Weak<Observer>>,
    /// The highest that gave an order.
    pub(super) epoch: Epoch,
    pub(super) nodes: BTreeMap<String, (NodeInfo, Reach)>,
    pub(super) replicas: BTreeMap<ReplicaId, Replica>,
    pub(super) logs: BTreeMap<ReplicaId, Log>,
    /// What replicas wait for that are ordered now.
    pub(super) held: Option<String>,
    pub(super) mistakes: Vec<String>,
}

/// Whether a node can be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Up,
    /// Nobody hears of it, and it hears of nobody.
    Cut,
    /// Its backend has not looked for it yet.
    Withheld,
}

pub(super) struct Replica {
    pub(super) order: ReplicaOrder,
    /// Which of its node's GPUs it has.
    gpus: BTreeSet<u32>,
    pub(super) stage: Stage,
    /// The stop that its node has not heard of yet.
    unheard_stop: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It was accepted and waits.
    Pending {
        reason: String,
    },
    /// Its program is being started.
    Starting,
    Running,
    Ended(Ending),
}

#[derive(Clone, Debug)]
pub(super) enum Ending {
    Exited(Exit),
    Failed(StartFailure),
}

/// What a replica has written.
#[derive(Default)]
pub(super) struct Log {
    pub(super) dropped: u64,
    pub(super) bytes: Vec<u8>,
}

/// What programs have to do.
pub(super) enum Todo {
    Start(Box<ReplicaOrder>),
    Stop(ReplicaId, Duration),
}

impl State {
    pub(super) fn observe(&self, observation: &Observation) {
        for observer in self.observers.iter().filter_map(Weak::upgrade) {
            observer(observation.clone());
        }
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        let live = self.replicas.iter().filter(|(_, replica)| !matches!(replica.stage, Stage::Ended(_)));
        live.map(|(id, replica)| (*id, replica))
    }

    pub(super) fn set_stage(&mut self, replica: ReplicaId, stage: Stage) {
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.stage = stage;
        }
    }

    /// Whether what happens on the node of a replica is heard of. Of nodes that are gone everything is known.
    fn hears_of(&self, order: &ReplicaOrder) -> bool {
        self.nodes.get(&order.node).is_none_or(|(_, reach)| *reach != Reach::Cut)
    }

    /// Tells how far a replica has come; what happened on a node that is cut off is not known.
    pub(super) fn report(&self, replica: ReplicaId) {
        let observation = match self.replicas.get(&replica) {
            None => Observation::Exited { replica, exit: Exit::Lost },
            Some(it) => match it.stage.clone() {
                Stage::Running | Stage::Ended(Ending::Exited(_)) if !self.hears_of(&it.order) => return,
                // It is told when it is so.
                Stage::Starting => return,
                Stage::Pending { reason } => Observation::Pending { replica, reason },
                Stage::Running => Observation::Started { replica },
                Stage::Ended(Ending::Exited(exit)) => Observation::Exited { replica, exit },
                Stage::Ended(Ending::Failed(StartFailure { reason, retryable })) => {
                    Observation::StartFailed { replica, reason, retryable }
                }
            },
        };
        self.observe(&observation);
    }

    /// A program runs, unless it has ended already.
    pub(super) fn started(&mut self, replica: ReplicaId) {
        if self.replicas.get(&replica).is_some_and(|it| matches!(it.stage, Stage::Starting)) {
            self.set_stage(replica, Stage::Running);
            self.report(replica);
        }
    }

    /// A replica has ended, in this way unless it had.
    pub(super) fn end(&mut self, replica: ReplicaId, ending: Ending) {
        if matches!(ending, Ending::Exited(_)) {
            self.started(replica);
        }
        let Some(it) = self.replicas.get_mut(&replica) else { return };
        if !matches!(it.stage, Stage::Ended(_)) {
            it.stage = Stage::Ended(ending);
        }
        self.report(replica);
    }

    /// Tells of a node that answers, and of all that it runs; returns what it is to do now.
    pub(super) fn reach(&mut self, node: &str) -> Vec<Todo> {
        let Some((info, Reach::Up)) = self.nodes.get(node) else { return Vec::new() };
        self.observe(&Observation::NodeUp(info.clone()));
        let there = self.replicas.iter_mut().filter(|(_, it)| it.order.node == node);
        let there: Vec<_> = there.map(|(id, it)| (*id, it.unheard_stop.take())).collect();
        let mut todo = Vec::new();
        for (replica, stop) in there {
            self.report(replica);
            if let Some(grace) = stop {
                todo.extend(self.stop(replica, grace));
            }
        }
        todo.extend(self.startable());
        todo
    }

    /// Takes over for a scheduler that knows these.
    pub(super) fn adopt(&mut self, known: &[ReplicaId]) -> Vec<Todo> {
        for (name, (info, reach)) in &self.nodes {
            match reach {
                Reach::Up => self.observe(&Observation::NodeUp(info.clone())),
                Reach::Cut => self.observe(&Observation::NodeUnreachable { node: name.clone() }),
                Reach::Withheld => {}
            }
        }
        known.iter().for_each(|replica| self.report(*replica));
        let unknown: Vec<ReplicaId> = self.live().map(|(id, _)| id).filter(|id| !known.contains(id)).collect();
        self.mistakes.extend(unknown.iter().map(|replica| format!("{replica} runs and nobody knows it")));
        unknown.into_iter().filter_map(|replica| self.stop(replica, GRACE)).collect()
    }

    /// Accepts an order, or says why not. One that was given before is known.
    pub(super) fn order(&mut self, order: &ReplicaOrder) -> Vec<Todo> {
        let replica = order.replica;
        if self.replicas.contains_key(&replica) {
            self.report(replica);
            return Vec::new();
        }
        let (gpus, stage) = match self.room_for(order) {
            Ok(gpus) => (gpus, Stage::Pending { reason: String::new() }),
            Err(reason) => {
                self.mistakes.push(format!("{replica} of {}: {reason}", order.job));
                let failure = StartFailure { reason, retryable: true };
                (BTreeSet::new(), Stage::Ended(Ending::Failed(failure)))
            }
        };
        self.replicas.insert(replica, Replica { order: order.clone(), gpus, stage, unheard_stop: None });
        let todo = self.startable();
        let waits_for = match &self.held {
            Some(reason) => reason.clone(),
            None => format!("{} does not answer", order.node),
        };
        if let Some(Replica { stage: Stage::Pending { reason }, .. }) = self.replicas.get_mut(&replica) {
            *reason = waits_for;
        }
        if todo.is_empty() {
            self.report(replica);
        }
        todo
    }

    /// Replicas that wait for nothing any more: they are started now.
    pub(super) fn startable(&mut self) -> Vec<Todo> {
        if self.held.is_some() {
            return Vec::new();
        }
        let nodes = &self.nodes;
        let answers = |order: &ReplicaOrder| nodes.get(&order.node).is_some_and(|(_, reach)| *reach != Reach::Cut);
        let pending = self.replicas.values_mut().filter(|it| matches!(it.stage, Stage::Pending { .. }));
        let ready = pending.filter(|it| answers(&it.order));
        let started = ready.map(|it| {
            it.stage = Stage::Starting;
            Todo::Start(Box::new(it.order.clone()))
        });
        started.collect()
    }

    /// The GPUs that a replica gets, if its node has room for it.
    fn room_for(&self, order: &ReplicaOrder) -> Result<BTreeSet<u32>, String> {
        let Some((node, _)) = self.nodes.get(&order.node) else {
            return Err(format!("{} is not a node", order.node));
        };
        let there: Vec<&Replica> = self.live().map(|(_, it)| it).filter(|it| it.order.node == node.name).collect();
        let cpus: u64 = there.iter().filter_map(|it| it.order.cpus).map(u64::from).sum();
        if let Some((all, wanted)) =
            node.cpus.zip(order.cpus).filter(|(all, more)| cpus + u64::from(*more) > (*all).into())
        {
            return Err(format!("{cpus} of {all} CPUs of {} are taken, and it asks for {wanted}", node.name));
        }
        let memory: u64 = there.iter().filter_map(|it| it.order.memory).sum();
        if let Some((all, wanted)) = node.memory.zip(order.memory).filter(|(all, more)| memory + more > *all) {
            return Err(format!("{memory} of {all} bytes of {} are taken, and it asks for {wanted}", node.name));
        }
        if let Some(host) = order.shares_with {
            let host_gpus = self.live().find(|(id, _)| *id == host).map(|(_, it)| it.gpus.clone());
            return host_gpus.ok_or_else(|| format!("{host}, whose GPUs it was to share, is gone"));
        }
        let taken: BTreeSet<u32> = there.iter().flat_map(|it| &it.gpus).copied().collect();
        let free: BTreeSet<u32> = (0..node.gpus).filter(|gpu| !taken.contains(gpu)).take(order.gpus as usize).collect();
        if free.len() < order.gpus as usize {
            return Err(format!("{} has {} free GPUs of {}", node.name, free.len(), order.gpus));
        }
        Ok(free)
    }

    /// Ends a replica that waits; returns what is to be done with one that runs.
    pub(super) fn stop(&mut self, replica: ReplicaId, grace: Duration) -> Option<Todo> {
        let hears = self.replicas.get(&replica).is_none_or(|it| self.hears_of(&it.order));
        match self.replicas.get_mut(&replica) {
            Some(Replica { stage: Stage::Starting | Stage::Running, unheard_stop, .. }) => {
                let grace = unheard_stop.map_or(grace, |earlier| earlier.min(grace));
                *unheard_stop = (!hears).then_some(grace);
                return hears.then_some(Todo::Stop(replica, grace));
            }
            Some(Replica { stage: Stage::Pending { .. }, .. }) => self.end(replica, Ending::Exited(Exit::Lost)),
            Some(Replica { stage: Stage::Ended(_), .. }) | None => self.report(replica),
        }
        None
    }

    /// Deletes what is kept of replicas that have ended.
    pub(super) fn forget(&mut self, is_forgotten: impl Fn(ReplicaId) -> bool) {
        let is_kept = |id: &ReplicaId, it: &Replica| !matches!(it.stage, Stage::Ended(_)) || !is_forgotten(*id);
        self.replicas.retain(|id, it| is_kept(id, it));
        let replicas = &self.replicas;
        self.logs.retain(|id, _| replicas.contains_key(id) || !is_forgotten(*id));
    }

    pub(super) fn read_log(&self, replica: ReplicaId, from: LogStart, bytes_max: usize) -> LogChunk {
        let has_ended = self.replicas.get(&replica).is_some_and(|it| matches!(it.stage, Stage::Ended(_)));
        let empty = Log::default();
        let Log { dropped: first, bytes: log } = self.logs.get(&replica).unwrap_or(&empty);
        let (start, dropped) = match from {
            LogStart::At(position) => {
                let start = usize::try_from(position.saturating_sub(*first)).unwrap_or(usize::MAX);
                (start.min(log.len()), first.saturating_sub(position))
            }
            LogStart::LastLines(lines) => {
                let lines = usize::try_from(lines).unwrap_or(usize::MAX);
                let last = log.split_inclusive(|byte| *byte == b'\n').rev().take(lines);
                (log.len() - last.map(<[u8]>::len).sum::<usize>(), 0)
            }
        };
        let end = log.len().min(start.saturating_add(bytes_max));
        let bytes = log[start..end].to_vec();
        LogChunk { bytes, next: first + end as u64, dropped, ended: has_ended && end == log.len() }
    }
}
