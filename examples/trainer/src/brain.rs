use pollux_agent::{Agent, AgentError, AgentReport, AgentSettings, Placement, StepObservation, Tuning};
use pollux_model::{BatchLimits, BatchMode, GradientNorms, Preconditioner};

use crate::optimiser::OptimiserKind;
use crate::samples::Tally;
use crate::share::Deal;
use crate::state::BrainState;
use crate::step::Total;

/// Steps between two looks for a better batch in the middle of an epoch.
const RETUNE_STEPS: u32 = 8;
/// Steps of Adam before its gradients say something about noise.
const ADAM_SETTLING_STEPS: u32 = 20;

/// What a training is told about its batch.
#[derive(Clone, Debug)]
pub(crate) struct BrainSettings {
    pub(crate) limits: BatchLimits,
    pub(crate) optimiser: OptimiserKind,
    /// Samples of an epoch.
    pub(crate) epoch_samples: u32,
    /// Keep the baseline batch, whatever the agent thinks of it.
    pub(crate) fixed: bool,
}

/// What rank 0 knows besides what every rank knows: the agent, and the sample counts of the epoch.
pub(crate) struct Brain {
    settings: BrainSettings,
    agent: Agent,
    samples: u64,
    epoch: Tally,
    epoch_loss: f64,
    /// The last gradient, where it was the only one of its step: noise then shows between steps.
    previous: Option<Vec<f32>>,
    steps_until_retune: u32,
}

/// An epoch that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FinishedEpoch {
    pub(crate) tally: Tally,
    pub(crate) mean_loss: f64,
}

impl Brain {
    pub(crate) fn new(settings: BrainSettings) -> Self {
        let agent = Agent::new(settings.for_agent());
        Self::with_agent(settings, agent)
    }

    pub(crate) fn restore(settings: BrainSettings, state: BrainState) -> Result<Self, AgentError> {
        let agent = Agent::restore(settings.for_agent(), state.agent)?;
        if agent.relearns() {
            eprintln!("what was learned of batches and speeds is of another version, and is learned anew");
        }
        let mut brain = Self::with_agent(settings, agent);
        brain.samples = state.samples;
        brain.epoch = Tally { samples: state.epoch_samples, checksum: state.epoch_checksum };
        brain.epoch_loss = state.epoch_loss;
        Ok(brain)
    }

    fn with_agent(settings: BrainSettings, agent: Agent) -> Self {
        Self {
            settings,
            agent,
            samples: 0,
            epoch: Tally::default(),
            epoch_loss: 0.0,
            previous: None,
            steps_until_retune: RETUNE_STEPS,
        }
    }

    pub(crate) fn state(&self) -> BrainState {
        BrainState {
            agent: self.agent.state().clone(),
            samples: self.samples,
            epoch_samples: self.epoch.samples,
            epoch_checksum: self.epoch.checksum,
            epoch_loss: self.epoch_loss,
        }
    }

    /// Samples since the training began.
    pub(crate) const fn samples(&self) -> u64 {
        self.samples
    }

    /// Who chooses the batch, as the scheduler says; what the user said on the command line comes first.
    pub(crate) const fn set_batch_mode(&mut self, mode: BatchMode) {
        if !self.settings.fixed {
            self.agent.set_batch_mode(mode);
        }
    }

    /// The batch for a new placement.
    pub(crate) fn resize(&mut self, placement: Placement) -> Result<Tuning, AgentError> {
        self.previous = None;
        self.steps_until_retune = RETUNE_STEPS;
        self.agent.resize(placement)
    }

    /// Learns from the gradients of a step, given their mean, and counts its samples.
    pub(crate) fn learn(&mut self, deal: &Deal, total: &Total, mean: &[f32], preconditioner: Preconditioner<'_>) {
        self.epoch.add(total.tally);
        self.samples += total.tally.samples;
        self.epoch_loss += total.loss;
        // A step that was cut short has micro-batches of different sizes, which say nothing about noise.
        let usable = !deal.is_cut() && is_settled(preconditioner);
        let norms = if usable { self.norms(deal, total, mean, preconditioner) } else { None };
        if let Some(norms) = norms {
            self.agent.observe_gradients(&norms);
        }
        self.agent.advance(1);
    }

