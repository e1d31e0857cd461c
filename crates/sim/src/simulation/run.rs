use std::collections::VecDeque;

use pollux_engine::{
    Command, Engine, EngineSettings, Event, JobSpec as EngineJobSpec, SettingsError, StopReason, Work,
};
use pollux_model::GpuType;
use pollux_policy::{Allocation, JobId, NodeId, Timestamp};
use thiserror::Error;

use super::fairness::{Isolated, Presence};
use super::job::{BatchMode, SimJob};
use super::outcome::{ClusterSample, JobOutcome, JobSample, RunOutcome};
use super::queue::{Happening, Queue};
use super::settings::{SettingError, SimulationSettings};
use crate::{ApplicationName, ApplicationSet, JobSpec, SimRng, Workload, fixed_batch};

/// Nobody is given more, as in the published runs.
const REPLICAS_MAX: u32 = 64;
/// Centuries: a simulation that gets here will never end.
const TIME_MAX: Timestamp = Timestamp(10_000_000_000_000);
const DAY_S: f64 = 86_400.0;

/// Why a simulation could not be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A setting that makes no sense.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Settings that the engine refuses.
    #[error(transparent)]
    Engine(#[from] SettingsError),
    /// A job that can never run.
    #[error("job {job} asks for {requested} GPUs; accepted: up to the {gpus} of the cluster")]
    TooLarge {
        /// Its name.
        job: String,
        /// GPUs it asks for.
        requested: u32,
        /// GPUs there are.
        gpus: u32,
    },
    /// A batch that cannot be trained with on the GPUs asked for.
    #[error(
        "job {job} asks for batch {batch_size} at {replicas} replicas; accepted: batches of {application} up to {max}"
    )]
    Batch {
        /// Its name.
        job: String,
        /// What it trains.
        application: ApplicationName,
        /// GPUs it asks for.
        replicas: u32,
        /// Batch it asks for.
        batch_size: u32,
        /// The largest that its application trains with.
        max: u32,
    },
    /// The policy made a plan that cannot be used.
    #[error("the policy made a plan that cannot be used: {0}")]
    Plan(String),
    /// Jobs that never end.
    #[error("{left} jobs did not end within {TIME_MAX_YEARS} years of simulated time")]
    Endless {
        /// How many.
        left: usize,
    },
}

const TIME_MAX_YEARS: u64 = TIME_MAX.0 / 31_536_000_000;

/// Runs a workload to its end. `progress` is told the jobs finished so far.
pub fn simulate(
    settings: &SimulationSettings,
    applications: &ApplicationSet,
    workload: &Workload,
    progress: &mut dyn FnMut(usize),
) -> Result<RunOutcome, SimulationError> {
    settings.check()?;
    for job in workload.jobs() {
        check_request(job, settings, applications)?;
    }
    let mut world = World::new(settings, applications, workload)?;
    world.run(progress)?;
    Ok(world.outcome(workload))
}

struct World<'a> {
    settings: &'a SimulationSettings,
    engine: Engine,
    now: Timestamp,
    queue: Queue,
    jobs: Vec<SimJob<'a>>,
    modes: Vec<BatchMode>,
    /// The engine's number and the size of each node; a node that comes back has a new number.
    nodes: Vec<(NodeId, u32)>,
    node_ids: u32,
    failures: SimRng,
    unfinished: usize,
    out: Vec<Command>,
    samples: Vec<ClusterSample>,
    plan_error: Option<String>,
}

impl<'a> World<'a> {
    fn new(
        settings: &'a SimulationSettings,
        applications: &'a ApplicationSet,
        workload: &'a Workload,
    ) -> Result<Self, SimulationError> {
        let engine_settings = EngineSettings {
            round_interval_s: settings.interval_s,
            round_gap_min_s: settings.interval_s.min(EngineSettings::default().round_gap_min_s),
            replans_on_events: settings.policy.plans_on_events(),
            restart_cost_default_s: settings.restart_delay_s,
            ended_jobs_max: workload.jobs().len(),
            live_jobs_max: workload.jobs().len(),
            ..EngineSettings::default()
        };
        let modes: Vec<BatchMode> =
            workload.jobs().iter().map(|job| batch_mode(job, settings.policy.adapts_batches())).collect();
        let jobs = workload.jobs().iter().zip(&modes);
        let jobs = jobs.map(|(job, &mode)| SimJob::new(job, applications.get(job.application), mode)).collect();
        let mut world = Self {
            settings,
            engine: Engine::new(engine_settings, &settings.policy)?,
            now: Timestamp::default(),
            queue: Queue::default(),
            jobs,
            modes,
            nodes: Vec::new(),
            node_ids: 0,
            failures: SimRng::new(settings.failures.seed),
            unfinished: workload.jobs().len(),
            out: Vec::new(),
            samples: Vec::new(),
            plan_error: None,
        };
        for (idx, job) in workload.jobs().iter().enumerate() {
            world.queue.push(Timestamp(job.submitted_s * 1000), Happening::Submitted { job: idx });
        }
        for gpus in settings.cluster.node_gpus() {
            world.nodes.push((NodeId(0), gpus));
            world.join(world.nodes.len() - 1);
        }
        Ok(world)
    }

