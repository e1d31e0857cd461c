//! Single replicas: the engine counts them per node, a backend starts and stops them one by one.

mod group;

use std::collections::{BTreeMap, BTreeSet};

use pollux_backend::{Exit, ReplicaId};
use pollux_engine::{Command, Event, FailureKind, Revision, StopReason};
use pollux_job::PodsPer;
use pollux_policy::{Allocation, JobId, NodeId, Timestamp};
use pollux_store::{GroupRow, ReplicaRow};

pub(crate) use group::{Group, Readiness};

/// All replicas that may run, and who belongs together.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    replicas: BTreeMap<ReplicaId, Replica>,
    groups: BTreeMap<JobId, Group>,
    last: ReplicaId,
    /// Groups that were started afresh, run, and have said nothing yet, with the moment since when.
    silent: BTreeMap<JobId, Timestamp>,
    /// Groups whose leader is done and whose others are not yet, with the moment since when.
    finishing: BTreeMap<JobId, Timestamp>,
    /// What replicas wait for that cannot run yet. After a restart the backend tells it again.
    pending: BTreeMap<ReplicaId, String>,
}

/// A replica that was ordered and is not known to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) job: JobId,
    pub(crate) node: NodeId,
    /// The replica whose GPU it uses as a guest.
    pub(crate) shares_with: Option<ReplicaId>,
    /// The first of those that were launched with it to be one pod, if there are others.
    bundle: Option<ReplicaId>,
    /// Not kept: the engine tells again who is to leave, the backend who runs and who has ended.
    state: ReplicaState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReplicaState {
    /// Ordered, and not known to run.
    #[default]
    Ordered,
    Running,
    /// Told to leave by a command of this revision.
    Leaving(Revision),
    /// Ended by itself; the engine has been told, or will be when the rest of its group has ended, and will say that
    /// it is to leave.
    Ended,
    /// Told to leave, and not counted by the engine any more.
    Untracked,
    /// Told to leave, by a command of this revision if the engine counts it, and ended before others of its bundle.
    Left(Option<Revision>),
}

impl Replica {
    fn recovered(row: &ReplicaRow) -> Self {
        let state = ReplicaState::default();
        let (shares_with, bundle) = (row.shares_with.map(ReplicaId), row.bundle.map(ReplicaId));
        Self { job: row.job, node: row.node, shares_with, bundle, state }
    }

    /// What is kept of it.
    pub(crate) fn row(&self, id: ReplicaId) -> ReplicaRow {
        let (shares_with, bundle) = (self.shares_with.map(|host| host.0), self.bundle.map(|first| first.0));
        ReplicaRow { id: id.0, job: self.job, node: self.node, shares_with, bundle }
    }

    /// Whether its end is known.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, ReplicaState::Ended | ReplicaState::Left(_))
    }
}

/// How a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(Exit),
    NotStarted(FailureKind),
}

/// What follows from a command or an observation: to be made durable, then done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Effects {
    pub(crate) start: Vec<ReplicaId>,
    pub(crate) stop: Vec<ReplicaId>,
    /// Jobs whose groups changed.
    pub(crate) regrouped: BTreeSet<JobId>,
    /// Replicas that are known to be gone.
    pub(crate) gone: Vec<ReplicaId>,
    /// Replicas whose logs are too old to be kept.
    pub(crate) outdated: Vec<ReplicaId>,
    /// What the engine is to be told.
    pub(crate) events: Vec<Event>,
}

impl Fleet {
    /// What was there before, as it was made durable. Every member of a group is a replica.
    pub(crate) fn recovered(replicas: &[ReplicaRow], groups: Vec<(JobId, GroupRow)>, last: ReplicaId) -> Self {
        let replicas: BTreeMap<ReplicaId, Replica> =
            replicas.iter().map(|row| (ReplicaId(row.id), Replica::recovered(row))).collect();
        let mut groups: BTreeMap<JobId, Group> = groups.into_iter().map(|(job, group)| (job, group.into())).collect();
        for group in groups.values_mut() {
            group.members.retain(|id| replicas.contains_key(id));
        }
        Self { replicas, groups, last, silent: BTreeMap::new(), finishing: BTreeMap::new(), pending: BTreeMap::new() }
    }