    fn norms(
        &mut self,
        deal: &Deal,
        total: &Total,
        mean: &[f32],
        preconditioner: Preconditioner<'_>,
    ) -> Option<GradientNorms> {
        let micro_batches = deal.world_size * (deal.tuning.accumulation_steps + 1);
        let batch_size = u32::try_from(deal.batch_size()).ok()?;
        if micro_batches == 1 {
            let previous = self.previous.replace(mean.to_vec())?;
            return GradientNorms::of_consecutive_steps(&previous, mean, batch_size, preconditioner).ok();
        }
        self.previous = None;
        Some(GradientNorms {
            steps: 1,
            micro_batches,
            batch_size: f64::from(batch_size),
            micro_sqr: total.micro_sqr / f64::from(micro_batches),
            mean_sqr: preconditioner.squared_norm(mean).ok()?,
        })
    }

    /// Factor on the user's learning rate.
    pub(crate) fn learning_rate_factor(&self) -> Result<f64, AgentError> {
        self.agent.learning_rate_factor()
    }

    /// Takes in how long a step took: a micro-batch of it, and what followed its last one.
    pub(crate) fn observe(&mut self, observation: &StepObservation) {
        // A time that no step can have, of a clock that jumped, teaches nothing.
        let _ = self.agent.observe_step(observation);
    }

    /// Closes an epoch and chooses the batch of the next.
    pub(crate) fn end_epoch(&mut self) -> Result<(FinishedEpoch, Option<Tuning>), AgentError> {
        let tally = std::mem::take(&mut self.epoch);
        let mean_loss = std::mem::take(&mut self.epoch_loss) / tally.samples.max(1) as f64;
        self.steps_until_retune = RETUNE_STEPS;
        let tuning = self.agent.end_epoch()?;
        Ok((FinishedEpoch { tally, mean_loss }, tuning))
    }

    /// In the middle of an epoch: another batch, now and then, where it pays.
    pub(crate) fn retune(&mut self) -> Result<Option<Tuning>, AgentError> {
        self.steps_until_retune -= 1;
        if self.steps_until_retune > 0 {
            return Ok(None);
        }
        self.steps_until_retune = RETUNE_STEPS;
        self.agent.retune()
    }

    /// Samples at which the noise of a gradient equals its signal, once that can be told.
    pub(crate) fn noise_scale(&mut self) -> Option<f64> {
        let baseline = f64::from(self.settings.limits.batch_size_baseline());
        self.agent.report().noise.map(|noise| baseline * noise.var() / noise.sqr())
    }

    /// What the scheduler may know. The agent counts whole steps; samples are told as they were counted.
    pub(crate) fn report(&mut self, samples_per_s: Option<f64>) -> AgentReport {
        let mut report = self.agent.report();
        report.samples_per_s = samples_per_s;
        report.progress.samples = self.samples;
        report
    }
}

/// The first few second moments of Adam are noise themselves: dividing by them makes any gradient look noisy, and the
/// estimator would remember it for a thousand steps.
const fn is_settled(preconditioner: Preconditioner<'_>) -> bool {
    match preconditioner {
        Preconditioner::Identity => true,
        Preconditioner::Adam { step, .. } => step >= ADAM_SETTLING_STEPS,
    }
}

impl BrainSettings {
    fn for_agent(&self) -> AgentSettings {
        AgentSettings {
            learning_rate: self.optimiser.rule(),
            epoch_samples: Some(u64::from(self.epoch_samples)),
            batch_mode: BatchMode::of(!self.fixed, None),
            ..AgentSettings::new(self.limits)
        }
    }
}
