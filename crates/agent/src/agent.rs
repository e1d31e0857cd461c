use pollux_model::{
    BatchChoice, BatchLimits, BatchMode, Goodput, GpuTypeName, GradientNorms, LearningRateRule, ModelError,
    NoiseEstimator, NoiseStatistics, Parallelism, ScalingContext, ThroughputModel,
};

use crate::evidence::Evidence;
use crate::losses::Losses;
use crate::profile::Profile;
use crate::{AgentError, AgentReport, Placement, Progress, StepObservation, Tuning, TypeReport};

/// In the middle of an epoch a change must promise at least this much more goodput.
const GAIN_MIN: f64 = 0.05;
/// At the end of one, where a change costs little, this much: what is measured varies, and neighbours take turns.
const EPOCH_GAIN_MIN: f64 = 0.02;
/// Steps after a change that say nothing of the new configuration: caches, allocators and pipelines fill.
const SETTLING_STEPS: u32 = 3;
const STATE_VERSION: u32 = 3;
/// Version of a state that says something else than this one would.
#[cfg(feature = "serde")]
const UNREADABLE: u32 = 0;

/// What the user says of a job's training.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Bounds of the batch, on GPUs of the type that the job is on.
    pub limits: BatchLimits,
    /// How the job spreads over its GPUs.
    pub parallelism: Parallelism,
    /// How the learning rate follows the batch.
    pub learning_rate: LearningRateRule,
    /// Samples of an epoch, where there are epochs: rules that follow them then move within one, too.
    pub epoch_samples: Option<u64>,
    /// Who chooses the batch.
    pub batch_mode: BatchMode,
    /// Steps to ignore after a change; a simulator, whose steps are steady from the first on, sets 0.
    pub settling_steps: u32,
    /// Goodput that a change at the end of an epoch must promise more; a simulator, whose steps do not vary, sets 0.
    pub epoch_gain_min: f64,
    /// What has to be measured before a batch grows; a simulator, which knows the noise, asks for nothing.
    pub evidence: Evidence,
}

impl AgentSettings {
    /// Data-parallel training with AdaScale.
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            parallelism: Parallelism::default(),
            learning_rate: LearningRateRule::default(),
            epoch_samples: None,
            batch_mode: BatchMode::Adaptive,
            settling_steps: SETTLING_STEPS,
            epoch_gain_min: EPOCH_GAIN_MIN,
            evidence: Evidence::MEASURED,
        }
    }
}

/// Everything an agent has learned: plain data that outlives the process.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "RawState"))]
pub struct AgentState {
    version: u32,
    /// One per type of GPU, ordered by name.
    profiles: Vec<Profile>,
    noise: NoiseEstimator,
    losses: Losses,
    progress: Progress,
    /// `None` until the job is placed.
    running: Option<Running>,
}

/// A state as it was written, perhaps by another version.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawState {
    #[serde(default)]
    version: u32,
    #[serde(default)]
    profiles: Readable<Vec<Profile>>,
    #[serde(default)]
    noise: Readable<NoiseEstimator>,
    #[serde(default)]
    losses: Readable<Losses>,
    #[serde(default)]
    progress: Readable<Progress>,
    #[serde(default)]
    running: Readable<Option<Running>>,
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Readable<T> {
    Yes(T),
    No(serde::de::IgnoredAny),
}

#[cfg(feature = "serde")]
impl<T> Default for Readable<T> {
    fn default() -> Self {
        Self::No(serde::de::IgnoredAny)
    }
}

#[cfg(feature = "serde")]
impl From<RawState> for AgentState {
    fn from(raw: RawState) -> Self {
        let RawState { version, profiles, noise, losses, progress, running } = raw;
        let (progress, version) = match progress {
            Readable::Yes(progress) => (progress, version),
            Readable::No(_) => (Progress::default(), UNREADABLE),
        };
        match (profiles, noise, losses, running) {
            (Readable::Yes(profiles), Readable::Yes(noise), Readable::Yes(losses), Readable::Yes(running)) => {
                Self { version, profiles, noise, losses, progress, running }
            }
            // What it counted is all that can be used of it.
            _ => Self {
                version: UNREADABLE,
                profiles: Vec::new(),
                noise: NoiseEstimator::new(1),
                losses: Losses::default(),
                progress,
                running: None,
            },
        }
    }
}