    pub(crate) fn group(&self, job: JobId) -> Option<&Group> {
        self.groups.get(&job)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (JobId, &Group)> {
        self.groups.iter().map(|(&job, group)| (job, group))
    }

    pub(crate) fn replica(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.get(&id)
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.replicas.iter().map(|(&id, replica)| (id, replica))
    }

    /// A whole group trains.
    pub(crate) fn settle(&mut self, job: JobId) {
        self.silent.remove(&job);
        if let Some(group) = self.groups.get_mut(&job) {
            group.settle();
        }
    }

    /// Groups that run since a moment and have said nothing yet.
    pub(crate) fn silent(&self) -> impl Iterator<Item = (JobId, Timestamp)> {
        self.silent.iter().map(|(&job, &since)| (job, since))
    }

    pub(crate) fn has_spoken(&mut self, job: JobId) {
        self.silent.remove(&job);
    }

    /// Groups whose leader is done and whose others are not yet, with the moment since when.
    pub(crate) fn finishing(&self) -> impl Iterator<Item = (JobId, Timestamp)> {
        self.finishing.iter().map(|(&job, &since)| (job, since))
    }

    /// A group is done, whatever its last members do.
    pub(crate) fn finish(&mut self, job: JobId, out: &mut Effects) {
        self.finishing.remove(&job);
        if let Some(group) = self.groups.get(&job) {
            out.events.push(Event::JobSucceeded { job, revision: group.revision });
        }
    }

    /// Forgets a job that is over, and tells who worked for it.
    pub(crate) fn disband(&mut self, job: JobId) -> Vec<ReplicaId> {
        self.silent.remove(&job);
        self.finishing.remove(&job);
        self.groups.remove(&job).map(|group| group.past).unwrap_or_default()
    }

    /// Takes a command of the engine apart. One that was carried out before is not carried out again.
    pub(crate) fn apply(&mut self, command: &Command, pods_per: PodsPer, out: &mut Effects) {
        match command {
            Command::Launch { job, revision, allocation, guest_of } => {
                self.launch(*job, *revision, allocation, *guest_of, pods_per, out);
            }
            Command::Resize { job, revision, remove, add, .. } => {
                self.resize(*job, *revision, remove, add, out);
            }
            Command::Stop { job, revision, allocation, why } => {
                if *why != StopReason::Resized
                    && let Some(group) = self.groups.get_mut(job).filter(|group| !group.stopping)
                {
                    group.stop(*why);
                    self.silent.remove(job);
                    out.regrouped.insert(*job);
                }
                self.dismiss(*job, *revision, allocation, out);
            }
            Command::Refused(_) | Command::PlanRejected { .. } => {}
        }
    }

    fn launch(
        &mut self,
        job: JobId,
        revision: Revision,
        allocation: &Allocation,
        guest_of: Option<JobId>,
        pods_per: PodsPer,
        out: &mut Effects,
    ) {
        let group = self.groups.entry(job).or_default();
        let is_newest = group.revision == revision && !group.stopping;
        if is_newest && !group.awaits_additions {
            return;
        }
        let mut newcomers = Vec::new();
        for (node, count) in allocation.iter() {
            let is_bundle = pods_per == PodsPer::Node && guest_of.is_none() && count > 1;
            let bundle = is_bundle.then_some(ReplicaId(self.last.0 + 1));
            for _ in 0..count {
                let shares_with = guest_of.and_then(|host| self.unshared(host, node));
                self.last.0 += 1;
                let replica = Replica { job, node, shares_with, bundle, state: ReplicaState::Ordered };
                self.replicas.insert(self.last, replica);
                newcomers.push(self.last);
            }
        }
        let group = self.groups.get_mut(&job).expect("it was just there");
        if !is_newest {
            group.begin(revision);
        }
        group.members.extend(&newcomers);
        group.awaits_additions = false;
        // The host hears that it has a guest.
        out.regrouped.extend(guest_of);
        out.start.extend(newcomers);
        self.announce(job, out);
    }

    /// A replica of a host on a node whose GPU has no guest yet.
    fn unshared(&self, host: JobId, node: NodeId) -> Option<ReplicaId> {
        let taken = self.hosts();
        let members = &self.groups.get(&host)?.members;
        members.iter().copied().find(|id| self.replicas[id].node == node && !taken.contains(id))
    }

    fn hosts(&self) -> BTreeSet<ReplicaId> {
        self.replicas.values().filter_map(|replica| replica.shares_with).collect()
    }

    fn resize(&mut self, job: JobId, revision: Revision, remove: &Allocation, add: &Allocation, out: &mut Effects) {
        let Some(group) = self.groups.get_mut(&job).filter(|group| group.revision != revision) else { return };
        group.revision = revision;
        group.awaits_additions = !add.is_empty();
        out.regrouped.insert(job);
        self.dismiss(job, revision, remove, out);
        // Nothing changes for those who stay until the additions come.
        if self.groups[&job].shrunk || add.is_empty() {
            self.announce(job, out);
        }
    }

    /// Gives the members of a group a new generation; where they meet is theirs to tell.
    fn announce(&mut self, job: JobId, out: &mut Effects) {
        let Some(group) = self.groups.get_mut(&job) else { return };
        out.regrouped.insert(job);
        if !group.members.is_empty() {
            group.announce();
        }
    }

    /// Notes where the newest membership of a group meets; false if another one is current.
    pub(crate) fn publish(&mut self, job: JobId, generation: u64, rendezvous: (String, u16)) -> bool {
        let Some(group) = self.groups.get_mut(&job) else { return false };
        if group.generation != generation || group.stopping {
            return false;
        }
        group.rendezvous = Some(rendezvous);
        true
    }

    /// Tells so many replicas on each node to leave. Those that are not there any more have left.
    fn dismiss(&mut self, job: JobId, revision: Revision, allocation: &Allocation, out: &mut Effects) {
        for (node, count) in allocation.iter() {
            let chosen: Vec<ReplicaId> = self.dispensable(job, node).into_iter().take(count as usize).collect();
            let missing = count - chosen.len() as u32;
            if missing > 0 {
                let allocation = Allocation::on(node, missing);
                out.events.push(Event::ReplicasReleased { job, revision, allocation });
            }
            for id in chosen {
                self.leave_group(id, out);
                self.stop_replica(id, ReplicaState::Leaving(revision), out);
            }
        }
    }

    /// Replicas of a job on a node that were not told to leave, those first that are missed least: who left the group
    /// before a restart, who is alone on its GPU, and of the rest the high ranks, because the state travels least when
    /// the rank that hands it over stays.
    fn dispensable(&self, job: JobId, node: NodeId) -> Vec<ReplicaId> {
        let hosts = self.hosts();
        let members = self.groups.get(&job).map_or(&[][..], |group| &group.members);
        let is_here = |replica: &Replica| match replica.state {
            ReplicaState::Ordered | ReplicaState::Running | ReplicaState::Ended => true,
            ReplicaState::Leaving(_) | ReplicaState::Untracked | ReplicaState::Left(_) => false,
        };
        let there = self.replicas.iter().filter(|(_, it)| it.job == job && it.node == node && is_here(it));
        let mut there: Vec<ReplicaId> = there.map(|(&id, _)| id).collect();
        there.sort_by_key(|id| {
            let rank = members.iter().position(|member| member == id);
            (rank.is_some(), hosts.contains(id), rank.map(std::cmp::Reverse))
        });
        there
    }

    fn leave_group(&mut self, id: ReplicaId, out: &mut Effects) {
        let job = self.replicas[&id].job;
        if let Some(group) = self.groups.get_mut(&job)
            && group.members.contains(&id)
        {
            group.members.retain(|member| *member != id);
            group.shrunk = true;
            out.regrouped.insert(job);
        }
    }

    fn stop_replica(&mut self, id: ReplicaId, how: ReplicaState, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let has_ended = replica.state == ReplicaState::Ended;
        replica.state = how;
        if has_ended {
            self.left(id, out);
        } else {
            out.stop.push(id);
        }
    }

    /// A replica cannot run yet; returns whose it is and for which revision, if that is news.
    pub(crate) fn pending(&mut self, id: ReplicaId, reason: &str) -> Option<(JobId, Revision)> {
        let replica = self.replicas.get(&id).filter(|it| it.state == ReplicaState::Ordered)?;
        let revision = self.groups.get(&replica.job)?.revision;
        let before = self.pending.insert(id, reason.to_owned());
        (before.as_deref() != Some(reason)).then_some((replica.job, revision))
    }

    /// What replicas of a job wait for that cannot run yet.
    pub(crate) fn pending_of(&self, job: JobId) -> impl Iterator<Item = (ReplicaId, &str)> {
        let is_its_own = move |id: &ReplicaId| self.replicas.get(id).is_some_and(|replica| replica.job == job);
        self.pending.iter().filter(move |(id, _)| is_its_own(id)).map(|(id, reason)| (*id, reason.as_str()))
    }

    /// The revision of a group all of whose members run.
    pub(crate) fn running(&self, job: JobId) -> Option<Revision> {
        let group = self.groups.get(&job)?;
        let runs = |id: &ReplicaId| self.replicas.get(id).is_some_and(|it| it.state == ReplicaState::Running);
        group.members.iter().all(runs).then_some(group.revision)
    }

    /// A replica's program runs.
    pub(crate) fn started(&mut self, id: ReplicaId, now: Timestamp) {
        let Some(replica) = self.replicas.get_mut(&id).filter(|it| it.state == ReplicaState::Ordered) else { return };
        replica.state = ReplicaState::Running;
        let job = replica.job;
        self.pending.remove(&id);
        if self.running(job).is_some() && self.groups.get(&job).is_some_and(Group::is_fresh) {
            self.silent.insert(job, now);
        }
    }

    /// Nothing of a replica runs any more.
    pub(crate) fn ended(&mut self, id: ReplicaId, ending: Ending, now: Timestamp, out: &mut Effects) {
        let has_waited = self.pending.remove(&id).is_some();
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        match replica.state {
            ReplicaState::Leaving(revision) => {
                let job = replica.job;
                let led = self.groups.get(&job).is_some_and(|group| group.last_leader == Some(id));
                // It was done before it was told.
                if led && ending == Ending::Exited(Exit::Code(0)) {
                    out.events.push(Event::JobSucceeded { job, revision });
                }
                self.left(id, out);
            }
            ReplicaState::Untracked => self.left(id, out),
            ReplicaState::Ended | ReplicaState::Left(_) => {}
            ReplicaState::Ordered | ReplicaState::Running => {
                replica.state = ReplicaState::Ended;
                let (job, node) = (replica.job, replica.node);
                self.release(id, out);
                let Some(group) = self.groups.get(&job) else { return };
                let revision = group.revision;
                let is_over = group.members.iter().all(|id| self.replicas.get(id).is_none_or(Replica::has_ended));
                let is_led = group.members.first() != Some(&id);
                match ending {
                    // Once the leader is done it does not matter how the others end, but they may take their time.
                    _ if self.finishing.contains_key(&job) => {
                        if is_over {
                            self.finish(job, out);
                        }
                    }
                    // What its leader does decides.
                    Ending::Exited(Exit::Code(0)) if is_led => {}
                    Ending::Exited(Exit::Code(0)) if is_over => self.finish(job, out),
                    Ending::Exited(Exit::Code(0)) => drop(self.finishing.insert(job, now)),
                    Ending::Exited(Exit::Code(_) | Exit::Signal(_) | Exit::OutOfMemory | Exit::Lost) => {
                        let kind = FailureKind::Retryable;
                        out.events.push(Event::ReplicaFailed { job, revision, node, kind });
                    }
                    // No fault of the job's; nor of the node's, if it waited for something outside of the cluster in vain: others
                    // may find it there.
                    Ending::NotStarted(FailureKind::Machine) if has_waited => {
                        let kind = FailureKind::Machine;
                        out.events.push(Event::ReplicaFailed { job, revision, node, kind });
                    }
                    Ending::Exited(Exit::Evicted) => {
                        let kind = FailureKind::Machine;
                        out.events.push(Event::ReplicaFailed { job, revision, node, kind });
                    }
                    Ending::NotStarted(kind) => out.events.push(Event::LaunchFailed { job, revision, node, kind }),
                }
            }
        }
    }

    /// A replica that was told to leave has ended.
    fn left(&mut self, id: ReplicaId, out: &mut Effects) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.state = ReplicaState::Left(match replica.state {
            ReplicaState::Leaving(revision) => Some(revision),
            ReplicaState::Ordered
            | ReplicaState::Running
            | ReplicaState::Ended
            | ReplicaState::Untracked
            | ReplicaState::Left(_) => None,
        });
        self.release(id, out);
    }