    fn run(&mut self, progress: &mut dyn FnMut(usize)) -> Result<(), SimulationError> {
        while self.unfinished > 0 {
            let before = self.unfinished;
            match (self.queue.peek(), self.engine.next_wakeup()) {
                (Some((at, happening)), Some(tick)) if !comes_first(at, happening, tick) => self.tick(tick),
                (None, Some(tick)) => self.tick(tick),
                (Some(_), _) => self.happen(),
                (None, None) => return Err(SimulationError::Endless { left: self.unfinished }),
            }
            if let Some(error) = self.plan_error.take() {
                return Err(SimulationError::Plan(error));
            }
            if self.now > TIME_MAX {
                return Err(SimulationError::Endless { left: self.unfinished });
            }
            if self.unfinished < before {
                progress(self.jobs.len() - self.unfinished);
            }
        }
        Ok(())
    }

    fn happen(&mut self) {
        let Some((at, happening)) = self.queue.pop() else { return };
        self.now = self.now.max(at);
        match happening {
            Happening::EpochEnds { job, changes } | Happening::EpochEndsAfterRound { job, changes } => {
                if self.jobs[job].changes == changes {
                    self.end_epoch(job);
                }
            }
            Happening::GroupReady { job, generation } => {
                // A group that was stopped or lost with its nodes never gets ready.
                if self.jobs[job].generation == generation && !self.jobs[job].allocation.is_empty() {
                    self.jobs[job].begin(self.now);
                    self.predict(job);
                    let pause_s = Some(self.settings.restart_delay_s);
                    self.deliver(Event::GroupReady { job: id_of(job), generation, pause_s });
                    self.interfere();
                }
            }
            Happening::Submitted { job } => self.submit(job),
            Happening::NodeFails { node } => self.fail(node),
            Happening::NodeReturns { node } => self.join(node),
        }
    }

    fn tick(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
        for job in 0..self.jobs.len() {
            if !self.jobs[job].is_training() {
                continue;
            }
            self.jobs[job].advance(self.now);
            if self.jobs[job].retune(self.now) {
                self.predict(job);
            }
            let generation = self.jobs[job].generation;
            if let Some(report) = self.jobs[job].report() {
                self.deliver(Event::Report { job: id_of(job), generation, report });
            }
        }
        self.deliver(Event::Tick);
        self.interfere();
    }

    fn submit(&mut self, job: usize) {
        let workload_job = self.jobs[job].spec;
        let application = self.jobs[job].application;
        let replicas_max = match (self.settings.policy.adapts_batches(), workload_job.application) {
            (true, ApplicationName::Ncf) => 1,
            _ => REPLICAS_MAX.max(workload_job.requested_replicas),
        };
        let spec = EngineJobSpec {
            replicas_requested: workload_job.requested_replicas.min(replicas_max),
            replicas_max,
            work: self.settings.declare_epochs.then(|| Work::Epochs(application.epochs())),
            ..EngineJobSpec::new(&workload_job.name, 1)
        };
        self.deliver(Event::JobSubmitted { job: id_of(job), spec });
    }

    fn end_epoch(&mut self, job: usize) {
        self.jobs[job].end_epoch(self.now);
        if !self.jobs[job].is_complete() {
            self.predict(job);
            return;
        }
        self.jobs[job].halt(self.now);
        self.jobs[job].finished = Some(self.now);
        self.unfinished -= 1;
        let generation = self.jobs[job].generation;
        self.deliver(Event::JobSucceeded { job: id_of(job), generation });
        self.interfere();
    }

    /// Puts the end of the job's current epoch on the calendar.
    fn predict(&mut self, job: usize) {
        self.sample_job(job);
        let changes = self.jobs[job].changes;
        if let Some(end) = self.jobs[job].next_epoch_end() {
            let happening = if end.early {
                Happening::EpochEndsAfterRound { job, changes }
            } else {
                Happening::EpochEnds { job, changes }
            };
            self.queue.push(end.at, happening);
        }
    }

