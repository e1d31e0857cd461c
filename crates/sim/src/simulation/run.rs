use std::collections::{BTreeSet, VecDeque};

use pollux_engine::{Command, Engine, EngineSettings, Event, StopReason};
use pollux_job::{JobSpec as EngineJobSpec, Work};
use pollux_model::BatchMode;
use pollux_policy::{Allocation, JobId, NodeId, Sharing, Timestamp};

use super::autoscaling::Scaling;
use super::error::SimulationError;
use super::halving::Halving;
use super::job::SimJob;
use super::oracle::Oracles;
use super::outcome::{ClusterSample, RunOutcome};
use super::queue::{Queue, SimEvent};
use super::requests::{batch_mode, check_request, replicas_max};
use super::settings::SimulationSettings;
use crate::{ApplicationSet, JobSpec, SimRng, Workload};

/// Up to this many live jobs the engine's invariants are checked after every step.
const CHECKED_JOBS_MAX: usize = 256;
/// Centuries: a simulation that gets here will never end.
const TIME_MAX: Timestamp = Timestamp(10_000_000_000_000);

pub(super) const TIME_MAX_YEARS: u64 = TIME_MAX.0 / 31_536_000_000;

/// Runs a workload to its end. `progress` is told the jobs finished so far.
pub fn simulate(
    settings: &SimulationSettings,
    applications: &ApplicationSet,
    workload: &Workload,
    progress: &mut dyn FnMut(usize),
) -> Result<RunOutcome, SimulationError> {
    let mut world = World::new(settings, applications, workload)?;
    world.run(progress)?;
    Ok(world.outcome(workload))
}

/// The world around the engine.
pub(super) struct World<'a> {
    pub(super) settings: &'a SimulationSettings,
    pub(super) engine: Engine,
    pub(super) now: Timestamp,
    pub(super) queue: Queue,
    /// What users submit, job by job, where it is a workload that is simulated.
    pub(super) specs: &'a [JobSpec],
    /// By number.
    pub(super) jobs: Vec<SimJob<'a>>,
    pub(super) modes: Vec<BatchMode>,
    /// The engine's number and the size of each node; a node that comes back has a new number.
    pub(super) nodes: Vec<(NodeId, u32)>,
    pub(super) failures: SimRng,
    /// How GPUs are shared, once any is.
    pub(super) sharing: Option<Sharing>,
    /// Where nodes come and go.
    pub(super) scaling: Option<Scaling>,
    /// Where jobs are the trials of a sweep.
    pub(super) halving: Option<Halving>,
    /// Where the policy needs them.
    oracles: Option<Oracles>,
    /// Jobs submitted and not finished.
    pub(super) live: BTreeSet<usize>,
    pub(super) unfinished: usize,
    pub(super) out: Vec<Command>,
    pub(super) samples: Vec<ClusterSample>,
    pub(super) plan_error: Option<String>,
}

impl<'a> World<'a> {
    /// Refuses settings that make no sense and jobs that could never run.
    pub(super) fn new(
        settings: &'a SimulationSettings,
        applications: &'a ApplicationSet,
        workload: &'a Workload,
    ) -> Result<Self, SimulationError> {
        settings.check()?;
        let first = workload.jobs().first().map_or(Timestamp(0), submission);
        let scaling =
            settings.autoscale.map(|autoscale| Scaling::new(autoscale, &settings.policy, first)).transpose()?;
        for job in workload.jobs() {
            check_request(job, settings, applications)?;
        }
        let engine_settings = EngineSettings {
            round_interval_s: settings.interval_s,
            round_gap_min_s: settings.interval_s.min(EngineSettings::default().round_gap_min_s),
            restart_cost_default_s: settings.restart_delay_s,
            // Nothing hangs here, so a long restart is only that.
            settle_timeout_s: EngineSettings::default().settle_timeout_s.max(2.0 * settings.restart_delay_s),
            ended_jobs_max: workload.jobs().len(),
            live_jobs_max: workload.jobs().len(),
            ..EngineSettings::default()
        };
        let modes: Vec<BatchMode> =
            workload.jobs().iter().map(|job| batch_mode(job, settings.policy.adapts_batches())).collect();
        let jobs = workload.jobs().iter().zip(&modes).enumerate();
        let jobs = jobs
            .map(|(idx, (job, &mode))| SimJob::new(id_of(idx), applications.get(job.application), mode, settings))
            .collect();
        let engine = Engine::new(engine_settings, &settings.policy)?;
        let mut world = Self {
            specs: workload.jobs(),
            modes,
            scaling,
            oracles: settings.policy.needs_oracle().then(|| Oracles::new(settings.node_gpus())),
            unfinished: workload.jobs().len(),
            ..Self::around(engine, settings, jobs)
        };
        for (idx, job) in workload.jobs().iter().enumerate() {
            world.queue.push(submission(job), SimEvent::Submitted { job: idx });
        }
        for gpus in settings.first_node_gpus() {
            world.add_node(gpus);
        }
        world.look_again();
        Ok(world)
    }

