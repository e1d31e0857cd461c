use std::cmp::Reverse;

use pollux_agent::{Agent, AgentReport, AgentSettings, Evidence, Placement, StepObservation, Tuning};
use pollux_engine::{FailureReason, Revision};
use pollux_model::{Batch, BatchMode, GpuTypeName, GradientNorms, NoiseStatistics, Shape};
use pollux_policy::{Allocation, JobId, Timestamp};

use super::brain::Brain;
use super::outcome::JobSample;
use super::settings::{SimulationSettings, TuneFor};
use crate::{Application, Running, TrainingState};

/// Recorded statistics are what an estimator made of many steps: they are told as an average over so many that nothing
/// from before them counts.
const SMOOTHED_STEPS: u32 = 1_000_000;
/// Batch sizes that a job is measured with where it is profiled before it starts, as for Sia.
const PROFILED_BATCHES: u32 = 10;

/// A job as the simulated world has it: the physics, and the agent that watches it.
pub(super) struct SimJob<'a> {
    pub(super) id: JobId,
    pub(super) application: &'a Application,
    /// What it is on each kind of GPU, where that makes a difference.
    kinds: &'a [(GpuTypeName, Application)],
    gpu_type: GpuTypeName,
    mode: BatchMode,
    tune_for: TuneFor,
    brain: Brain,
    /// Seconds it stands still when it is started.
    pub(super) restart_s: f64,
    /// Seconds it stands still when it is resized in place; where there is nothing a resize is a restart.
    pub(super) resize_s: Option<f64>,
    pub(super) revision: Revision,
    /// Replicas of the group that trains or is about to.
    pub(super) allocation: Allocation,
    /// Additions of a resize that are still to be launched.
    pub(super) awaited: Allocation,
    /// Additions of a resize in place that are not up yet.
    pub(super) additions: Allocation,
    /// A replica ends so many seconds after every launch, if it is broken.
    pub(super) fails_after_s: Option<f64>,
    /// Counts changes, so that a prediction made before one is known to be void.
    pub(super) changes: u64,
    training: Option<Training>,
    state: TrainingState,
    /// What a failure falls back to.
    checkpoint: TrainingState,
    /// The agent as it was then, where anything fails at all.
    saved_brain: Option<Brain>,
    /// What it goes on from at once if it is launched there again: where it was suspended.
    pub(super) suspended: Allocation,
    /// Share of its speed lost to others on the network.
    slowdown: f64,
    /// Its speed on GPUs that it shares, against that alone.
    shared_speed: Option<f64>,
    pub(super) samples: f64,
    pub(super) useful_samples: f64,
    pub(super) first_started: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
    /// Why it ended before it was complete, if it did.
    pub(super) failure: Option<FailureReason>,
    pub(super) series: Vec<JobSample>,
}

/// A group at work.
#[derive(Clone, Debug)]
struct Training {
    batch: Batch,
    /// Progress per second.
    rate: f64,
    /// Optimiser steps per second.
    steps_per_s: f64,
    since: Timestamp,
    /// Steps since the agent was last told, which are a fraction of one more often than not.
    untold_steps: f64,
}

/// When an epoch will end if nothing changes.
pub(super) struct EpochEnd {
    pub(super) at: Timestamp,
    /// Whether rounding to whole seconds moved it to before its true end.
    pub(super) early: bool,
}

impl<'a> SimJob<'a> {
    /// A job that nobody knows anything of yet.
    pub(super) fn new(id: JobId, application: &'a Application, mode: BatchMode, settings: &SimulationSettings) -> Self {
        let limits = *application.limits();
        let epoch_steps = application.progress_target(application.epochs() - 1) / f64::from(application.epochs());
        let agent = Agent::new(AgentSettings {
            epoch_samples: Some((epoch_steps * f64::from(limits.batch_size_baseline())).round() as u64),
            settling_steps: 0,
            epoch_gain_min: 0.0,
            evidence: Evidence::KNOWN,
            ..AgentSettings::new(limits)
        });
        let brain = Brain::Learning(Box::new(agent));
        let fails = settings.failures.per_node_day > 0.0;
        Self {
            mode,
            tune_for: settings.tune_for,
            saved_brain: fails.then(|| brain.clone()),
            resize_s: settings.resize_delay_s,
            ..Self::with_brain(id, application, brain, settings.restart_s(application))
        }
    }