    /// Tells the engine and does what it says, until it says nothing more.
    fn deliver(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut out = std::mem::take(&mut self.out);
            self.engine.step(self.now, event, &mut out);
            for command in out.drain(..) {
                self.obey(command, &mut events);
            }
            self.out = out;
            if cfg!(debug_assertions) {
                self.engine.check_invariants();
            }
        }
        self.sample_cluster();
    }

    fn obey(&mut self, command: Command, events: &mut VecDeque<Event>) {
        match command {
            Command::Launch { job, generation, allocation } => {
                let idx = index_of(job);
                let sim_job = &mut self.jobs[idx];
                if sim_job.generation == generation {
                    sim_job.awaited = sim_job.awaited.minus(&allocation);
                } else {
                    (sim_job.generation, sim_job.allocation) = (generation, allocation);
                    sim_job.awaited = Allocation::NONE;
                }
                self.prepare(idx);
            }
            Command::Resize { job, generation, keep, remove, add } => {
                let idx = index_of(job);
                let sim_job = &mut self.jobs[idx];
                sim_job.halt(self.now);
                (sim_job.generation, sim_job.allocation) = (generation, keep.plus(&add));
                sim_job.awaited = add;
                if !remove.is_empty() {
                    events.push_back(Event::ReplicasReleased { job, generation, allocation: remove });
                }
                self.prepare(idx);
            }
            Command::Stop { job, generation, allocation, why } => {
                let idx = index_of(job);
                match why {
                    StopReason::Failed | StopReason::NodeLost => self.jobs[idx].crash(self.now),
                    StopReason::Preempted
                    | StopReason::Moved
                    | StopReason::Resized
                    | StopReason::Paused
                    | StopReason::Cancelled
                    | StopReason::Succeeded => self.jobs[idx].halt(self.now),
                }
                self.jobs[idx].allocation = Allocation::NONE;
                self.sample_job(idx);
                events.push_back(Event::ReplicasReleased { job, generation, allocation });
            }
            Command::Refused(refusal) => self.plan_error = Some(refusal.to_string()),
            Command::PlanRejected { error } => self.plan_error = Some(error.to_string()),
        }
    }

    /// A group that is complete trains after the restart delay.
    fn prepare(&mut self, job: usize) {
        self.sample_job(job);
        if self.jobs[job].awaited.is_empty() {
            let generation = self.jobs[job].generation;
            let ready = self.now.after_s(self.settings.restart_delay_s);
            self.queue.push(ready, Happening::GroupReady { job, generation });
        }
    }

    /// Multi-node jobs that meet on a node slow each other down.
    fn interfere(&mut self) {
        if self.settings.interference == 0.0 {
            return;
        }
        let mut spanning = vec![0u32; self.node_ids as usize];
        let multi_node = |job: &SimJob<'_>| job.is_training() && job.allocation.is_multi_node();
        for job in self.jobs.iter().filter(|job| multi_node(job)) {
            for (node, _) in job.allocation.iter() {
                spanning[node.0 as usize] += 1;
            }
        }
        for idx in 0..self.jobs.len() {
            let job = &mut self.jobs[idx];
            let met = multi_node(job) && job.allocation.iter().any(|(node, _)| spanning[node.0 as usize] > 1);
            let changes = job.changes;
            job.slow_down(self.now, if met { self.settings.interference } else { 0.0 });
            if job.changes != changes {
                self.predict(idx);
            }
        }
    }

    fn join(&mut self, node: usize) {
        let id = NodeId(self.node_ids);
        self.node_ids += 1;
        self.nodes[node].0 = id;
        let gpus = self.nodes[node].1;
        self.deliver(Event::NodeJoined { node: id, gpus, gpu_type: GpuType::default() });
        if self.settings.failures.per_node_day > 0.0 {
            let mean_s = DAY_S / self.settings.failures.per_node_day;
            let after_s = -mean_s * (1.0 - self.failures.unit()).ln();
            self.queue.push(self.now.after_s(after_s), Happening::NodeFails { node });
        }
    }

    fn fail(&mut self, node: usize) {
        let id = self.nodes[node].0;
        for job in &mut self.jobs {
            if job.allocation.replicas_on(id) > 0 {
                job.crash(self.now);
                job.allocation = job.allocation.without(id);
            }
        }
        self.deliver(Event::NodeLost { node: id });
        let back = self.now.after_s(self.settings.failures.repair_s);
        self.queue.push(back, Happening::NodeReturns { node });
        self.interfere();
    }

    fn sample_job(&mut self, job: usize) {
        if !self.settings.record_series {
            return;
        }
        let time_s = self.now.as_s();
        let job = &mut self.jobs[job];
        let (batch_size, efficiency) = job.batch_and_efficiency();
        let nodes = job.allocation.iter().len() as u32;
        let sample = JobSample { time_s, replicas: job.allocation.replicas(), nodes, batch_size, efficiency };
        job.series.push(sample);
    }

    fn sample_cluster(&mut self) {
        if !self.settings.record_series {
            return;
        }
        let held = |job: &&pollux_engine::Job| job.gpus_held() > 0;
        let jobs_running = self.engine.jobs().filter(held).count() as u32;
        let jobs_waiting = self.engine.jobs().len() as u32 - jobs_running;
        let gpus_used = self.engine.nodes().map(pollux_engine::Node::gpus_held).sum();
        let sample = ClusterSample { time_s: self.now.as_s(), gpus_used, jobs_running, jobs_waiting };
        match self.samples.last_mut() {
            Some(last) if last.time_s == sample.time_s => *last = sample,
            Some(last)
                if (last.gpus_used, last.jobs_running, last.jobs_waiting)
                    == (gpus_used, jobs_running, jobs_waiting) => {}
            Some(_) | None => self.samples.push(sample),
        }
    }

    fn outcome(mut self, workload: &Workload) -> RunOutcome {
        let ended = self.engine.take_ended_jobs();
        let gpus = cluster_gpus(self.settings);
        let lives = self.jobs.iter().map(|job| (job.spec.submitted_s as f64, finished_s(job)));
        let presence = Presence::new(lives);
        let mut isolated = Isolated::new(self.settings.cluster.node_gpus().first().copied().unwrap_or(1));
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for (idx, job) in self.jobs.iter_mut().enumerate() {
            let submitted_s = job.spec.submitted_s as f64;
            let finished_s = finished_s(job);
            let books = ended.iter().find(|ended| ended.id() == id_of(idx)).map(|ended| ended.books(self.now));
            let share = f64::from(gpus) / presence.mean(submitted_s, finished_s).max(1.0);
            let most = if self.modes[idx] == BatchMode::Adaptive { f64::from(REPLICAS_MAX) } else { f64::from(gpus) };
            let alone_s = isolated.time_s(job.application, self.modes[idx], share.min(most));
            jobs.push(JobOutcome {
                name: job.spec.name.clone(),
                application: job.spec.application,
                submitted_s,
                started_s: books.and_then(|books| books.first_started).map_or(submitted_s, Timestamp::as_s),
                finished_s,
                restarts: books.map_or(0, |books| books.restarts),
                gpu_seconds: books.map_or(0.0, |books| books.attained_gpu_s()),
                queued_s: books.map_or(0.0, |books| books.queued_s()),
                rho: (finished_s - submitted_s) / alone_s,
                efficiency: if job.samples > 0.0 { job.useful_samples / job.samples } else { 1.0 },
                series: std::mem::take(&mut job.series),
            });
        }
        RunOutcome {
            policy: self.settings.policy.name().to_owned(),
            workload: workload.name().to_owned(),
            seed: workload.seed(),
            gpus,
            jobs,
            cluster: self.samples,
        }
    }
}

