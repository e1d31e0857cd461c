use std::collections::BTreeMap;

use pollux_engine::{Command, Event, Revision};
use pollux_policy::{Allocation, JobId, NodeId, Timestamp};

use crate::dice::Dice;

/// Stands in for the world: the processes that really exist, each on GPUs of a node, and what is still to be told about them.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    pub(crate) nodes: BTreeMap<NodeId, u32>,
    pub(crate) gpus_per_replica: BTreeMap<JobId, u32>,
    pub(crate) groups: BTreeMap<JobId, Group>,
    leaving: Vec<Process>,
    /// Gone, but the word of it was lost.
    untold: Vec<Process>,
    /// What will be told, and when; words of one moment arrive in any order.
    mail: Vec<(Timestamp, Event)>,
    /// Whether words get lost.
    pub(crate) lossless: bool,
    /// Whether somebody else tells lies about releases, so that processes prove nothing.
    pub(crate) lied_about: bool,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) revision: Revision,
    pub(crate) replicas: Allocation,
    additions_due: Allocation,
    /// One per replica.
    seats: Vec<Seat>,
}

/// The GPUs of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seat {
    node: NodeId,
    gpus: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
struct Process {
    job: JobId,
    revision: Revision,
    seat: Seat,
}

impl Backend {
    pub(crate) fn carry_out(&mut self, now: Timestamp, command: &Command, dice: &mut Dice) {
        match command {
            Command::Launch { job, revision, allocation, guest_of } => {
                let seats = self.free_seats(*job, allocation, *guest_of);
                let enough = seats.len() == allocation.replicas() as usize;
                assert!(self.lied_about || enough, "{command:?} has only {seats:?}");
                self.launch(*job, *revision, allocation, seats);
                self.promise_ready(now, *job, dice);
            }
            Command::Resize { job, revision, keep, remove, add } => {
                let seats = self.seats_to_leave(*job, remove);
                if let Some(group) = self.groups.get_mut(job) {
                    assert!(self.lied_about || group.replicas == keep.plus(remove), "{command:?} of {group:?}");
                    (group.revision, group.replicas) = (*revision, keep.clone());
                    group.additions_due = add.clone();
                    group.seats.retain(|seat| !seats.contains(seat));
                }
                self.dismiss(now, *job, *revision, seats, dice);
                self.promise_ready(now, *job, dice);
            }
            Command::Stop { job, revision, allocation, .. } => {
                let group = self.groups.remove(job);
                let known = |group: &Group| group.replicas == *allocation && group.revision == *revision;
                assert!(self.lied_about || group.as_ref().is_some_and(known), "{command:?} of another group");
                self.dismiss(now, *job, *revision, group.map(|group| group.seats).unwrap_or_default(), dice);
            }
            Command::Refused(_) | Command::PlanRejected { .. } => {}
        }
    }

    /// GPUs for an allocation: of its own with nobody on them, or of a host with nobody beside that.
    fn free_seats(&self, job: JobId, wanted: &Allocation, guest_of: Option<JobId>) -> Vec<Seat> {
        let gpus = self.gpus_per_replica.get(&job).copied().unwrap_or(1) as usize;
        let used_by =
            |seat: &Seat, processes| seat.gpus.iter().all(|&gpu| self.processes_on(seat.node, gpu) == processes);
        let on_node = |(node, replicas): (NodeId, u32)| -> Vec<Seat> {
            let seats: Vec<Seat> = match guest_of {
                None => {
                    let all = 0..self.nodes.get(&node).copied().unwrap_or(0);
                    let free: Vec<u32> = all.filter(|&gpu| self.processes_on(node, gpu) == 0).collect();
                    free.chunks_exact(gpus).map(|gpus| Seat { node, gpus: gpus.to_vec() }).collect()
                }
                Some(host) => {
                    let seats = self.groups.get(&host).map_or(&[][..], |host| &host.seats);
                    let fits = |seat: &&Seat| seat.node == node && seat.gpus.len() == gpus && used_by(seat, 1);
                    seats.iter().filter(fits).cloned().collect()
                }
            };
            seats.into_iter().take(replicas as usize).collect()
        };
        wanted.iter().flat_map(on_node).collect()
    }

    /// GPUs that a group gives up: first those that it has for itself, so that host and guest stay together.
    fn seats_to_leave(&self, job: JobId, remove: &Allocation) -> Vec<Seat> {
        let Some(group) = self.groups.get(&job) else { return Vec::new() };
        let others = |seat: &Seat| self.groups.values().filter(|group| group.seats.contains(seat)).count();
        let on_node = |(node, replicas): (NodeId, u32)| {
            let mut seats: Vec<Seat> = group.seats.iter().filter(|seat| seat.node == node).cloned().collect();
            seats.sort_by_key(others);
            seats.truncate(replicas as usize);
            seats
        };
        remove.iter().flat_map(on_node).collect()
    }

