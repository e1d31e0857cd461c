use std::collections::BTreeMap;

use pollux_engine::{Command, Event, Generation};
use pollux_policy::{Allocation, JobId, NodeId, Timestamp};

use crate::dice::Dice;

/// Stands in for the world: the processes that really exist, and what is still to be told about them.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    pub(crate) nodes: BTreeMap<NodeId, u32>,
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
    pub(crate) generation: Generation,
    pub(crate) replicas: Allocation,
    additions_due: Allocation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    job: JobId,
    generation: Generation,
    node: NodeId,
}

impl Backend {
    pub(crate) fn carry_out(&mut self, now: Timestamp, command: &Command, dice: &mut Dice) {
        match command {
            Command::Launch { job, generation, allocation } => self.launch(now, *job, *generation, allocation, dice),
            Command::Resize { job, generation, keep, remove, add } => {
                if let Some(group) = self.groups.get_mut(job) {
                    assert!(self.lied_about || group.replicas == keep.plus(remove), "{command:?} of {group:?}");
                    *group = Group { generation: *generation, replicas: keep.clone(), additions_due: add.clone() };
                }
                self.dismiss(now, *job, *generation, remove, dice);
                self.promise_ready(now, *job, dice);
            }
            Command::Stop { job, generation, allocation, .. } => {
                let group = self.groups.remove(job);
                let known = group.is_some_and(|group| group.replicas == *allocation && group.generation == *generation);
                assert!(self.lied_about || known, "{command:?} of another group");
                self.dismiss(now, *job, *generation, allocation, dice);
            }
            Command::Refused(_) | Command::PlanRejected { .. } => {}
        }
    }

    fn launch(&mut self, now: Timestamp, job: JobId, generation: Generation, wanted: &Allocation, dice: &mut Dice) {
        if !self.lied_about {
            for (node, replicas) in wanted.iter() {
                let gpus = self.nodes.get(&node).copied().unwrap_or(0);
                let used = self.processes_on(node);
                assert!(used + replicas <= gpus, "{replicas} more of {job} on {node}, with {used} of {gpus} in use");
            }
        }
        match self.groups.get_mut(&job) {
            Some(group) => {
                assert!(self.lied_about || (group.generation == generation && group.additions_due == *wanted));
                group.replicas = group.replicas.plus(wanted);
                group.additions_due = Allocation::NONE;
            }
            None => {
                let twice = self.leaving.iter().any(|process| process.job == job);
                assert!(self.lied_about || !twice, "{job} runs twice");
                let group = Group { generation, replicas: wanted.clone(), additions_due: Allocation::NONE };
                self.groups.insert(job, group);
            }
        }
        self.promise_ready(now, job, dice);
    }

    fn dismiss(&mut self, now: Timestamp, job: JobId, generation: Generation, who: &Allocation, dice: &mut Dice) {
        for (node, replicas) in who.iter() {
            for _ in 0..replicas {
                let process = Process { job, generation, node };
                self.leaving.push(process);
                self.post(now.after_s(f64::from(dice.below(90))), released(process));
            }
        }
    }

    fn promise_ready(&mut self, now: Timestamp, job: JobId, dice: &mut Dice) {
        if let Some(group) = self.groups.get(&job).filter(|group| group.additions_due.is_empty()) {
            let event = Event::GroupReady { job, generation: group.generation, pause_s: None };
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
            if let Event::ReplicasReleased { job, generation, allocation } = &event {
                let Some((node, _)) = allocation.iter().next() else { continue };
                let process = Process { job: *job, generation: *generation, node };
                // It went with its node, and so did the word.
                let Some(idx) = self.leaving.iter().position(|leaving| *leaving == process) else { continue };
                self.leaving.swap_remove(idx);
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
        }
        self.groups.retain(|_, group| !group.replicas.is_empty());
        self.leaving.retain(|process| process.node != node);
        self.untold.retain(|process| process.node != node);
    }

    /// Starts again: tells anew whatever is outstanding.
    pub(crate) fn recover(&mut self, now: Timestamp, outstanding: &[Command], dice: &mut Dice) {
        self.lossless = true;
        self.mail.retain(|(_, event)| matches!(event, Event::ReplicasReleased { .. }));
        for process in std::mem::take(&mut self.untold) {
            self.leaving.push(process);
            self.post(now, released(process));
        }
        for command in outstanding {
            match command {
                Command::Stop { job, generation, allocation, .. } => {
                    for (node, replicas) in allocation.iter() {
                        let process = Process { job: *job, generation: *generation, node };
                        let known = self.leaving.iter().filter(|leaving| **leaving == process).count();
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

    fn processes_on(&self, node: NodeId) -> u32 {
        let running: u32 = self.groups.values().map(|group| group.replicas.replicas_on(node)).sum();
        running + u32::try_from(self.leaving.iter().filter(|process| process.node == node).count()).expect("few")
    }
}

fn released(process: Process) -> Event {
    Event::ReplicasReleased {
        job: process.job,
        generation: process.generation,
        allocation: Allocation::on(process.node, 1),
    }
}