/// Refuses a job that could never run as its user asked.
fn check_request(
    job: &JobSpec,
    settings: &SimulationSettings,
    applications: &ApplicationSet,
) -> Result<(), SimulationError> {
    let (gpus, replicas) = (cluster_gpus(settings), job.requested_replicas);
    if replicas > gpus {
        return Err(SimulationError::TooLarge { job: job.name.clone(), requested: replicas, gpus });
    }
    let (application, batch_size) = (job.application, job.requested_batch);
    let limits = applications.get(application).limits();
    if !settings.policy.adapts_batches() && fixed_batch(limits, batch_size, replicas).is_none() {
        let (job, max) = (job.name.clone(), limits.batch_size_max());
        return Err(SimulationError::Batch { job, application, replicas, batch_size, max });
    }
    Ok(())
}

/// Whether a happening is due before the engine's tick.
fn comes_first(at: Timestamp, happening: Happening, tick: Timestamp) -> bool {
    at < tick || (at == tick && !matches!(happening, Happening::EpochEndsAfterRound { .. }))
}

fn batch_mode(job: &JobSpec, adapts: bool) -> BatchMode {
    match (adapts, job.application) {
        // As published: it is done in minutes on one GPU at its largest batch.
        (true, ApplicationName::Ncf) => BatchMode::Fixed(32_768),
        (true, _) => BatchMode::Adaptive,
        (false, _) => BatchMode::Fixed(job.requested_batch),
    }
}

fn cluster_gpus(settings: &SimulationSettings) -> u32 {
    u32::try_from(settings.cluster.gpus()).unwrap_or(u32::MAX)
}

fn finished_s(job: &SimJob<'_>) -> f64 {
    job.finished.map_or(0.0, Timestamp::as_s)
}

fn id_of(job: usize) -> JobId {
    JobId(job as u64)
}

fn index_of(job: JobId) -> usize {
    job.0 as usize
}
