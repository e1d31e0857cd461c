use crate::{BatchLimits, ModelError, NoiseStatistics, Shape, ThroughputModel};

/// Two goodputs closer than this are the same: what remains is rounding.
const RELATIVE_TOLERANCE: f64 = 1e-12;

/// A job's goodput as a function of what it runs on: throughput times statistical efficiency (equation 7).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
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
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
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
    /// `M = K·m·(s+1)`.
    pub fn batch_size(&self) -> u32 {
        self.shape.replicas() * self.local_batch * (self.accumulation_steps + 1)
    }
}

impl Goodput {
    /// What a given batch is worth on a shape; an error if the limits forbid it.
    pub fn evaluate(&self, shape: Shape, local_batch: u32, accumulation_steps: u32) -> Result<BatchChoice, ModelError> {
        if !self.limits.allow(shape, local_batch, accumulation_steps) {
            return Err(ModelError::BatchNotAllowed { local_batch, accumulation_steps, replicas: shape.replicas() });
        }
        let micro_batches = f64::from(accumulation_steps) + 1.0;
        let batch_size = f64::from(shape.replicas()) * f64::from(local_batch) * micro_batches;
        let step_s = self.throughput.step_s(shape, f64::from(local_batch), f64::from(accumulation_steps));
        let throughput = batch_size / step_s;
        let efficiency = self.noise.efficiency(batch_size / f64::from(self.limits.batch_size_baseline()));
        Ok(BatchChoice {
            shape,
            local_batch,
            accumulation_steps,
            throughput,
            efficiency,
            goodput: throughput * efficiency,
        })
    }

    /// The batch and accumulation with the highest goodput, exact over all integers the limits allow.
    ///
    /// For a fixed number of micro-batches the inverse of goodput is convex in one over the samples per replica, so
    /// the best samples are found by section; at equal samples fewer micro-batches are never slower, so each further
    /// number of micro-batches has an upper bound, and the search stops at the first bound that cannot win.
    pub fn best(&self, shape: Shape) -> Result<BatchChoice, ModelError> {
        let search = Search::new(self, shape);
        let (local_batch, micro_batches) = search.run().ok_or_else(|| self.limits.no_feasible_batch(shape))?;
        let narrow = |value: u64| u32::try_from(value).expect("a factor of a batch size, which is a u32");
        self.evaluate(shape, narrow(local_batch), narrow(micro_batches - 1))
    }
}

struct Search<'a> {
    goodput: &'a Goodput,
    shape: Shape,
    /// Samples per replica and step that the limits allow.
    samples_min: u64,
    samples_max: u64,
    local_min: u64,
    local_max: u64,
    /// `K/M0`, from samples per replica to the batch scale.
    scale_per_sample: f64,
}

impl<'a> Search<'a> {
    fn new(goodput: &'a Goodput, shape: Shape) -> Self {
        let limits = &goodput.limits;
        let replicas = u64::from(shape.replicas());
        Self {
            goodput,
            shape,
            samples_min: u64::from(limits.batch_size_baseline()).div_ceil(replicas),
            samples_max: u64::from(limits.batch_size_max()) / replicas,
            local_min: u64::from(limits.local_batch_min()),
            local_max: u64::from(limits.local_batch_max()),
            scale_per_sample: f64::from(shape.replicas()) / f64::from(limits.batch_size_baseline()),
        }
    }

    /// Best local batch and number of micro-batches.
    fn run(&self) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64, f64)> = self.single_baseline();
        let mut micro_batches = self.first_micro_batches();
        while micro_batches * self.local_min <= self.samples_max {
            let local_low = self.local_min.max(self.samples_min.div_ceil(micro_batches));
            let local_high = self.local_max.min(self.samples_max / micro_batches);
            if local_low > local_high {
                // No multiple lies within the window. The next number that can have one needs a smaller local batch.
                if local_low == self.local_min {
                    break;
                }
                micro_batches = self.samples_min.div_ceil(local_low - 1).max(micro_batches + 1);
                continue;
            }
            let samples_low = self.samples_min.max(self.local_min * micro_batches);
            let samples_high = self.samples_max.min(self.local_max * micro_batches);
            let (samples, bound) =
                minimum(samples_low, samples_high, |samples| self.cost(samples as f64, micro_batches as f64));
            if best.is_some_and(|(_, _, cost)| bound >= cost * (1.0 - RELATIVE_TOLERANCE)) {
                break;
            }
            let below = (samples / micro_batches).clamp(local_low, local_high);
            for local_batch in [below, (below + 1).min(local_high)] {
                let cost = self.cost((local_batch * micro_batches) as f64, micro_batches as f64);
                if best.is_none_or(|(_, _, best_cost)| cost < best_cost) {
                    best = Some((local_batch, micro_batches, cost));
                }
            }
            micro_batches += 1;
        }
        best.map(|(local_batch, micro_batches, _)| (local_batch, micro_batches))
    }

    /// On one replica the baseline batch may run whole; anything larger takes two micro-batches.
    fn single_baseline(&self) -> Option<(u64, u64, f64)> {
        let whole = self.shape.replicas() == 1 && (self.local_min..=self.local_max).contains(&self.samples_min);
        whole.then(|| (self.samples_min, 1, self.cost(self.samples_min as f64, 1.0)))
    }

    /// The number of micro-batches that is best with the largest local batch; fewer can only lose to it.
    fn first_micro_batches(&self) -> u64 {
        let fewest = if self.shape.replicas() == 1 { 2 } else { 1 };
        let fewest = self.samples_min.div_ceil(self.local_max).max(fewest);
        let most = self.samples_max / self.local_max;
        if most <= fewest {
            return fewest;
        }
        minimum(fewest, most, |micro_batches| self.cost((micro_batches * self.local_max) as f64, micro_batches as f64))
            .0
    }

    /// The inverse of goodput up to a factor that is the same for every choice.
    fn cost(&self, samples: f64, micro_batches: f64) -> f64 {
        let noise = &self.goodput.noise;
        let step_s = self.goodput.throughput.step_s(self.shape, samples / micro_batches, micro_batches - 1.0);
        step_s * (noise.var() + noise.sqr() * self.scale_per_sample * samples) / samples
    }
}

/// Golden section over the integers `low..=high` of a function that falls, then rises.
fn minimum(low: u64, high: u64, f: impl Fn(u64) -> f64) -> (u64, f64) {
    const RATIO: f64 = 0.381_966_011_250_105_1;
    let (mut low, mut high) = (low, high);
    let section = |low: u64, high: u64| ((high - low) as f64 * RATIO) as u64;
    if high - low > 4 {
        let mut left = low + section(low, high);
        let mut right = high - section(low, high);
        let (mut f_left, mut f_right) = (f(left), f(right));
        while high - low > 4 {
            if f_left <= f_right {
                high = right - 1;
                (right, f_right) = (left, f_left);
                left = low + section(low, high);
                if left >= right {
                    break;
                }
                f_left = f(left);
            } else {
                low = left + 1;
                (left, f_left) = (right, f_right);
                right = high - section(low, high);
                if right <= left {
                    break;
                }
                f_right = f(right);
            }
        }
    }
    let mut best = (low, f(low));
    for candidate in low + 1..=high {
        let value = f(candidate);
        if value < best.1 {
            best = (candidate, value);
        }
    }
    best
}