    /// Around an engine as it is, in which nothing happens by itself yet.
    pub(super) fn around(engine: Engine, settings: &'a SimulationSettings, jobs: Vec<SimJob<'a>>) -> Self {
        Self {
            settings,
            now: engine.now(),
            engine,
            queue: Queue::default(),
            specs: &[],
            jobs,
            modes: Vec::new(),
            nodes: Vec::new(),
            failures: SimRng::new(settings.failures.seed),
            sharing: None,
            scaling: None,
            halving: None,
            oracles: None,
            live: BTreeSet::new(),
            unfinished: 0,
            out: Vec::new(),
            samples: Vec::new(),
            plan_error: None,
        }
    }

    pub(super) fn run(&mut self, progress: &mut dyn FnMut(usize)) -> Result<(), SimulationError> {
        while self.unfinished > 0 {
            let before = self.unfinished;
            self.turn()?;
            if self.unfinished < before {
                progress(self.jobs.len() - self.unfinished);
            }
        }
        Ok(())
    }

    /// Lets the next thing happen.
    pub(super) fn turn(&mut self) -> Result<(), SimulationError> {
        match (self.queue.peek(), self.engine.next_wakeup()) {
            (Some((at, event)), Some(tick)) if !comes_first(at, event, tick) => self.tick(tick),
            (None, Some(tick)) => self.tick(tick),
            (Some(_), _) => self.happen(),
            (None, None) => return Err(SimulationError::Endless { left: self.unfinished }),
        }
        self.give_back();
        match self.plan_error.take() {
            Some(error) => Err(SimulationError::Plan(error)),
            None if self.now > TIME_MAX => Err(SimulationError::Endless { left: self.unfinished }),
            None => Ok(()),
        }
    }

    fn happen(&mut self) {
        let Some((at, event)) = self.queue.pop() else { return };
        self.now = self.now.max(at);
        match event {
            SimEvent::EpochEnds { job, changes } | SimEvent::EpochEndsAfterRound { job, changes } => {
                if self.jobs[job].changes == changes {
                    self.end_epoch(job);
                }
            }
            SimEvent::GroupReady { job, revision, pause_ms } => {
                // A group that was stopped or lost with its nodes never gets ready.
                if self.jobs[job].revision == revision && !self.jobs[job].allocation.is_empty() {
                    self.begin(job, self.now);
                    let pause_s = Some(Timestamp(pause_ms).as_s());
                    self.deliver(Event::GroupReady { job: self.jobs[job].id, revision, pause_s });
                    self.interfere();
                }
            }
            SimEvent::Submitted { job } => self.submit(job),
            SimEvent::NodeFails { node } => self.fail(node),
            SimEvent::NodeReturns { node } => self.join(node),
            SimEvent::NodeArrives { order } => self.arrive(order),
            SimEvent::Scales => self.scale(),
        }
    }

    fn tick(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
        let training: Vec<usize> = self.live.iter().copied().filter(|&job| self.jobs[job].is_training()).collect();
        for job in training {
            self.jobs[job].advance(self.now);
            if self.jobs[job].retune(self.now) {
                self.predict(job);
            }
            let (id, revision) = (self.jobs[job].id, self.jobs[job].revision);
            if let Some(report) = self.jobs[job].report() {
                self.deliver(Event::Report { job: id, revision, report });
            }
        }
        if let Some(mut oracles) = self.oracles.take() {
            for job in self.live.clone() {
                let oracle = oracles.of(&self.jobs[job], self.specs[job].requested_batch);
                self.deliver(Event::OracleSpoke { job: self.jobs[job].id, oracle });
            }
            self.oracles = Some(oracles);
        }
        self.deliver(Event::Tick);
        self.interfere();
    }

    /// A group trains since a moment, which may be past.
    pub(super) fn begin(&mut self, job: usize, since: Timestamp) {
        let shares = self.shares(job);
        let node = self.jobs[job].allocation.iter().next().and_then(|(node, _)| self.engine.node(node));
        let gpu_type = node.and_then(|node| self.engine.gpu_type_name(node.gpu_type())).cloned();
        self.jobs[job].begin(since, &gpu_type.unwrap_or_default(), shares);
        self.predict(job);
    }

    fn submit(&mut self, job: usize) {
        let workload_job = &self.specs[job];
        let application = self.jobs[job].application;
        let replicas_max = replicas_max(self.settings, workload_job);
        let spec = EngineJobSpec {
            replicas: workload_job.requested_replicas.min(replicas_max),
            replicas_max: Some(replicas_max),
            batch_size: Some(workload_job.requested_batch),
            work: self.settings.declare_epochs.then(|| Work::Epochs(application.epochs())),
            ..EngineJobSpec::new(&workload_job.name, 1)
        };
        self.live.insert(job);
        self.deliver(Event::JobSubmitted { job: self.jobs[job].id, spec });
    }