    /// What those have that have left is free, once all of their bundle have ended.
    fn release(&mut self, id: ReplicaId, out: &mut Effects) {
        let bundle = self.bundle(id);
        if !bundle.iter().all(|id| self.replicas[id].has_ended()) {
            return;
        }
        for id in bundle {
            let ReplicaState::Left(revision) = self.replicas[&id].state else { continue };
            let Some(replica) = self.replicas.remove(&id) else { continue };
            let (job, allocation) = (replica.job, Allocation::on(replica.node, 1));
            out.events.extend(revision.map(|revision| Event::ReplicasReleased { job, revision, allocation }));
            self.note_gone(id, &replica, out);
        }
    }

    /// All that come and go with a replica, itself included.
    pub(crate) fn bundle(&self, id: ReplicaId) -> Vec<ReplicaId> {
        let Some(first) = self.replicas.get(&id).and_then(|replica| replica.bundle) else { return vec![id] };
        // They were numbered one after the other.
        let others = self.replicas.range(first..).take_while(|(_, replica)| replica.bundle == Some(first));
        others.map(|(&id, _)| id).collect()
    }

    fn note_gone(&mut self, id: ReplicaId, replica: &Replica, out: &mut Effects) {
        let job = replica.job;
        self.pending.remove(&id);
        // Who shared its GPU hears that it is alone now.
        let host = replica.shares_with.and_then(|host| self.replicas.get(&host));
        let guests = self.replicas.values().filter(|other| other.shares_with == Some(id));
        out.regrouped.extend(host.into_iter().chain(guests).map(|other| other.job));
        out.gone.push(id);
        match self.groups.get_mut(&job) {
            Some(group) => {
                out.outdated.extend(group.archive(id));
                out.regrouped.insert(job);
            }
            None => out.outdated.push(id),
        }
    }

