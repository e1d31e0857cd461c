use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pollux_worker::{
    AssignedReplica, Assignment, AssignmentState, BatchMode, Endpoint, GpuTypeName, Ranks, Termination, Worker,
    WorkerError,
};

use crate::error::TrainerError;
use crate::group::{Group, Member};
use crate::joining::{Place, introduce, pause};
use crate::rendezvous::{Hello, Rendezvous};
use crate::step::{Instruction, Next, Total};
use crate::wire::Line;

/// How long survivors may take to find a new rank 0.
const REGROUP_MAX: Duration = Duration::from_secs(30);

/// Which group this process belongs to, and which it is to belong to.
#[derive(Debug)]
pub(crate) struct Membership {
    worker: Option<Worker>,
    termination: Termination,
    me: u64,
    /// The generation that trains; 0 without a scheduler.
    settled: u64,
    /// The newest assignment when the step began, if it is of a newer generation.
    candidate: Option<Arc<Assignment>>,
    /// Where the next generation meets, if this process leads it.
    rendezvous: Option<Rendezvous>,
    rendezvous_failed: bool,
}

/// What the scheduler says of the training, besides who belongs to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) gpu_type: GpuTypeName,
    pub(crate) batch: BatchMode,
    /// Whether another job runs on the same GPUs.
    pub(crate) shares_gpus: bool,
}

/// A group that some have left.
pub(crate) enum ShrunkGroup {
    /// As its rank 0 sees it.
    Leader(Group),
    /// For the others: the line to rank 0, which will say who is in it.
    Follower(Line),
}

impl Membership {
    /// As the environment says: under a scheduler, under any launcher that sets ranks, or alone.
    pub(crate) fn from_env() -> Result<(Self, Place), TrainerError> {
        let ranks = Ranks::from_env()?;
        let worker = Worker::from_env()?;
        let termination = Termination::install()?;
        let generation = worker.as_ref().map_or(0, |worker| worker.connection().generation);
        if worker.is_some() && ranks.is_none() {
            return Err(WorkerError::HalfSet { missing: "RANK", present: "POLLUX_JOB_ID" }.into());
        }
        let ranks = ranks.unwrap_or(Ranks {
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            master_address: String::new(),
            master_port: 0,
        });
        let me = worker.as_ref().map_or(u64::from(ranks.rank), |worker| worker.connection().replica);
        let place = Place::of_ranks(generation, ranks);
        let membership =
            Self { worker, termination, me, settled: 0, candidate: None, rendezvous: None, rendezvous_failed: false };
        Ok((membership, place))
    }

    pub(crate) const fn worker(&self) -> Option<&Worker> {
        self.worker.as_ref()
    }

    /// The generation that trains.
    pub(crate) const fn settled(&self) -> u64 {
        self.settled
    }

    /// This process's number.
    pub(crate) const fn me(&self) -> u64 {
        self.me
    }

    pub(crate) fn is_terminated(&self) -> bool {
        self.termination.requested()
    }

    /// Gives the last words to the scheduler some time.
    pub(crate) fn finish(self, patience: Duration) {
        if let Some(worker) = self.worker {
            // If nobody hears them, nobody misses them.
            let _ = worker.finish(patience);
        }
    }

    /// Looks at what is new before a step: the newest generation heard of, and what this process was told to do.
    pub(crate) fn listen(&mut self, group: &Group) -> (u64, Instruction) {
        let Some(worker) = &self.worker else {
            let instruction = if self.termination.requested() { Instruction::Stop } else { Instruction::Train };
            return (0, instruction);
        };
        let instruction = worker.orders().into();
        let newest = worker.assignment().filter(|newest| newest.state == AssignmentState::Run);
        let heard = newest.as_ref().map_or(0, |newest| newest.generation);
        self.candidate = newest.filter(|newest| newest.generation > self.settled);
        // What it could not follow it has not heard of.
        (if self.prepare(group) { heard } else { self.settled }, instruction)
    }