    /// The same job where the type of GPU makes a difference: what it is on each.
    pub(super) fn on_types(self, types: &'a [(GpuTypeName, Application)], settings: &SimulationSettings) -> Self {
        let mut job = Self { kinds: types, ..self };
        if settings.policy.profiles_types() {
            job.profile_types();
        }
        job
    }

    /// Measures it on one GPU of every type, before it starts.
    fn profile_types(&mut self) {
        for (gpu_type, application) in self.kinds {
            let limits = *application.limits();
            self.brain.set_limits(limits);
            let (low, high) = (f64::from(limits.local_batch_min()), f64::from(limits.local_batch_max()));
            let mut before = 0;
            for idx in 0..PROFILED_BATCHES {
                let share = f64::from(idx) / f64::from(PROFILED_BATCHES - 1);
                let local_batch = (low * (high / low).powf(share)).round() as u32;
                if local_batch == std::mem::replace(&mut before, local_batch) {
                    continue;
                }
                let time = application.step_time(&[1], local_batch);
                self.brain.observe_step(&StepObservation {
                    placement: Placement { shape: Shape::single(), gpu_type: gpu_type.clone() },
                    local_batch,
                    accumulation_steps: 0,
                    compute_s: time.step_s - time.sync_s,
                    sync_s: time.sync_s,
                });
            }
        }
        self.brain.set_limits(*self.application.limits());
    }

    /// A job that has told how it trains on these kinds of GPU, the first of them if it is on another one.
    pub(super) fn told(
        id: JobId,
        kinds: &'a [(GpuTypeName, Application)],
        report: Option<AgentReport>,
        mode: BatchMode,
        restart_s: f64,
        resize_s: Option<f64>,
    ) -> Self {
        let (gpu_type, application) = &kinds[0];
        let baseline_steps = report.as_ref().map_or(0.0, |report| report.progress.baseline_steps);
        let brain = report.map_or(Brain::Silent, |report| Brain::Told(Box::new(report)));
        let state = TrainingState { progress: baseline_steps, ..TrainingState::default() };
        Self {
            mode,
            resize_s,
            kinds,
            gpu_type: gpu_type.clone(),
            state,
            checkpoint: state,
            ..Self::with_brain(id, application, brain, restart_s)
        }
    }

    fn with_brain(id: JobId, application: &'a Application, brain: Brain, restart_s: f64) -> Self {
        Self {
            id,
            application,
            kinds: &[],
            gpu_type: GpuTypeName::default(),
            mode: BatchMode::Adaptive,
            tune_for: TuneFor::Goodput,
            brain,
            restart_s,
            resize_s: None,
            saved_brain: None,
            revision: Revision::default(),
            allocation: Allocation::NONE,
            awaited: Allocation::NONE,
            additions: Allocation::NONE,
            fails_after_s: None,
            changes: 0,
            training: None,
            state: TrainingState::default(),
            checkpoint: TrainingState::default(),
            suspended: Allocation::NONE,
            slowdown: 0.0,
            shared_speed: None,
            samples: 0.0,
            useful_samples: 0.0,
            first_started: None,
            finished: None,
            failure: None,
            series: Vec::new(),
        }
    }

    pub(super) const fn set_mode(&mut self, mode: BatchMode) {
        self.mode = mode;
    }

    pub(super) fn is_training(&self) -> bool {
        self.training.is_some()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state.epoch >= self.application.epochs()
    }

    /// Epochs behind it.
    pub(super) const fn epochs(&self) -> u32 {
        self.state.epoch
    }

    /// Total batch and its efficiency, while it trains.
    pub(super) fn batch_and_efficiency(&self) -> (u32, f64) {
        let Some(training) = &self.training else { return (0, 0.0) };
        let batch_size = training.batch.size(self.allocation.replicas());
        (batch_size, self.efficiency(batch_size))
    }