    fn launch(&mut self, job: JobId, revision: Revision, wanted: &Allocation, seats: Vec<Seat>) {
        match self.groups.get_mut(&job) {
            Some(group) => {
                assert!(self.lied_about || (group.revision == revision && group.additions_due == *wanted));
                group.replicas = group.replicas.plus(wanted);
                group.additions_due = Allocation::NONE;
                group.seats.extend(seats);
            }
            None => {
                let twice = self.leaving.iter().any(|process| process.job == job);
                assert!(self.lied_about || !twice, "{job} runs twice");
                let group = Group { revision, replicas: wanted.clone(), additions_due: Allocation::NONE, seats };
                self.groups.insert(job, group);
            }
        }
    }

    fn dismiss(&mut self, now: Timestamp, job: JobId, revision: Revision, seats: Vec<Seat>, dice: &mut Dice) {
        for seat in seats {
            let process = Process { job, revision, seat };
            self.post(now.after_s(f64::from(dice.below(90))), released(&process));
            self.leaving.push(process);
        }
    }

    fn promise_ready(&mut self, now: Timestamp, job: JobId, dice: &mut Dice) {
        if let Some(group) = self.groups.get(&job).filter(|group| group.additions_due.is_empty()) {
            let event = Event::GroupReady { job, revision: group.revision, pause_s: None };
            self.post(now.after_s(f64::from(dice.below(60))), event);
        }
    }

    fn post(&mut self, at: Timestamp, event: Event) {
        self.mail.push((at, event));
    }

    /// The next word to be told by `now`, if any; some are lost on the way.
    pub(crate) fn deliver(&mut self, now: Timestamp, dice: &mut Dice) -> Option<Event> {
        loop {
            let due: Vec<usize> = (0..self.mail.len()).filter(|&idx| self.mail[idx].0 <= now).collect();
            let (_, event) = self.mail.swap_remove(*dice.pick(&due)?);
            let lost = !self.lossless && dice.percent(10);
            if let Event::ReplicasReleased { job, revision, allocation } = &event {
                let Some((node, _)) = allocation.iter().next() else { continue };
                // It went with its node, and so did the word.
                let Some(idx) = self.leaving.iter().position(|leaving| leaving.is(*job, *revision, node)) else {
                    continue;
                };
                let process = self.leaving.swap_remove(idx);
                if lost {
                    self.untold.push(process);
                }
            }
            if !lost {
                return Some(event);
            }
        }
    }

    pub(crate) fn next_mail(&self) -> Option<Timestamp> {
        self.mail.iter().map(|(at, _)| *at).min()
    }

    pub(crate) fn lose(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        for group in self.groups.values_mut() {
            group.replicas = group.replicas.without(node);
            group.additions_due = group.additions_due.without(node);
            group.seats.retain(|seat| seat.node != node);
        }
        self.groups.retain(|_, group| !group.replicas.is_empty());
        self.leaving.retain(|process| process.seat.node != node);
        self.untold.retain(|process| process.seat.node != node);
    }

    /// Starts again: tells anew whatever is outstanding.
    pub(crate) fn recover(&mut self, now: Timestamp, outstanding: &[Command], dice: &mut Dice) {
        self.lossless = true;
        self.mail.retain(|(_, event)| matches!(event, Event::ReplicasReleased { .. }));
        for process in std::mem::take(&mut self.untold) {
            self.post(now, released(&process));
            self.leaving.push(process);
        }
        for command in outstanding {
            match command {
                Command::Stop { job, revision, allocation, .. } => {
                    for (node, replicas) in allocation.iter() {
                        let known = self.leaving.iter().filter(|leaving| leaving.is(*job, *revision, node)).count();
                        assert_eq!(known, replicas as usize, "{command:?} of replicas that nobody dismissed");
                    }
                }
                Command::Launch { job, .. } | Command::Resize { job, .. } => self.promise_ready(now, *job, dice),
                Command::Refused(_) | Command::PlanRejected { .. } => panic!("{command:?} is never outstanding"),
            }
        }
    }

    /// Whether nothing is on its way, in or out.
    pub(crate) fn is_quiet(&self) -> bool {
        self.mail.is_empty() && self.leaving.is_empty() && self.untold.is_empty()
    }

    /// A GPU is given away again when the word is out that it is free.
    fn processes_on(&self, node: NodeId, gpu: u32) -> usize {
        let running = self.groups.values().flat_map(|group| &group.seats);
        let leaving = self.leaving.iter().chain(&self.untold).map(|process| &process.seat);
        running.chain(leaving).filter(|seat| seat.node == node && seat.gpus.contains(&gpu)).count()
    }
}

impl Process {
    fn is(&self, job: JobId, revision: Revision, node: NodeId) -> bool {
        (self.job, self.revision, self.seat.node) == (job, revision, node)
    }
}

fn released(process: &Process) -> Event {
    Event::ReplicasReleased {
        job: process.job,
        revision: process.revision,
        allocation: Allocation::on(process.seat.node, 1),
    }
}
