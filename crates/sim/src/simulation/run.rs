use std::collections::{BTreeSet, VecDeque};

use pollux_engine::{Command, Engine, Event, JobState};
use pollux_job::{After, Dependency, JobSpec};
use pollux_model::BatchMode;
use pollux_policy::{JobId, NodeId, Sharing, Timestamp};

use super::autoscaling::{Meter, Scaling};
use super::error::SimulationError;
use super::halving::Halving;
use super::job::SimJob;
use super::oracle::Oracles;
use super::outcome::{ClusterSample, RunOutcome};
use super::queue::{Queue, SimEvent};
use super::requests::{batch_mode, check_request, check_types, submitted_spec};
use super::script::Stage;
use super::settings::{Pool, SimulationSettings};
use crate::{ApplicationSet, NodeGroup, SimRng, Workload, WorkloadJob};

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
    /// The workload, where it is one that is simulated.
    pub(super) specs: &'a [WorkloadJob],
    /// What users submit, by number.
    pub(super) submissions: Vec<JobSpec>,
    /// By number.
    pub(super) jobs: Vec<SimJob<'a>>,
    pub(super) modes: Vec<BatchMode>,
    /// The engine's number of each node and what it is like; a node that comes back has a new number.
    pub(super) nodes: Vec<(NodeId, &'a NodeGroup)>,
    pub(super) failures: SimRng,
    /// How GPUs are shared, once any is.
    pub(super) sharing: Option<Sharing>,
    /// Where nodes come and go.
    pub(super) scaling: Option<Scaling>,
    /// What nodes cost, where they come and go or are there for a time.
    pub(super) meter: Option<Meter>,
    /// Where jobs are the trials of a sweep.
    pub(super) halving: Option<Halving>,
    /// Where the policy needs them.
    oracles: Option<Oracles>,
    /// Jobs submitted and not finished.
    pub(super) live: BTreeSet<usize>,
    /// Jobs whose end is waited for.
    pub(super) awaited: BTreeSet<usize>,
    /// Jobs that the engine has put aside because they ended, and that have left.
    left: usize,
    pub(super) out: Vec<Command>,
    pub(super) samples: Vec<ClusterSample>,
    pub(super) plan_error: Option<String>,
    /// Where a script is played.
    pub(super) stage: Option<Stage<'a>>,
}

impl<'a> World<'a> {
    /// Refuses settings that make no sense and jobs that could never run.
    pub(super) fn new(
        settings: &'a SimulationSettings,
        applications: &'a ApplicationSet,
        workload: &'a Workload,
    ) -> Result<Self, SimulationError> {
        settings.check()?;
        check_types(settings, applications)?;
        let first = workload.jobs().first().map_or(Timestamp(0), submission);
        let scaling = settings.autoscale.map(|autoscale| Scaling::new(autoscale, &settings.policy)).transpose()?;
        let comes_and_goes = scaling.is_some() || settings.cluster.has_lifetimes();
        for job in workload.jobs() {
            check_request(job, settings, applications)?;
        }
        let engine_settings = settings.engine(workload.jobs().len());
        let modes: Vec<BatchMode> =
            workload.jobs().iter().map(|job| batch_mode(job, settings.policy.adapts_batches())).collect();
        let jobs = workload.jobs().iter().zip(&modes).enumerate();
        let jobs = jobs
            .map(|(idx, (job, &mode))| SimJob::new(id_of(idx), applications.get(job.application), mode, settings))
            .zip(workload.jobs())
            .map(|(sim_job, job)| sim_job.on_types(applications.on_types(job.application), settings))
            .collect();
        let engine = Engine::new(engine_settings, &settings.policy)?;
        let mut world = Self {
            specs: workload.jobs(),
            submissions: workload.jobs().iter().map(|job| submitted_spec(job, settings, applications)).collect(),
            modes,
            scaling,
            meter: comes_and_goes.then(|| Meter::from(first)),
            awaited: (0..workload.jobs().len()).collect(),
            ..Self::around(engine, settings, jobs)
        };
        for (idx, job) in workload.jobs().iter().enumerate() {
            world.queue.push(submission(job), SimEvent::Submitted { job: idx });
        }
        for node in settings.first_nodes() {
            world.add_node(node);
        }
        world.begin_first_lives();
        world.look_again();
        Ok(world)
    }

    /// Around an engine as it is, in which nothing happens by itself yet.
    pub(super) fn around(engine: Engine, settings: &'a SimulationSettings, jobs: Vec<SimJob<'a>>) -> Self {
        let left = engine.ended_jobs().len();
        Self {
            settings,
            now: engine.now(),
            engine,
            queue: Queue::default(),
            specs: &[],
            submissions: Vec::new(),
            jobs,
            modes: Vec::new(),
            nodes: Vec::new(),
            failures: SimRng::new(settings.failures.seed),
            sharing: None,
            scaling: None,
            meter: None,
            halving: None,
            oracles: settings.policy.needs_oracle().then(Oracles::default),
            live: BTreeSet::new(),
            awaited: BTreeSet::new(),
            left,
            out: Vec::new(),
            samples: Vec::new(),
            plan_error: None,
            stage: None,
        }
    }