/// What runs, and on what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Running {
    placement: Placement,
    tuning: Tuning,
    /// Measurements of gradients at this batch.
    measurements: u32,
}

impl Running {
    /// Refuses a saved tuning that no limits allow.
    fn check(&self) -> Result<(), AgentError> {
        if (1..=u64::from(u32::MAX)).contains(&self.batch_size()) {
            return Ok(());
        }
        let Tuning { local_batch, accumulation_steps } = self.tuning;
        Err(AgentError::Tuning { local_batch, accumulation_steps, replicas: self.placement.shape.replicas() })
    }

    fn batch_size(&self) -> u64 {
        let micro_batches = u64::from(self.tuning.accumulation_steps) + 1;
        let per_replica = u64::from(self.tuning.local_batch) * micro_batches;
        per_replica.saturating_mul(u64::from(self.placement.shape.replicas()))
    }
}

/// The per-job brain.
#[derive(Clone, Debug)]
pub struct Agent {
    settings: AgentSettings,
    state: AgentState,
    settling: Settling,
    /// How fast it trains what it runs; nothing that outlives a change.
    samples_per_s: Option<f64>,
    relearns: bool,
}

/// What the last steps ran, and how many of its steps are still to be ignored.
#[derive(Clone, Debug, Default)]
struct Settling {
    running: Option<(Placement, Tuning)>,
    steps_left: u32,
}

impl Agent {
    /// An agent that has seen nothing.
    pub fn new(settings: AgentSettings) -> Self {
        let state = AgentState {
            version: STATE_VERSION,
            profiles: Vec::new(),
            noise: NoiseEstimator::new(settings.limits.batch_size_baseline()),
            losses: Losses::default(),
            progress: Progress::default(),
            running: None,
        };
        Self::with_state(settings, state)
    }

    /// An agent that knows what another knew, perhaps in another process at another size. From a state of another version
    /// only the progress is kept: the rest is learned anew.
    pub fn restore(settings: AgentSettings, mut state: AgentState) -> Result<Self, AgentError> {
        let value = state.progress.baseline_steps;
        if !value.is_finite() || value < 0.0 {
            return Err(AgentError::Progress { value });
        }
        if state.version != STATE_VERSION {
            let mut agent = Self::new(settings);
            agent.state.progress = state.progress;
            agent.relearns = true;
            return Ok(agent);
        }
        let (saved, configured) = (state.noise.batch_size_baseline(), settings.limits.batch_size_baseline());
        if saved != configured {
            return Err(AgentError::BaselineChanged { saved, configured });
        }
        // What was measured on a type that had no name yet is measured again.
        let profiled = state.profiles.len();
        state.profiles.retain(|profile| profile.gpu_type().number().is_none());
        let relearns = state.profiles.len() < profiled;
        for pair in state.profiles.windows(2) {
            if pair[0].gpu_type() >= pair[1].gpu_type() {
                return Err(AgentError::ProfileOrder { gpu_type: pair[1].gpu_type().clone() });
            }
        }
        state.losses.check()?;
        state.profiles.iter().try_for_each(Profile::check)?;
        state.running.as_ref().map_or(Ok(()), Running::check)?;
        Ok(Self { relearns, ..Self::with_state(settings, state) })
    }

    fn with_state(settings: AgentSettings, state: AgentState) -> Self {
        Self { settings, state, settling: Settling::default(), samples_per_s: None, relearns: false }
    }

    /// Whether something that it was restored with is of another version, so that it is learned anew.
    pub const fn relearns(&self) -> bool {
        self.relearns
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
        let is_same = |running: &(Placement, Tuning)| (&running.0, running.1) == (&observation.placement, tuning);
        if !self.settling.running.as_ref().is_some_and(is_same) {
            let running = Some((observation.placement.clone(), tuning));
            self.settling = Settling { running, steps_left: self.settings.settling_steps };
        }
        if self.settling.steps_left > 0 {
            self.settling.steps_left -= 1;
            return Ok(());
        }
        let gpu_type = &observation.placement.gpu_type;
        let profiles = &mut self.state.profiles;
        let idx = profiles.binary_search_by(|profile| profile.gpu_type().cmp(gpu_type)).unwrap_or_else(|idx| {
            profiles.insert(idx, Profile::new(gpu_type.clone()));
            idx
        });
        profiles[idx].record(&checked, self.settings.limits.local_batch_max());
        Ok(())
    }