    /// A node is gone, and all replicas on it.
    pub(crate) fn lose_node(&mut self, node: NodeId, out: &mut Effects) {
        for id in self.on(node) {
            self.leave_group(id, out);
            if let Some(replica) = self.replicas.remove(&id) {
                self.note_gone(id, &replica, out);
            }
        }
    }

    /// Ends a replica that the engine does not know of.
    pub(crate) fn evict(&mut self, id: ReplicaId, out: &mut Effects) {
        self.leave_group(id, out);
        self.stop_replica(id, ReplicaState::Untracked, out);
    }

    /// Nodes with replicas, those on their way out included.
    pub(crate) fn nodes(&self) -> BTreeSet<NodeId> {
        self.replicas.values().map(|replica| replica.node).collect()
    }

    /// Replicas on a node, those on their way out included.
    pub(crate) fn on(&self, node: NodeId) -> Vec<ReplicaId> {
        self.replicas.iter().filter(|(_, replica)| replica.node == node).map(|(&id, _)| id).collect()
    }

    /// Whether a member of a group is on a GPU with a replica of another job.
    pub(crate) fn shares_gpus(&self, group: &Group) -> bool {
        let is_here = |id: Option<ReplicaId>| id.is_some_and(|id| self.replicas.contains_key(&id));
        let is_guest = |id: &ReplicaId| self.replicas.get(id).is_some_and(|member| is_here(member.shares_with));
        let is_host = |replica: &Replica| replica.shares_with.is_some_and(|host| group.members.contains(&host));
        group.members.iter().any(is_guest) || self.replicas.values().any(is_host)
    }

    /// Where the members of a group are.
    pub(crate) fn allocation(&self, job: JobId) -> Allocation {
        let members = self.groups.get(&job).into_iter().flat_map(|group| &group.members);
        members.filter_map(|id| self.replicas.get(id)).map(|replica| (replica.node, 1)).collect()
    }

    /// Replicas that neither belong to a group nor were told to leave.
    pub(crate) fn unassigned(&self) -> Vec<ReplicaId> {
        let is_unassigned = |(id, replica): &(&ReplicaId, &Replica)| match replica.state {
            ReplicaState::Ordered | ReplicaState::Running | ReplicaState::Ended => {
                !self.groups.get(&replica.job).is_some_and(|group| group.members.contains(id))
            }
            ReplicaState::Leaving(_) | ReplicaState::Untracked | ReplicaState::Left(_) => false,
        };
        self.replicas.iter().filter(is_unassigned).map(|(&id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests;
