//! A script played on the live scheduler: its clock is moved by hand, its workers are what the simulator trains.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::Path;
use std::time::Duration;

use pollux_api::{Assignment, AssignmentState, ReadyRequest, ReportRequest};
use pollux_backend::{Exit, NodeInfo};
use pollux_job::JobSpec;
use pollux_model::{BatchMode, GpuTypeName};
use pollux_policy::{Allocation, JobId, NodeId, Sharing, Timestamp};
use pollux_server::{Action, Handle, ManualClock, NodeAction, Server, ServerSettings};
use pollux_sim::{
    ApplicationSet, NodeGroup, PlannedRound, PlannedShare, Script, ScriptedEvent, Trainee, shared_speeds,
};

use crate::world::{World, request};

/// What workers and the world do, in the order in which it counts when several happen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LiveEvent {
    EpochEnds { job: usize, stamp: u64 },
    Ready { job: usize, generation: u64, pause_ms: u64 },
    AdditionsUp { job: usize, generation: u64 },
    ReplicaFails { job: usize, generation: u64 },
    Submitted { job: usize },
    Line { line: usize },
    EpochEndsAfterRound { job: usize, stamp: u64 },
}

/// The workers of a job.
struct Group<'a> {
    id: Option<JobId>,
    trainee: Trainee<'a>,
    generation: u64,
    /// Replicas with the nodes they are on; none while it waits.
    members: BTreeMap<u64, usize>,
    gpu_type: GpuTypeName,
    /// Counts predictions, so that an old one is known to be void.
    stamp: u64,
    /// Whether what it had not saved is lost.
    crashed: bool,
    over: bool,
}

pub(crate) struct Live<'a> {
    script: &'a Script,
    world: World,
    server: Server,
    clock: ManualClock,
    now: Timestamp,
    queue: BinaryHeap<Reverse<(Timestamp, LiveEvent, u64)>>,
    pushed: u64,
    groups: Vec<Group<'a>>,
    nodes: usize,
    rounds: Vec<PlannedRound>,
}

/// Plays a script on a live scheduler until all of its jobs are over, or `until`; returns what its rounds decided.
pub(crate) fn play(
    script: &Script,
    applications: &ApplicationSet,
    folder: &Path,
    until: Timestamp,
) -> Vec<PlannedRound> {
    let mut live = Live::start(script, applications, folder);
    while live.groups.iter().any(|group| !group.over) && live.now < until {
        let wakeup = live.handle().look(|cluster| cluster.engine().next_wakeup()).wait().unwrap();
        let next = live.queue.peek().map(|Reverse((at, event, _))| (*at, *event));
        match (next, wakeup) {
            (Some((at, event)), Some(tick)) if !comes_first(at, event, tick) => live.tick(tick),
            (None, Some(tick)) => live.tick(tick),
            (Some(_), _) => live.next_event(),
            (None, None) => panic!("nothing happens any more"),
        }
    }
    live.world.check();
    live.handle().shut_down().wait().unwrap();
    live.server.join().unwrap();
    live.rounds
}

fn comes_first(at: Timestamp, event: LiveEvent, tick: Timestamp) -> bool {
    at < tick || (at == tick && !matches!(event, LiveEvent::EpochEndsAfterRound { .. }))
}

fn name_of(node: usize) -> String {
    format!("gpu-{node:02}")
}

impl<'a> Live<'a> {
    fn start(script: &'a Script, applications: &'a ApplicationSet, folder: &Path) -> Self {
        let clock = ManualClock::default();
        let settings = ServerSettings {
            engine: script.settings.engine(script.jobs.len()),
            clock: Some(clock.clone()),
            // Workers of a script always speak.
            silence: Duration::from_secs(1_000_000),
            ..ServerSettings::new(folder, "http://127.0.0.1:7878", script.settings.policy.clone())
        };
        let world = World::new(&[]);
        let server = world.serve(settings);
        let group = |job: &pollux_sim::ScriptedJob| Group {
            id: None,
            trainee: Trainee::new(applications, job.application, BatchMode::Adaptive, &script.settings),
            generation: 0,
            members: BTreeMap::new(),
            gpu_type: GpuTypeName::default(),
            stamp: 0,
            crashed: false,
            over: false,
        };
        let mut live = Self {
            script,
            world,
            server,
            clock,
            now: Timestamp(0),
            queue: BinaryHeap::new(),
            pushed: 0,
            groups: script.jobs.iter().map(group).collect(),
            nodes: 0,
            rounds: Vec::new(),
        };
        for (job, scripted) in script.jobs.iter().enumerate() {
            live.push(scripted.submitted, LiveEvent::Submitted { job });
        }
        for (line, &(at, _)) in script.lines.iter().enumerate() {
            live.push(at, LiveEvent::Line { line });
        }
        for node in script.settings.cluster.nodes() {
            live.join_node(node);
        }
        live.settle();
        live
    }