    /// What the scheduler says of the training at the moment.
    pub(crate) fn terms(&self) -> Terms {
        let Some(newest) = self.worker.as_ref().and_then(Worker::assignment) else { return Terms::default() };
        let mine = newest.replicas.iter().find(|replica| replica.replica == self.me).or(newest.replicas.first());
        let gpu_type = mine.map(|replica| replica.gpu_type.clone()).unwrap_or_default();
        Terms { gpu_type, batch: newest.batch, shares_gpus: newest.shares_gpus }
    }

    /// Makes a place where a generation that this process leads can meet, and tells the others.
    pub(crate) fn open(&self, assignment: &Assignment) -> io::Result<Rendezvous> {
        let generation = assignment.generation;
        match (&assignment.rendezvous, &self.worker) {
            (pollux_worker::Rendezvous::Given, _) | (_, None) => {
                Rendezvous::open(generation, &assignment.master_address, assignment.master_port)
            }
            (pollux_worker::Rendezvous::Awaited | pollux_worker::Rendezvous::At(_), Some(worker)) => {
                let rendezvous = Rendezvous::open_any(generation, &worker.connection().host)?;
                worker.publish_rendezvous(generation, rendezvous.port()?);
                Ok(rendezvous)
            }
        }
    }

    /// Opens the rendezvous of the next generation, if this process leads it and somebody will come; whether there is
    /// nothing left that this process would miss if the group changed over.
    fn prepare(&mut self, group: &Group) -> bool {
        let Some(candidate) = self.candidate.clone() else { return true };
        let known = |replica: u64| group.members().iter().any(|member| member.replica == replica);
        let somebody_comes = !group.is_leader() || candidate.replicas.iter().any(|replica| !known(replica.replica));
        let leader = candidate.replicas.first().map(|first| first.replica);
        if leader != Some(self.me) {
            let is_listed = candidate.replicas.iter().any(|replica| replica.replica == self.me);
            let is_led_anew = leader != group.members().first().map(|member| member.replica);
            return !(is_listed && is_led_anew) || candidate.endpoint().is_some();
        }
        let is_open = |open: &Rendezvous| open.generation() == candidate.generation;
        if !somebody_comes || self.rendezvous.as_ref().is_some_and(is_open) {
            return true;
        }
        // Under a scheduler of version 0.1 the old port may be the new one.
        self.rendezvous = None;
        match self.open(&candidate) {
            Ok(rendezvous) => (self.rendezvous, self.rendezvous_failed) = (Some(rendezvous), false),
            Err(error) if !self.rendezvous_failed => {
                self.rendezvous_failed = true;
                eprintln!("cannot listen for generation {}: {error}; trying again", candidate.generation);
            }
            Err(_) => {}
        }
        self.rendezvous.is_some()
    }

    /// What rank 0 decides about the group after a step.
    pub(crate) fn decide(&mut self, group: &Group, total: &Total) -> Next {
        match total.instruction {
            Instruction::Stop => return Next::Stop { wanted: true },
            Instruction::Leave => return Next::Stop { wanted: false },
            Instruction::Train => {}
        }
        let Some(candidate) = &self.candidate else { return Next::Train };
        if total.heard != Some(candidate.generation) {
            return Next::Train;
        }
        let staying = staying(candidate, group.members());
        if staying.is_empty() {
            return Next::Stop { wanted: true };
        }
        let first: Vec<_> = candidate.replicas.iter().take(staying.len()).map(member).collect();
        if !same_replicas(&staying, &first) {
            // Only one that trains can lead those who come; a scheduler that breaks its word starts the group again.
            return Next::Train;
        }
        if !same_replicas(&staying, group.members()) {
            return Next::Shrink;
        }
        let newcomers = staying.len() as u32..candidate.replicas.len() as u32;
        let met =
            newcomers.is_empty() || self.rendezvous.as_mut().is_some_and(|rendezvous| rendezvous.complete(newcomers));
        if met { Next::Grow } else { Next::Train }
    }

