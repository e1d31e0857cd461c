use pollux_model::{
    BatchChoice, BatchLimits, Goodput, GradientNorms, LearningRateRule, ModelError, NoiseEstimator, NoiseStatistics,
    Parallelism, ScalingContext, ThroughputModel,
};

use crate::{AgentError, AgentReport, Placement, Profile, Progress, StepObservation, Tuning};

/// In the middle of an epoch a change must promise at least this much more goodput.
const GAIN_MIN: f64 = 0.05;
/// Steps of gradient statistics before they decide anything.
const NOISE_STEPS_MIN: u64 = 10;
/// Steps after a change that say nothing of the new configuration: caches, allocators and pipelines fill.
const SETTLING_STEPS: u32 = 3;
const STATE_VERSION: u32 = 1;

/// What the user says of a job's training.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Bounds of the batch.
    pub limits: BatchLimits,
    /// How the job spreads over its GPUs.
    pub parallelism: Parallelism,
    /// How the learning rate follows the batch.
    pub learning_rate: LearningRateRule,
    /// Samples of an epoch, where there are epochs: rules that follow them then move within one, too.
    pub epoch_samples: Option<u64>,
    /// Steps to ignore after a change; a simulator, whose steps are steady from the first on, sets 0.
    pub settling_steps: u32,
}

impl AgentSettings {
    /// Data-parallel training with AdaScale.
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            parallelism: Parallelism::default(),
            learning_rate: LearningRateRule::default(),
            epoch_samples: None,
            settling_steps: SETTLING_STEPS,
        }
    }
}

/// Everything an agent has learned: plain data that outlives the process.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct AgentState {
    version: u32,
    /// One per kind of GPU, ordered by kind.
    profiles: Vec<Profile>,
    noise: NoiseEstimator,
    progress: Progress,
    placement: Option<Placement>,
    tuning: Option<Tuning>,
}

/// The per-job brain.
#[derive(Clone, Debug)]
pub struct Agent {
    settings: AgentSettings,
    state: AgentState,
    settling: Settling,
}

/// Which configuration runs, and how many of its steps are still to be ignored.
#[derive(Clone, Debug)]
struct Settling {
    configuration: Option<(Placement, Tuning)>,
    steps_left: u32,
}

impl Agent {
    /// An agent that has seen nothing.
    pub fn new(settings: AgentSettings) -> Self {
        let state = AgentState {
            version: STATE_VERSION,
            profiles: Vec::new(),
            noise: NoiseEstimator::new(settings.limits.batch_size_baseline()),
            progress: Progress::default(),
            placement: None,
            tuning: None,
        };
        Self::with_state(settings, state)
    }

    /// An agent that knows what another knew, perhaps in another process at another size.
    pub fn restore(settings: AgentSettings, state: AgentState) -> Result<Self, AgentError> {
        if state.version != STATE_VERSION {
            return Err(AgentError::StateVersion { found: state.version, supported: STATE_VERSION });
        }
        let (saved, configured) = (state.noise.batch_size_baseline(), settings.limits.batch_size_baseline());
        if saved != configured {
            return Err(AgentError::BaselineChanged { saved, configured });
        }
        let value = state.progress.baseline_steps;
        if !value.is_finite() || value < 0.0 {
            return Err(AgentError::Progress { value });
        }
        for profile in &state.profiles {
            profile.check()?;
        }
        Ok(Self::with_state(settings, state))
    }

    fn with_state(settings: AgentSettings, state: AgentState) -> Self {
        Self { settings, state, settling: Settling { configuration: None, steps_left: 0 } }
    }

    /// All it has learned.
    pub const fn state(&self) -> &AgentState {
        &self.state
    }

    /// Takes the times of a step in, unless they belong to the first steps after a change. Times that no step can
    /// have are refused and change nothing.
    pub fn observe_step(&mut self, observation: &StepObservation) -> Result<(), AgentError> {
        let checked = observation.checked()?;
        let tuning =
            Tuning { local_batch: observation.local_batch, accumulation_steps: observation.accumulation_steps };
        let configuration = Some((observation.placement, tuning));
        if self.settling.configuration != configuration {
            self.settling = Settling { configuration, steps_left: self.settings.settling_steps };
        }
        if self.settling.steps_left > 0 {
            self.settling.steps_left -= 1;
            return Ok(());
        }
        let gpu_type = observation.placement.gpu_type;
        let profiles = &mut self.state.profiles;
        let idx = profiles.binary_search_by_key(&gpu_type, Profile::gpu_type).unwrap_or_else(|idx| {
            profiles.insert(idx, Profile::new(gpu_type, self.settings.parallelism));
            idx
        });
        profiles[idx].record(&checked);
        Ok(())
    }

    /// Takes the gradient norms of a step in; false if they cannot be used (one micro-batch, not finite).
    pub fn observe_gradients(&mut self, norms: &GradientNorms) -> bool {
        self.state.noise.update(norms)
    }