    fn handle(&self) -> &Handle {
        self.server.handle()
    }

    fn push(&mut self, at: Timestamp, event: LiveEvent) {
        self.pushed += 1;
        self.queue.push(Reverse((at, event, self.pushed)));
    }

    fn join_node(&mut self, node: &NodeGroup) {
        let NodeGroup { gpus, cpus, memory, .. } = *node;
        let gpu_type = node.gpu_type.clone().unwrap_or_else(|| GpuTypeName::default().to_string());
        let name = name_of(self.nodes);
        self.world.join(NodeInfo { name: name.clone(), gpus, gpu_type, cpus, memory, address: name, end: None });
        self.nodes += 1;
        self.settle();
    }

    /// Waits until the scheduler has done all that follows from what it was told.
    fn settle(&self) {
        let look = || self.handle().look(|cluster| (cluster.journal_records(), cluster.last_event())).wait().unwrap();
        let mut before = look();
        loop {
            let after = look();
            if after == before {
                return;
            }
            before = after;
        }
    }

    fn next_event(&mut self) {
        let Some(Reverse((at, event, _))) = self.queue.pop() else { return };
        self.now = self.now.max(at);
        self.clock.set(self.now);
        match event {
            LiveEvent::EpochEnds { job, stamp } | LiveEvent::EpochEndsAfterRound { job, stamp } => {
                if self.groups[job].stamp == stamp {
                    self.end_epoch(job);
                }
            }
            LiveEvent::Ready { job, generation, pause_ms } => self.ready(job, generation, pause_ms),
            LiveEvent::AdditionsUp { job, generation } => {
                if self.groups[job].generation == generation && !self.groups[job].members.is_empty() {
                    self.groups[job].trainee.halt(self.now);
                    self.prepare(job, self.script.settings.resize_delay_s.unwrap());
                }
            }
            LiveEvent::ReplicaFails { job, generation } => {
                let group = &mut self.groups[job];
                let first = group.members.iter().min_by_key(|&(&replica, &node)| (node, replica));
                if let Some((&replica, _)) = first.filter(|_| group.generation == generation) {
                    group.crashed = true;
                    self.world.exit(replica, Exit::Code(1));
                }
            }
            LiveEvent::Submitted { job } => {
                let scripted = &self.script.jobs[job];
                let JobSpec { command, working_dir, .. } = request("scripted", 1);
                let mut spec = JobSpec { command, working_dir, ..scripted.spec.clone() };
                // The script counts jobs from 0.
                for dependency in &mut spec.depends_on {
                    dependency.job = self.groups[dependency.job.0 as usize].id.unwrap();
                }
                self.groups[job].id = Some(self.handle().submit(spec).wait().unwrap());
            }
            LiveEvent::Line { line } => self.follow(&self.script.lines[line].1.clone()),
        }
        self.sync();
        self.interfere();
    }

    fn follow(&mut self, event: &ScriptedEvent) {
        match *event {
            ScriptedEvent::Join { ref node } => self.join_node(node),
            ScriptedEvent::Lose { node } => {
                for group in &mut self.groups {
                    if group.members.values().any(|&on| on == node) {
                        group.trainee.crash(self.now);
                        group.stamp += 1;
                        group.crashed = true;
                        group.members.retain(|_, on| *on != node);
                    }
                }
                self.world.set_node(&name_of(node), None);
            }
            ScriptedEvent::Drain { node } => {
                self.handle().act_on_node(&name_of(node), NodeAction::Drain).wait().unwrap();
            }
            ScriptedEvent::Undrain { node } => {
                self.handle().act_on_node(&name_of(node), NodeAction::Undrain).wait().unwrap();
            }
            ScriptedEvent::Pause { job } => self.act(job, Action::Pause),
            ScriptedEvent::Resume { job } => self.act(job, Action::Resume),
        }
    }

