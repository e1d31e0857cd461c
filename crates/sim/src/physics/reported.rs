use pollux_agent::{AgentReport, TypeReport};
use pollux_model::{BatchLimits, Goodput, LossCurve, NoiseStatistics, ThroughputModel};

use super::StepTime;
use super::parametric::model_step_time;

/// A training as its agent has told of it: the throughput model of one kind of GPU, and noise that stays as it is.
#[derive(Clone, Debug)]
pub struct Reported {
    limits: BatchLimits,
    throughput: ThroughputModel,
    noise: NoiseStatistics,
    loss: Option<LossCurve>,
    baseline_steps: f64,
}

impl Reported {
    /// A training of so many baseline steps in all, which may be without end, on a kind of GPU that was reported.
    pub fn new(report: &AgentReport, learned: &TypeReport, baseline_steps: f64) -> Self {
        Self {
            limits: learned.local_batch_max.map_or(report.limits, |most| report.limits.with_local_batch_max(most)),
            throughput: learned.model,
            // As the engine takes it: until gradients were measured nothing proves that a larger batch helps.
            noise: report.noise.unwrap_or(NoiseStatistics::NOISELESS),
            loss: report.loss,
            baseline_steps,
        }
    }

    /// The same on a kind of GPU where it never ran, as it is estimated there.
    pub fn estimated(report: &AgentReport, goodput: &Goodput, baseline_steps: f64) -> Self {
        Self {
            limits: goodput.limits,
            throughput: goodput.throughput,
            noise: goodput.noise,
            loss: report.loss,
            baseline_steps,
        }
    }

    /// A training of which nothing is known: it goes on for ever.
    pub fn unknown() -> Self {
        Self {
            limits: BatchLimits::new(1, 1, 1, 1).expect("one sample is a batch"),
            throughput: ThroughputModel::UNMEASURED,
            noise: NoiseStatistics::NOISELESS,
            loss: None,
            baseline_steps: f64::INFINITY,
        }
    }

    pub(crate) const fn goodput(&self) -> Goodput {
        Goodput { throughput: self.throughput, noise: self.noise, limits: self.limits }
    }

    pub(super) const fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    pub(super) fn step_time(&self, placement: &[u32], local_batch: u32) -> StepTime {
        model_step_time(&self.throughput, placement, local_batch)
    }

    pub(super) const fn noise(&self) -> NoiseStatistics {
        self.noise
    }

    pub(crate) const fn progress_target(&self) -> f64 {
        self.baseline_steps
    }

    pub(super) fn loss(&self, progress: f64) -> f64 {
        self.loss.map_or(0.0, |curve| curve.at(progress))
    }
}