    /// The group without those who are not in the newest assignment; `None` if this process is one of them.
    pub(crate) fn shrink(&mut self, group: Group) -> Result<Option<ShrunkGroup>, TrainerError> {
        let Some(candidate) = self.candidate.clone() else { return Err(unprepared()) };
        let members = staying(&candidate, group.members());
        let Some(rank) = members.iter().position(|member| member.replica == self.me) else { return Ok(None) };
        let leader_stays = same_replicas(&members[..1], &group.members()[..1]);
        if rank > 0 {
            let line = match group.into_leader_line().filter(|_| leader_stays) {
                Some(line) => line,
                None => self.reconnect(&candidate, rank as u32, members[rank])?,
            };
            return Ok(Some(ShrunkGroup::Follower(line)));
        }
        let lines = if leader_stays {
            group.into_lines(&members[1..])
        } else {
            drop(group);
            self.meet_survivors(members.len() as u32)?
        };
        if members.len() == candidate.replicas.len() {
            self.settle(candidate.generation);
        }
        Ok(Some(ShrunkGroup::Leader(Group::lead(members, lines))))
    }

    /// The group with the newcomers, whose ranks start at the old world size, for rank 0.
    pub(crate) fn grow(&mut self, group: Group) -> Result<Group, TrainerError> {
        let Some(candidate) = self.candidate.clone() else { return Err(unprepared()) };
        let (before, after) = (group.world_size(), candidate.replicas.len() as u32);
        let survivors = group.members().to_vec();
        let mut lines = group.into_lines(&survivors[1..]);
        if after > before {
            let arrived = self.rendezvous.as_mut().and_then(|rendezvous| rendezvous.take(before..after));
            lines.extend(arrived.ok_or_else(unprepared)?.1);
        }
        let members = candidate.replicas.iter().map(member).collect();
        self.settle(candidate.generation);
        Ok(Group::lead(members, lines))
    }

    pub(crate) fn settle(&mut self, generation: u64) {
        self.settled = generation;
        self.candidate = None;
        self.rendezvous = None;
    }

    /// Survivors of a lost rank 0 come to the rendezvous of the next generation, too; their ranks are the first.
    fn meet_survivors(&mut self, survivors: u32) -> Result<Vec<Line>, TrainerError> {
        let deadline = Instant::now() + REGROUP_MAX;
        let rendezvous = self.rendezvous.as_mut().ok_or_else(unprepared)?;
        loop {
            if rendezvous.complete(1..survivors)
                && let Some((_, lines)) = rendezvous.take(1..survivors)
            {
                return Ok(lines);
            }
            pause(deadline)?;
        }
    }

    fn reconnect(&self, candidate: &Assignment, rank: u32, member: Member) -> Result<Line, TrainerError> {
        let deadline = Instant::now() + REGROUP_MAX;
        let hello = Hello { generation: candidate.generation, rank, member };
        let Endpoint { address, port } = candidate.endpoint().ok_or_else(unprepared)?;
        loop {
            if let Ok(line) = introduce(&address, port, &hello) {
                return Ok(line);
            }
            pause(deadline)?;
        }
    }
}

/// Those of `members` who are in the assignment, in its order.
fn staying(assignment: &Assignment, members: &[Member]) -> Vec<Member> {
    let stays = |replica: &&AssignedReplica| members.iter().any(|member| member.replica == replica.replica);
    assignment.replicas.iter().filter(stays).map(member).collect()
}

const fn member(replica: &AssignedReplica) -> Member {
    Member { replica: replica.replica, local_rank: replica.local_rank }
}

/// Their places on their nodes may differ.
fn same_replicas(some: &[Member], others: &[Member]) -> bool {
    some.iter().map(|member| member.replica).eq(others.iter().map(|member| member.replica))
}

/// Rank 0 announced a change that this process had not heard of, against its own word.
fn unprepared() -> TrainerError {
    TrainerError::Lost(io::Error::other("a change of the group came unannounced"))
}