    fn act(&self, job: usize, action: Action) {
        self.handle().act(self.groups[job].id.unwrap(), action).wait().unwrap();
    }

    fn ready(&mut self, job: usize, generation: u64, pause_ms: u64) {
        let shares = self.shares(job);
        let group = &mut self.groups[job];
        if group.generation != generation || group.members.is_empty() {
            return;
        }
        let allocation = allocation(group.members.values().copied());
        group.trainee.begin(self.now, allocation, &group.gpu_type, shares);
        let pause_s = Some(Timestamp(pause_ms).as_s());
        let id = group.id.unwrap();
        self.predict(job);
        self.handle().ready(id, ReadyRequest { generation, pause_s }).wait().unwrap();
    }

    fn end_epoch(&mut self, job: usize) {
        let group = &mut self.groups[job];
        if !group.trainee.end_epoch(self.now) {
            return self.predict(job);
        }
        group.trainee.halt(self.now);
        for replica in group.members.keys().rev() {
            self.world.exit(*replica, Exit::Code(0));
        }
    }

    /// Everybody who trains reports, and a round is held.
    fn tick(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
        self.clock.set(self.now);
        for job in 0..self.groups.len() {
            let group = &mut self.groups[job];
            if group.over || !group.trainee.is_training() {
                continue;
            }
            let (report, is_retuned) = group.trainee.report(self.now);
            let (id, generation) = (group.id.unwrap(), group.generation);
            if is_retuned {
                self.predict(job);
            }
            if let Some(report) = report {
                self.handle().report(id, ReportRequest { generation, report }).wait().unwrap();
            }
        }
        let last_round = |live: &Self| live.handle().look(|cluster| cluster.engine().last_round()).wait().unwrap();
        let before = last_round(self);
        self.clock.let_rounds();
        if last_round(self) != before {
            self.note_round();
        }
        self.sync();
        self.interfere();
    }

    fn note_round(&mut self) {
        let numbers: BTreeMap<JobId, usize> =
            self.groups.iter().enumerate().filter_map(|(job, group)| Some((group.id?, job))).collect();
        let round = self.handle().look(move |cluster| {
            let (at, plan) = cluster.engine().last_plan().expect("there was a round");
            let given = plan.assignments.iter().filter(|assignment| !assignment.allocation.is_empty());
            let mut shares: Vec<PlannedShare> = given
                .map(|assignment| PlannedShare {
                    job: numbers[&assignment.job],
                    places: assignment.allocation.iter().map(|(node, count)| (node.0 as usize, count)).collect(),
                    guest_of: assignment.guest_of.map(|host| numbers[&host]),
                })
                .collect();
            shares.sort_by_key(|share| share.job);
            PlannedRound { at, shares }
        });
        self.rounds.push(round.wait().unwrap());
    }

    /// Workers find out what the scheduler has decided about them.
    fn sync(&mut self) {
        self.settle();
        for job in 0..self.groups.len() {
            let Some(id) = self.groups[job].id.filter(|_| !self.groups[job].over) else { continue };
            let assignment = self.handle().assignment(id).map(|watch| watch.borrow().clone());
            let alive = self.handle().look(move |cluster| cluster.engine().job(id).is_some()).wait().unwrap();
            match assignment.filter(|assignment| assignment.state == AssignmentState::Run) {
                Some(assignment) if alive => self.regroup(job, &assignment),
                Some(_) | None => self.disband(job, alive),
            }
        }
    }

    fn disband(&mut self, job: usize, alive: bool) {
        let group = &mut self.groups[job];
        group.over = !alive;
        if std::mem::take(&mut group.members).is_empty() && !group.trainee.is_training() {
            group.crashed = false;
            return;
        }
        group.stamp += 1;
        if std::mem::take(&mut group.crashed) {
            group.trainee.crash(self.now);
        } else {
            group.trainee.halt(self.now);
        }
    }

