mod search;

use crate::{Batch, BatchLimits, BatchMode, ModelError, NoiseStatistics, Shape, ThroughputModel};
use search::Search;

/// A job's goodput as a function of what it runs on: throughput times statistical efficiency (equation 7).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Goodput {
    /// Seconds per step.
    pub throughput: ThroughputModel,
    /// Signal and noise of the gradients.
    pub noise: NoiseStatistics,
    /// What the user allows.
    pub limits: BatchLimits,
}

/// A batch for a shape, and what it is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchChoice {
    /// The shape it was chosen for.
    pub shape: Shape,
    /// Samples of one micro-batch on one replica.
    pub local_batch: u32,
    /// Micro-batches before the one that ends the step.
    pub accumulation_steps: u32,
    /// Samples per second.
    pub throughput: f64,
    /// Progress per sample, 1 at the baseline batch.
    pub efficiency: f64,
    /// Throughput times efficiency.
    pub goodput: f64,
}

impl BatchChoice {
    /// `M = K·m·(s+1)`, or the largest number if it is more.
    pub const fn batch_size(&self) -> u32 {
        let per_replica = self.local_batch.saturating_mul(self.accumulation_steps.saturating_add(1));
        per_replica.saturating_mul(self.shape.replicas())
    }
}

impl Goodput {
    /// What a given batch is worth on a shape; an error if the limits forbid it.
    pub fn evaluate(&self, shape: Shape, local_batch: u32, accumulation_steps: u32) -> Result<BatchChoice, ModelError> {
        if !self.limits.allow(shape, local_batch, accumulation_steps) {
            return Err(ModelError::BatchNotAllowed { local_batch, accumulation_steps, replicas: shape.replicas() });
        }
        Ok(self.worth(shape, local_batch, accumulation_steps))
    }

    /// The batch and accumulation with the highest goodput, exact over all integers the limits allow; of equals the
    /// smallest batch.
    pub fn best(&self, shape: Shape) -> Result<BatchChoice, ModelError> {
        let best = Search::new(self, shape).run().ok_or_else(|| self.limits.no_feasible_batch(shape))?;
        let narrow = |value: u64| u32::try_from(value).expect("a factor of a batch size, which is a u32");
        self.evaluate(shape, narrow(best.local_batch), narrow(best.micro_batches - 1))
    }

    /// What a job runs on a shape, and what that is worth: the batch that its user fixed, within the limits or not, or
    /// else the best.
    pub fn chosen(&self, shape: Shape, mode: BatchMode) -> Option<BatchChoice> {
        match mode.batch(&self.limits, shape.replicas()) {
            Some(Batch { local_batch, accumulation_steps }) => Some(self.worth(shape, local_batch, accumulation_steps)),
            None => self.best(shape).ok(),
        }
    }

    fn worth(&self, shape: Shape, local_batch: u32, accumulation_steps: u32) -> BatchChoice {
        let micro_batches = f64::from(accumulation_steps) + 1.0;
        let batch_size = f64::from(shape.replicas()) * f64::from(local_batch) * micro_batches;
        let step_s = self.throughput.step_s(shape, f64::from(local_batch), f64::from(accumulation_steps));
        let throughput = batch_size / step_s;
        let efficiency = self.noise.efficiency(batch_size / f64::from(self.limits.batch_size_baseline()));
        BatchChoice { shape, local_batch, accumulation_steps, throughput, efficiency, goodput: throughput * efficiency }
    }
}