    /// Counts finished steps of the current tuning.
    pub fn advance(&mut self, steps: u64) {
        let (batch_size, gain) = (self.batch_size(), self.gain());
        let progress = &mut self.state.progress;
        progress.steps += steps;
        progress.samples += steps * u64::from(batch_size);
        progress.baseline_steps += steps as f64 * gain;
    }

    /// The job now runs on `placement`: chooses freely.
    pub fn resize(&mut self, placement: Placement) -> Result<Tuning, AgentError> {
        let choice = self.best(placement)?;
        self.state.placement = Some(placement);
        Ok(self.adopt(&choice))
    }

    /// An epoch ended: counts it and chooses freely. `None` where the job was never placed.
    pub fn end_epoch(&mut self) -> Result<Option<Tuning>, AgentError> {
        self.state.progress.epochs += 1;
        let Some(placement) = self.state.placement else { return Ok(None) };
        let choice = self.best(placement)?;
        Ok(Some(self.adopt(&choice)))
    }

    /// In the middle of an epoch: a new tuning only where it promises 5% more goodput or better.
    pub fn retune(&mut self) -> Result<Option<Tuning>, AgentError> {
        let (Some(placement), Some(tuning)) = (self.state.placement, self.state.tuning) else { return Ok(None) };
        let best = self.best(placement)?;
        let current = self.goodput(placement).evaluate(placement.shape, tuning.local_batch, tuning.accumulation_steps);
        // A tuning that the limits forbid by now has no goodput: then any other is a gain.
        if current.is_ok_and(|current| best.goodput < current.goodput * (1.0 + GAIN_MIN)) {
            return Ok(None);
        }
        Ok(Some(self.adopt(&best)))
    }

    /// What to multiply the user's learning rate by, at the current tuning.
    pub fn learning_rate_factor(&self) -> Result<f64, AgentError> {
        let context = ScalingContext { scale: self.scale(), noise: self.trusted_noise(), epochs: self.epochs() };
        Ok(self.settings.learning_rate.factor(&context)?)
    }

    /// What the scheduler may know.
    pub fn report(&mut self) -> Result<AgentReport, AgentError> {
        self.state.profiles.iter_mut().for_each(Profile::refit);
        Ok(AgentReport {
            limits: self.settings.limits,
            types: self.state.profiles.iter().filter_map(Profile::report).collect(),
            noise: self.trusted_noise(),
            progress: self.state.progress,
            epoch_samples: self.settings.epoch_samples,
            tuning: self.state.tuning,
            learning_rate_factor: self.learning_rate_factor()?,
        })
    }

    fn best(&mut self, placement: Placement) -> Result<BatchChoice, ModelError> {
        self.state.profiles.iter_mut().for_each(Profile::refit);
        self.goodput(placement).best(placement.shape)
    }

    fn adopt(&mut self, choice: &BatchChoice) -> Tuning {
        let tuning = Tuning { local_batch: choice.local_batch, accumulation_steps: choice.accumulation_steps };
        self.state.tuning = Some(tuning);
        tuning
    }

    /// The goodput as far as it is known. Until gradients were measured nothing proves that a larger batch helps, so
    /// the smallest is chosen; until steps were measured any model that prefers fewer samples will do.
    fn goodput(&self, placement: Placement) -> Goodput {
        let profiled = self.state.profiles.iter().find(|profile| profile.gpu_type() == placement.gpu_type);
        Goodput {
            throughput: profiled.and_then(Profile::model).copied().unwrap_or(ThroughputModel::UNMEASURED),
            noise: self.trusted_noise().unwrap_or(NoiseStatistics::NOISELESS),
            limits: self.settings.limits,
        }
    }

    fn epochs(&self) -> f64 {
        let progress = &self.state.progress;
        match self.settings.epoch_samples {
            Some(samples) if samples > 0 => progress.samples as f64 / samples as f64,
            Some(_) | None => f64::from(progress.epochs),
        }
    }

    fn trusted_noise(&self) -> Option<NoiseStatistics> {
        self.state.noise.statistics().filter(|_| self.state.noise.steps() >= NOISE_STEPS_MIN)
    }

    fn batch_size(&self) -> u32 {
        match (self.state.placement, self.state.tuning) {
            (Some(placement), Some(tuning)) => {
                placement.shape.replicas() * tuning.local_batch * (tuning.accumulation_steps + 1)
            }
            _ => 0, // Never placed: no step has run.
        }
    }

    fn scale(&self) -> f64 {
        let baseline = self.settings.limits.batch_size_baseline();
        f64::from(self.batch_size().max(baseline)) / f64::from(baseline)
    }

    fn gain(&self) -> f64 {
        self.trusted_noise().map_or(1.0, |noise| noise.gain(self.scale()))
    }
}