    /// Brings progress and agent up to `now`.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let Some(training) = &mut self.training else { return };
        let seconds = now.since_s(training.since);
        if seconds <= 0.0 {
            return;
        }
        training.since = now;
        self.state.progress += training.rate * seconds;
        let steps = training.steps_per_s * seconds;
        training.untold_steps += steps;
        let told = training.untold_steps.floor();
        training.untold_steps -= told;
        let batch_size = training.batch.size(self.allocation.replicas());
        self.samples += steps * f64::from(batch_size);
        self.useful_samples += steps * f64::from(batch_size) * self.efficiency(batch_size);
        self.brain.advance(told as u64);
        if told >= 1.0 {
            self.observe_gradients(batch_size);
            self.brain.observe_loss(self.application.loss(self.state.epoch, self.state.progress, batch_size));
        }
    }

    /// Stops training, keeping what was learned.
    pub(super) fn halt(&mut self, now: Timestamp) {
        self.advance(now);
        self.training = None;
        self.save();
        self.changes += 1;
    }

    /// Stops training and loses what was not saved.
    pub(super) fn crash(&mut self, now: Timestamp) {
        self.advance(now);
        self.training = None;
        self.state = self.checkpoint;
        if let Some(brain) = &self.saved_brain {
            self.brain = brain.clone();
        }
        self.changes += 1;
    }

    fn save(&mut self) {
        self.checkpoint = self.state;
        if let Some(brain) = &mut self.saved_brain {
            brain.clone_from(&self.brain);
        }
    }

    /// Starts training with the current allocation, on GPUs of this kind; how fast beside another job is told right
    /// after.
    pub(super) fn begin(&mut self, now: Timestamp, gpu_type: &GpuTypeName, shares: bool) {
        let Some(shape) = self.allocation.shape() else { return };
        self.shared_speed = shares.then_some(1.0);
        self.first_started.get_or_insert(now);
        match self.kinds.iter().find(|(kind, _)| kind == gpu_type) {
            Some((kind, application)) => {
                (self.gpu_type, self.application) = (kind.clone(), application);
                self.brain.set_limits(*application.limits());
            }
            None if self.kinds.is_empty() => self.gpu_type = gpu_type.clone(),
            None => {}
        }
        let placement = Placement { shape, gpu_type: self.gpu_type.clone() };
        let told = match self.application {
            Application::Reported(reported) => Some(reported.goodput()),
            Application::Recorded(_) | Application::Parametric(_) => None,
        };
        let batch = self.choose(|brain| brain.resize(placement, told));
        self.train(now, batch);
    }

    /// The epoch is over: counts it, and goes on with a batch chosen anew.
    pub(super) fn end_epoch(&mut self, now: Timestamp) {
        self.advance(now);
        self.state.progress = self.application.progress_target(self.state.epoch);
        self.state.epoch += 1;
        let batch = self.choose(Brain::end_epoch);
        self.save();
        if !self.is_complete() {
            self.train(now, batch);
        }
    }

    /// In the middle of an epoch: takes a much better batch if the agent sees one.
    pub(super) fn retune(&mut self, now: Timestamp) -> bool {
        if self.mode != BatchMode::Adaptive || self.training.is_none() {
            return false;
        }
        let Some(tuning) = self.brain.retune() else { return false };
        self.advance(now);
        self.train(now, batch_of(tuning));
        true
    }

    /// Others came to or left its nodes or its GPUs.
    pub(super) fn slow_down(&mut self, now: Timestamp, slowdown: f64, shared_speed: Option<f64>) {
        if (self.slowdown, self.shared_speed) != (slowdown, shared_speed) {
            (self.slowdown, self.shared_speed) = (slowdown, shared_speed);
            if let Some(batch) = self.training.as_ref().map(|training| training.batch) {
                self.advance(now);
                self.train(now, batch);
            }
        }
    }

    pub(super) fn report(&mut self) -> Option<AgentReport> {
        self.brain.report(self.state.progress)
    }

    /// What it is on GPUs of a type; nothing if that is not known.
    pub(super) fn on(&self, gpu_type: &GpuTypeName) -> Option<&'a Application> {
        if self.kinds.is_empty() {
            return Some(self.application);
        }
        self.kinds.iter().find(|(known, _)| known == gpu_type).map(|(_, application)| application)
    }

    /// What it is on every type of GPU; nothing where that makes no difference.
    pub(super) const fn types(&self) -> &'a [(GpuTypeName, Application)] {
        self.kinds
    }

    /// When the current epoch ends, if it ever does: rounded to whole seconds, as published.
    pub(super) fn next_epoch_end(&self) -> Option<EpochEnd> {
        let training = self.training.as_ref()?;
        let left = self.application.progress_target(self.state.epoch) - self.state.progress;
        let seconds = (left / training.rate).max(0.0);
        let rounded = seconds.round_ties_even();
        seconds.is_finite().then(|| EpochEnd { at: training.since.after_s(rounded), early: rounded < seconds })
    }

    fn choose(&mut self, ask: impl FnOnce(&mut Brain) -> Option<Tuning>) -> Batch {
        let limits = self.application.limits();
        let replicas = self.allocation.replicas();
        let chosen = ask(&mut self.brain).map(batch_of);
        let batch = self.mode.batch(limits, replicas).or(chosen);
        // No batch fits more replicas than the largest has samples; nobody is given so many.
        let batch = batch.or_else(|| Batch::fixed(limits, limits.batch_size_max(), replicas));
        let batch = batch.unwrap_or(Batch { local_batch: 1, accumulation_steps: 0 });
        if let (BatchMode::Fixed { .. }, Some(shape)) = (self.mode, self.allocation.shape()) {
            let Batch { local_batch, accumulation_steps } = batch;
            let placement = Placement { shape, gpu_type: self.gpu_type.clone() };
            self.brain.run_fixed(placement, Tuning { local_batch, accumulation_steps });
        }
        batch
    }

    /// How busy it keeps its GPUs, while it trains.
    pub(super) fn duty(&self) -> Option<f64> {
        let training = self.training.as_ref()?;
        Some(self.application.duty(&self.placement(), training.batch))
    }

    fn placement(&self) -> Vec<u32> {
        let mut placement: Vec<u32> = self.allocation.iter().map(|(_, replicas)| replicas).collect();
        // Ranks are numbered from the node with the most replicas on; where rings differ by it, so do recorded times.
        placement.sort_unstable_by_key(|&replicas| Reverse(replicas));
        placement
    }

    fn train(&mut self, now: Timestamp, batch: Batch) {
        self.changes += 1;
        let placement = self.placement();
        let slowdown = self.shared_speed.map_or(self.slowdown, |speed| 1.0 - (1.0 - self.slowdown) * speed);
        let running = Running { placement: &placement, batch, slowdown };
        let rate = self.application.progress_rate(self.state.epoch, &running);
        let step = self.application.step_time(&placement, batch.local_batch);
        let step_s = step.with_accumulation(batch.accumulation_steps) / (1.0 - slowdown);
        // A worker knows whether it shares: such steps say nothing of what its GPUs could do.
        if let (Some(shape), None) = (self.allocation.shape(), self.shared_speed) {
            let slower = 1.0 / (1.0 - slowdown);
            self.observe_step(shape, batch, (step.step_s - step.sync_s) * slower, step.sync_s * slower);
        }
        let batch_size = batch.size(self.allocation.replicas());
        self.brain.observe_rate(f64::from(batch_size) / (step_s * self.application.slowness()));
        let untold_steps = self.training.as_ref().map_or(0.0, |training| training.untold_steps);
        let steps_per_s = 1.0 / (step_s * self.application.slowness());
        self.training = Some(Training { batch, rate, steps_per_s, since: now, untold_steps });
    }

    fn observe_step(&mut self, shape: Shape, batch: Batch, compute_s: f64, sync_s: f64) {
        let observation = StepObservation {
            placement: Placement { shape, gpu_type: self.gpu_type.clone() },
            local_batch: batch.local_batch,
            accumulation_steps: batch.accumulation_steps,
            compute_s,
            sync_s: sync_s.max(0.0),
        };
        self.brain.observe_step(&observation);
    }

    fn observe_gradients(&mut self, batch_size: u32) {
        let noise = match self.tune_for {
            TuneFor::Goodput => self.application.noise(self.state.epoch, batch_size),
            TuneFor::Throughput => NoiseStatistics::SIGNALLESS,
        };
        let scale = f64::from(batch_size) / f64::from(self.application.limits().batch_size_baseline());
        // Two micro-batches with these norms estimate exactly the recorded statistics.
        let per_step = noise.var() / scale;
        self.brain.observe_gradients(&GradientNorms {
            steps: SMOOTHED_STEPS,
            micro_batches: 2,
            batch_size: f64::from(batch_size),
            micro_sqr: noise.sqr() + 2.0 * per_step,
            mean_sqr: noise.sqr() + per_step,
        });
    }

    fn efficiency(&self, batch_size: u32) -> f64 {
        let scale = f64::from(batch_size) / f64::from(self.application.limits().batch_size_baseline());
        self.application.noise(self.state.epoch, batch_size).efficiency(scale)
    }
}

fn batch_of(tuning: Tuning) -> Batch {
    Batch { local_batch: tuning.local_batch, accumulation_steps: tuning.accumulation_steps }
}