    fn regroup(&mut self, job: usize, assignment: &Assignment) {
        if assignment.generation == self.groups[job].generation {
            return;
        }
        let number = |name: &str| -> usize { name.trim_start_matches("gpu-").parse().unwrap() };
        let members: BTreeMap<u64, usize> =
            assignment.replicas.iter().map(|replica| (replica.replica, number(&replica.node))).collect();
        let shares = self.shares(job);
        let group = &mut self.groups[job];
        group.crashed = false;
        group.generation = assignment.generation;
        group.gpu_type = assignment.replicas.first().map(|replica| replica.gpu_type.clone()).unwrap_or_default();
        let before: BTreeSet<u64> = std::mem::replace(&mut group.members, members.clone()).into_keys().collect();
        let kept: Vec<usize> =
            members.iter().filter(|(replica, _)| before.contains(replica)).map(|(_, &node)| node).collect();
        let settings = &self.script.settings;
        if kept.is_empty() {
            if group.trainee.is_training() {
                group.trainee.halt(self.now); // It moves.
            }
            group.trainee.set_mode(assignment.batch);
            if let Some(after_s) = self.script.jobs[job].fails_after_s {
                let generation = assignment.generation;
                self.push(self.now.after_s(after_s), LiveEvent::ReplicaFails { job, generation });
            }
            return self.prepare(job, settings.restart_delay_s);
        }
        let resize_delay_s = settings.resize_delay_s.expect("live groups are resized in place");
        let grows = members.len() > kept.len();
        let shrinks = before.len() > kept.len();
        let trains_on = group.trainee.is_training() && grows;
        if !trains_on || shrinks {
            group.trainee.halt(self.now);
            group.stamp += 1;
        }
        if trains_on && shrinks {
            group.trainee.begin(self.now, allocation(kept.into_iter()), &group.gpu_type, shares);
            self.predict(job);
        }
        if grows {
            let generation = assignment.generation;
            let up = self.now.after_s(settings.restart_delay_s);
            self.push(up, LiveEvent::AdditionsUp { job, generation });
        } else {
            self.prepare(job, resize_delay_s);
        }
    }

    /// A group that is complete trains after a pause.
    fn prepare(&mut self, job: usize, pause_s: f64) {
        let ready = self.now.after_s(pause_s);
        let (generation, pause_ms) = (self.groups[job].generation, ready.0 - self.now.0);
        self.groups[job].stamp += 1;
        self.push(ready, LiveEvent::Ready { job, generation, pause_ms });
    }

    fn predict(&mut self, job: usize) {
        let group = &mut self.groups[job];
        group.stamp += 1;
        let stamp = group.stamp;
        match group.trainee.next_epoch_end() {
            Some((at, true)) => self.push(at, LiveEvent::EpochEndsAfterRound { job, stamp }),
            Some((at, false)) => self.push(at, LiveEvent::EpochEnds { job, stamp }),
            None => {}
        }
    }

    /// Whether another job trains on GPUs of this one.
    fn shares(&self, job: usize) -> bool {
        let trains = |job: usize| self.groups[job].trainee.is_training();
        let mut partners = self.partners().into_iter();
        partners.any(|(host, guest)| (host == job && trains(guest)) || (guest == job && trains(host)))
    }

    /// Hosts with their guests, as the backend was told.
    fn partners(&self) -> Vec<(usize, usize)> {
        let running = self.world.running();
        let owners: BTreeMap<u64, JobId> = running.iter().map(|order| (order.replica.0, order.job)).collect();
        let number = |id: JobId| self.groups.iter().position(|group| group.id == Some(id));
        let pairs: BTreeSet<(usize, usize)> = running
            .iter()
            .filter_map(|order| {
                let host = owners.get(&order.shares_with?.0)?;
                Some((number(*host)?, number(order.job)?))
            })
            .collect();
        pairs.into_iter().collect()
    }

    /// Jobs on the same GPUs slow each other down, as in the simulator.
    fn interfere(&mut self) {
        let sharing: Sharing = self.script.settings.policy.sharing();
        let mut speeds: BTreeMap<usize, f64> = BTreeMap::new();
        for (host, guest) in self.partners() {
            let duties = self.groups[host].trainee.duty().zip(self.groups[guest].trainee.duty());
            if let Some((of_host, of_guest)) = duties {
                let [host_speed, guest_speed] = shared_speeds(sharing, of_host, of_guest);
                speeds.extend([(host, host_speed), (guest, guest_speed)]);
            }
        }
        for job in 0..self.groups.len() {
            if self.groups[job].trainee.set_shared_speed(self.now, speeds.get(&job).copied()) {
                self.predict(job);
            }
        }
    }
}

fn allocation(nodes: impl Iterator<Item = usize>) -> Allocation {
    nodes.map(|node| (NodeId(node as u32), 1)).collect()
}