    /// Takes in how fast it trains at the moment, whoever else uses its GPUs. Unlike the times of a step this teaches
    /// no model; a rate that no job can have is refused and changes nothing.
    pub fn observe_rate(&mut self, samples_per_s: f64) -> Result<(), AgentError> {
        if !samples_per_s.is_finite() || samples_per_s <= 0.0 {
            return Err(AgentError::Rate { value: samples_per_s });
        }
        self.samples_per_s = Some(samples_per_s);
        Ok(())
    }

    /// Takes the gradient norms of a step in; false if they cannot be used (one micro-batch, not finite).
    pub fn observe_gradients(&mut self, norms: &GradientNorms) -> bool {
        let is_used = self.state.noise.update(norms, self.settings.evidence.window_min);
        if let Some(running) = &mut self.state.running {
            running.measurements = running.measurements.saturating_add(u32::from(is_used));
        }
        is_used
    }

    /// Takes the loss of the training as it is now in; one that no training can have is refused and changes nothing.
    pub fn observe_loss(&mut self, loss: f64) -> Result<(), AgentError> {
        Ok(self.state.losses.record(self.state.progress.baseline_steps, loss)?)
    }

    /// Counts finished steps of the current tuning; before a job is placed there can be none.
    pub fn advance(&mut self, steps: u64) {
        let Some(batch_size) = self.state.running.as_ref().map(Running::batch_size) else { return };
        let gain = self.gain();
        let progress = &mut self.state.progress;
        progress.steps = progress.steps.saturating_add(steps);
        progress.samples = progress.samples.saturating_add(steps.saturating_mul(batch_size));
        progress.baseline_steps += steps as f64 * gain;
    }

    /// How far the training is.
    pub const fn progress(&self) -> &Progress {
        &self.state.progress
    }

    /// What is certain of signal and noise of the gradients, once they were measured often enough.
    pub fn noise(&self) -> Option<NoiseStatistics> {
        self.settings.evidence.certain(&self.state.noise)
    }

    /// The most likely signal and noise, once they were measured often enough.
    pub fn likely_noise(&self) -> Option<NoiseStatistics> {
        self.state.noise.statistics().filter(|_| self.settings.evidence.suffices(&self.state.noise))
    }

    /// The job is on GPUs of a type where these limits hold: other types have more memory or less.
    pub const fn set_limits(&mut self, limits: BatchLimits) {
        self.settings.limits = limits;
    }

    /// The data set turned out to have so many samples: a batch is never larger than they allow.
    pub fn bound_batch_size(&mut self, batch_size_max: u32) {
        let limits = self.settings.limits;
        self.settings.limits = limits.with_batch_size_max(limits.batch_size_max().min(batch_size_max));
    }

    /// Steps at the baseline batch that one step of the current tuning is worth; 1 as long as no noise proves more.
    pub fn gain(&self) -> f64 {
        self.noise().map_or(1.0, |noise| noise.gain(self.scale()))
    }

    /// What a sample of the current tuning is worth, against one at the baseline batch.
    pub fn efficiency(&self) -> f64 {
        self.gain() / self.scale()
    }

    /// Who chooses the batch from the next choice on. It is no part of the state: whoever gives the settings says it.
    pub const fn set_batch_mode(&mut self, mode: BatchMode) {
        self.settings.batch_mode = mode;
    }

    /// The job now runs on `placement`: chooses freely, unless its user does. Its processes may be new, so its steps settle anew even where
    /// neither placement nor batch changed.
    pub fn resize(&mut self, placement: Placement) -> Result<Tuning, AgentError> {
        let tuning = self.choose(placement)?;
        self.settle();
        Ok(tuning)
    }