    fn end_epoch(&mut self, job: usize) {
        self.jobs[job].end_epoch(self.now);
        let epochs = self.jobs[job].epochs();
        let wishes = self.halving.as_mut().map_or_else(Vec::new, |halving| halving.end_epoch(job, epochs, self.now));
        if self.jobs[job].is_complete() {
            self.jobs[job].halt(self.now);
            self.leave(job);
            let (id, revision) = (self.jobs[job].id, self.jobs[job].revision);
            self.deliver(Event::JobSucceeded { job: id, revision });
            self.interfere();
        } else {
            self.predict(job);
            self.interfere();
        }
        for wish in wishes {
            if let Event::Cancel { job } = wish {
                self.leave(self.index_of(job));
            }
            self.deliver(wish);
            self.interfere();
        }
    }

    /// Nothing will happen to a job any more.
    fn leave(&mut self, job: usize) {
        self.jobs[job].finished = Some(self.now);
        self.live.remove(&job);
        self.unfinished -= 1;
    }

    /// Puts the end of the job's current epoch on the calendar.
    pub(super) fn predict(&mut self, job: usize) {
        self.sample_job(job);
        let changes = self.jobs[job].changes;
        if let Some(end) = self.jobs[job].next_epoch_end() {
            let event = if end.early {
                SimEvent::EpochEndsAfterRound { job, changes }
            } else {
                SimEvent::EpochEnds { job, changes }
            };
            self.queue.push(end.at, event);
        }
    }

    /// Tells the engine and does what it says, until it says nothing more.
    pub(super) fn deliver(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let tick = event == Event::Tick;
            let mut out = std::mem::take(&mut self.out);
            self.engine.step(self.now, event, &mut out);
            for command in out.drain(..) {
                self.apply(command, &mut events);
            }
            self.out = out;
            // It looks at everything, so a large world is looked at once a round.
            if tick || self.live.len() <= CHECKED_JOBS_MAX {
                self.engine.check_invariants();
            }
        }
        self.sample_cluster();
    }

    pub(super) fn apply(&mut self, command: Command, events: &mut VecDeque<Event>) {
        match command {
            Command::Launch { job, revision, allocation, guest_of } => {
                if guest_of.is_some() {
                    self.sharing = Some(self.settings.policy.sharing());
                }
                let idx = self.index_of(job);
                let sim_job = &mut self.jobs[idx];
                let mut pause_s = sim_job.restart_s;
                if sim_job.revision == revision {
                    sim_job.awaited = sim_job.awaited.minus(&allocation);
                } else {
                    if std::mem::take(&mut sim_job.suspended) == allocation {
                        pause_s = self.settings.resume_delay_s.unwrap_or(pause_s);
                    }
                    (sim_job.revision, sim_job.allocation) = (revision, allocation);
                    sim_job.awaited = Allocation::NONE;
                }
                self.prepare(idx, pause_s);
            }
            Command::Resize { job, revision, keep, remove, add } => {
                let idx = self.index_of(job);
                let sim_job = &mut self.jobs[idx];
                sim_job.halt(self.now);
                (sim_job.revision, sim_job.allocation) = (revision, keep.plus(&add));
                sim_job.awaited = add;
                if !remove.is_empty() {
                    events.push_back(Event::ReplicasReleased { job, revision, allocation: remove });
                }
                let pause_s = sim_job.restart_s;
                self.prepare(idx, pause_s);
            }
            Command::Stop { job, revision, allocation, why } => {
                let idx = self.index_of(job);
                match why {
                    StopReason::Failed | StopReason::NodeLost => self.jobs[idx].crash(self.now),
                    StopReason::Preempted => {
                        self.jobs[idx].halt(self.now);
                        self.jobs[idx].suspended = allocation.clone();
                    }
                    StopReason::Moved
                    | StopReason::Resized
                    | StopReason::Paused
                    | StopReason::TimeLimit
                    | StopReason::Cancelled
                    | StopReason::Succeeded => self.jobs[idx].halt(self.now),
                }
                self.jobs[idx].allocation = Allocation::NONE;
                self.sample_job(idx);
                events.push_back(Event::ReplicasReleased { job, revision, allocation });
            }
            Command::Refused(refusal) => self.plan_error = Some(refusal.to_string()),
            Command::PlanRejected { error } => self.plan_error = Some(error.to_string()),
        }
    }

    pub(super) fn index_of(&self, id: JobId) -> usize {
        let idx = self.jobs.binary_search_by_key(&id, |job| job.id);
        idx.expect("the engine knows only jobs of this world")
    }

    /// A group that is complete trains after a pause.
    fn prepare(&mut self, job: usize, pause_s: f64) {
        self.sample_job(job);
        if self.jobs[job].awaited.is_empty() {
            let revision = self.jobs[job].revision;
            let ready = self.now.after_s(pause_s);
            let pause_ms = ready.0 - self.now.0;
            self.queue.push(ready, SimEvent::GroupReady { job, revision, pause_ms });
        }
    }
}

/// Whether an event is due before the engine's tick.
fn comes_first(at: Timestamp, event: SimEvent, tick: Timestamp) -> bool {
    at < tick || (at == tick && !matches!(event, SimEvent::EpochEndsAfterRound { .. }))
}

const fn submission(job: &JobSpec) -> Timestamp {
    Timestamp(job.submitted_s * 1000)
}

/// The number of a job of a workload.
pub(super) fn id_of(job: usize) -> JobId {
    JobId(job as u64)
}