    pub(super) fn run(&mut self, progress: &mut dyn FnMut(usize)) -> Result<(), SimulationError> {
        while !self.awaited.is_empty() {
            let before = self.awaited.len();
            self.turn()?;
            if self.awaited.len() < before {
                progress(self.jobs.len() - self.awaited.len());
            }
        }
        Ok(())
    }

    /// Lets the next thing happen.
    pub(super) fn turn(&mut self) -> Result<(), SimulationError> {
        match (self.queue.peek(), self.engine.next_wakeup()) {
            (Some((at, event)), Some(tick)) if !comes_first(at, event, tick) => self.tick(tick),
            (None, Some(tick)) => self.tick(tick),
            (Some(_), _) => self.next_event(),
            (None, None) => return Err(SimulationError::Endless { left: self.awaited.len() }),
        }
        self.give_back();
        match self.plan_error.take() {
            Some(error) => Err(SimulationError::Plan(error)),
            None if self.now > TIME_MAX => Err(SimulationError::Endless { left: self.awaited.len() }),
            None => Ok(()),
        }
    }

    fn next_event(&mut self) {
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
            SimEvent::AdditionsUp { job, revision } => {
                self.join_additions(job, revision);
                self.interfere();
            }
            SimEvent::ReplicaFails { job, revision } => self.fail_replica(job, revision),
            SimEvent::Submitted { job } => self.submit(job),
            SimEvent::Scripted { line } => self.follow(line),
            SimEvent::NodeFails { node } => self.fail(node),
            SimEvent::NodeReturns { node } => self.join(node),
            SimEvent::NodeEnds { node } => {
                self.lose(node);
            }
            SimEvent::NodeFollows { node } => self.follow_up(node),
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
                let baseline = self.jobs[job].application.limits().batch_size_baseline();
                let batch_size = self.submissions[job].batch_size.unwrap_or(baseline);
                let needs = &self.specs[job].needs;
                let numbered =
                    |pool: Pool| Some((pool.gpu_type.clone(), self.engine.gpu_type(&pool.gpu_type)?, pool.on_a_node));
                let types: Vec<_> = self.settings.pools(needs).into_iter().filter_map(numbered).collect();
                let oracle = oracles.of(&self.jobs[job], batch_size, self.settings.room(needs).1, &types);
                self.deliver(Event::OracleSet { job: self.jobs[job].id, oracle });
            }
            self.oracles = Some(oracles);
        }
        let last_round = self.engine.last_round();
        self.deliver(Event::Tick);
        if self.engine.last_round() != last_round {
            self.note_plan();
        }
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
        self.live.insert(job);
        let mut spec = self.submissions[job].clone();
        // The engine forgets those that ended long ago.
        spec.depends_on.retain(|dependency| !self.is_met(*dependency));
        self.deliver(Event::JobSubmitted { job: self.jobs[job].id, spec });
    }

    /// Whether a job has ended as another one waits for.
    fn is_met(&self, dependency: Dependency) -> bool {
        let job = &self.jobs[self.index_of(dependency.job)];
        job.finished.is_some() && (job.failure.is_none() || dependency.after == After::End)
    }

    fn end_epoch(&mut self, job: usize) {
        self.jobs[job].end_epoch(self.now);
        let epochs = self.jobs[job].epochs();
        let wishes = self.halving.as_mut().map_or_else(Vec::new, |halving| halving.end_epoch(job, epochs, self.now));
        if self.jobs[job].is_complete() {
            self.jobs[job].halt(self.now);
            let (id, revision) = (self.jobs[job].id, self.jobs[job].revision);
            if let Some(report) = self.jobs[job].report() {
                self.deliver(Event::Report { job: id, revision, report });
            }
            self.deliver(Event::JobSucceeded { job: id, revision });
            self.interfere();
        } else {
            self.predict(job);
            self.interfere();
        }
        for wish in wishes {
            self.deliver(wish);
            self.interfere();
        }
    }

    /// Jobs that ended: nothing will happen to them any more.
    fn leave(&mut self) {
        let ended = self.engine.ended_jobs().skip(self.left).map(|job| (job.id(), job.state().clone()));
        let ended: Vec<(JobId, JobState)> = ended.collect();
        self.left += ended.len();
        for (id, state) in ended {
            let idx = self.index_of(id);
            self.jobs[idx].finished = Some(self.now);
            self.jobs[idx].failure = match state {
                JobState::Failed { reason } => Some(reason),
                _ => None,
            };
            self.live.remove(&idx);
            self.awaited.remove(&idx);
        }
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
        self.leave();
        self.sample_cluster();
    }
}

/// Whether an event is due before the engine's tick.
fn comes_first(at: Timestamp, event: SimEvent, tick: Timestamp) -> bool {
    at < tick || (at == tick && !matches!(event, SimEvent::EpochEndsAfterRound { .. }))
}

const fn submission(job: &WorkloadJob) -> Timestamp {
    Timestamp(job.submitted_s * 1000)
}

/// The number of a job of a workload.
pub(super) fn id_of(job: usize) -> JobId {
    JobId(job as u64)
}