    /// The job now runs on `placement` with a tuning that its user fixed.
    pub fn run_fixed(&mut self, placement: Placement, tuning: Tuning) {
        self.settle();
        self.run(placement, tuning);
    }

    /// An epoch ended: counts it, and keeps the tuning unless another promises 2% more goodput or better. `None` before
    /// the job is placed, when no epoch can have run.
    pub fn end_epoch(&mut self) -> Result<Option<Tuning>, AgentError> {
        let Some(running) = self.state.running.clone() else { return Ok(None) };
        let before = running.tuning;
        let tuning = self.improve(running, self.settings.epoch_gain_min)?.unwrap_or(before);
        let epochs = &mut self.state.progress.epochs;
        *epochs = epochs.saturating_add(1);
        Ok(Some(tuning))
    }

    /// In the middle of an epoch: a new tuning only where it promises 5% more goodput or better.
    pub fn retune(&mut self) -> Result<Option<Tuning>, AgentError> {
        let Some(running) = self.state.running.clone() else { return Ok(None) };
        self.improve(running, GAIN_MIN)
    }

    /// What to multiply the user's learning rate by, at the current tuning; an error if a rule of the user's own gives
    /// nothing usable.
    pub fn learning_rate_factor(&self) -> Result<f64, AgentError> {
        let context = ScalingContext { scale: self.scale(), noise: self.noise(), epochs: self.epochs() };
        Ok(self.settings.learning_rate.factor(&context)?)
    }

    /// What the scheduler may know. A learning-rate rule that fails is the trainer's to mend, and keeps nothing from it.
    pub fn report(&mut self) -> AgentReport {
        self.refit();
        self.state.losses.refit();
        AgentReport {
            limits: self.settings.limits,
            types: self.state.profiles.iter().filter_map(|profile| self.type_report(profile)).collect(),
            noise: self.noise(),
            progress: self.state.progress,
            epoch_samples: self.settings.epoch_samples,
            samples_per_s: self.samples_per_s,
            loss: self.state.losses.curve(),
            tuning: self.state.running.as_ref().map(|running| running.tuning),
            learning_rate_factor: self.learning_rate_factor().unwrap_or(1.0),
        }
    }

    /// What was learned on a type, with the micro-batches that fit its memory: on the type that it is on they are what the
    /// settings say now, and nowhere less than those ask for.
    fn type_report(&self, profile: &Profile) -> Option<TypeReport> {
        let limits = &self.settings.limits;
        let is_here =
            self.state.running.as_ref().is_some_and(|running| running.placement.gpu_type == *profile.gpu_type());
        let report = profile.report()?;
        let now = |most: u32| if is_here { limits.local_batch_max() } else { most.max(limits.local_batch_min()) };
        let local_batch_max = report.local_batch_max.map(now);
        Some(TypeReport { local_batch_max, ..report })
    }

    /// Why the fit for a type of GPU failed in the last report or choice, for those where it did. The last good model
    /// stays in use, and there is another try with the next measurement that says something new.
    pub fn fit_errors(&self) -> impl Iterator<Item = (&GpuTypeName, &ModelError)> {
        self.state.profiles.iter().filter_map(|profile| Some((profile.gpu_type(), profile.fit_error()?)))
    }

    fn settle(&mut self) {
        self.settling = Settling::default();
        self.samples_per_s = None;
    }

    fn choose(&mut self, placement: Placement) -> Result<Tuning, AgentError> {
        let tuning = match self.fixed(&placement) {
            Some(tuning) => tuning,
            None => tuning_of(&self.best(&placement)?),
        };
        self.run(placement, tuning);
        Ok(tuning)
    }

    /// The tuning of a placement, if the user chooses the batch.
    fn fixed(&self, placement: &Placement) -> Option<Tuning> {
        let batch = self.settings.batch_mode.batch(&self.settings.limits, placement.shape.replicas())?;
        Some(Tuning { local_batch: batch.local_batch, accumulation_steps: batch.accumulation_steps })
    }

    /// A tuning that promises so much more goodput than the one that runs, if there is any; where the user chooses, what
    /// the user says, if another runs.
    fn improve(
        &mut self,
        Running { placement, tuning, .. }: Running,
        gain_min: f64,
    ) -> Result<Option<Tuning>, AgentError> {
        if let Some(fixed) = self.fixed(&placement) {
            self.run(placement, fixed);
            return Ok((fixed != tuning).then_some(fixed));
        }
        let best = self.best(&placement)?;
        let known = self.goodput(&placement, self.settings.limits);
        let current = known.evaluate(placement.shape, tuning.local_batch, tuning.accumulation_steps);
        // A tuning that the limits forbid by now has no goodput: then any other is a gain.
        if current.is_ok_and(|current| best.goodput < current.goodput * (1.0 + gain_min)) {
            return Ok(None);
        }
        let tuning = tuning_of(&best);
        self.run(placement, tuning);
        Ok(Some(tuning))
    }

    fn best(&mut self, placement: &Placement) -> Result<BatchChoice, ModelError> {
        self.refit();
        let user = self.settings.limits;
        let (batch_size, measurements) =
            self.state.running.as_ref().map_or((0, 0), |running| (running.batch_size(), running.measurements));
        let proven = self.settings.evidence.limits(user, batch_size, measurements);
        let best = self.goodput(placement, proven).best(placement.shape);
        if best.is_ok() || proven == user {
            return best;
        }
        // So many replicas cannot share a batch this small: the smallest that they can.
        Goodput { noise: NoiseStatistics::NOISELESS, ..self.goodput(placement, user) }.best(placement.shape)
    }

    fn refit(&mut self) {
        for profile in &mut self.state.profiles {
            profile.refit(self.settings.parallelism);
        }
    }

    fn run(&mut self, placement: Placement, tuning: Tuning) {
        let mut running = Running { placement, tuning, measurements: 0 };
        if let Some(before) = &self.state.running
            && before.batch_size() == running.batch_size()
        {
            running.measurements = before.measurements;
        }
        self.state.running = Some(running);
    }

    /// The goodput as far as it is known. Until gradients were measured nothing proves that a larger batch helps, so
    /// the smallest is chosen; until steps were measured any model that prefers fewer samples will do.
    fn goodput(&self, placement: &Placement, limits: BatchLimits) -> Goodput {
        let profiled = self.state.profiles.iter().find(|profile| *profile.gpu_type() == placement.gpu_type);
        Goodput {
            throughput: profiled.and_then(Profile::model).copied().unwrap_or(ThroughputModel::UNMEASURED),
            noise: self.noise().unwrap_or(NoiseStatistics::NOISELESS),
            limits,
        }
    }

    fn epochs(&self) -> f64 {
        let progress = &self.state.progress;
        match self.settings.epoch_samples {
            Some(samples) if samples > 0 => progress.samples as f64 / samples as f64,
            Some(_) | None => f64::from(progress.epochs),
        }
    }

    /// At least 1, also for a saved tuning that the limits forbid by now.
    fn scale(&self) -> f64 {
        let baseline = f64::from(self.settings.limits.batch_size_baseline());
        self.state.running.as_ref().map_or(1.0, |running| (running.batch_size() as f64 / baseline).max(1.0))
    }
}

const fn tuning_of(choice: &BatchChoice) -> Tuning {
    Tuning { local_batch: choice.local_batch, accumulation_steps: choice.accumulation_steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_that_fails_is_told_and_hides_nothing_else() {
        let limits = BatchLimits::new(8, 64, 1, 64).unwrap();
        let mut agent = Agent::new(AgentSettings { settling_steps: 0, ..AgentSettings::new(limits) });
        let placement = Placement::from(pollux_model::Shape::single());
        let step = StepObservation { placement, local_batch: 8, accumulation_steps: 0, compute_s: 0.1, sync_s: 0.0 };
        agent.observe_step(&step).unwrap();
        let before = agent.report();
        assert_eq!(agent.fit_errors().count(), 0);

        agent.state.profiles[0].add_impossible_cell();
        assert_eq!(agent.report(), before);
        let errors: Vec<_> = agent.fit_errors().collect();
        assert!(matches!(errors[..], [(_, ModelError::StepTime { .. })]), "{errors:?}");
    }
}
