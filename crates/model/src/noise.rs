use crate::{ModelError, NoiseStatistics};

/// How much of the running average a step at the baseline batch keeps.
const SMOOTHING: f64 = 0.999;

/// How an optimiser rescales a gradient before it is used; noise is measured in the rescaled space.
#[derive(Clone, Copy, Debug)]
pub enum Preconditioner<'a> {
    /// SGD: the gradient itself.
    Identity,
    /// Adam and its family: division by the root of the second moment.
    Adam {
        /// `exp_avg_sq`, before bias correction.
        second_moment: &'a [f32],
        /// Decay of the second moment.
        beta2: f64,
        /// Updates the second moment has seen; at 0 the gradient is taken as it is.
        step: u32,
        /// Added to the root.
        epsilon: f64,
    },
}

impl Preconditioner<'_> {
    /// `|P·g|²`; norms of several tensors add up. Refused where the second moment belongs to another gradient.
    pub fn squared_norm(&self, gradient: &[f32]) -> Result<f64, ModelError> {
        self.check(gradient.len())?;
        Ok(self.sum_squares(gradient.iter().map(|&value| f64::from(value))))
    }

    fn check(&self, length: usize) -> Result<(), ModelError> {
        match self {
            Self::Identity | Self::Adam { step: 0, .. } => Ok(()),
            Self::Adam { second_moment, .. } => check_length("second moment", second_moment.len(), length),
        }
    }

    fn sum_squares(&self, gradient: impl Iterator<Item = f64>) -> f64 {
        match *self {
            Self::Identity | Self::Adam { step: 0, .. } => gradient.map(|value| value * value).sum(),
            Self::Adam { second_moment, beta2, step, epsilon } => {
                let correction = 1.0 - beta2.powf(f64::from(step));
                gradient
                    .zip(second_moment)
                    .map(|(value, &moment)| {
                        let scaled = value / ((f64::from(moment) / correction).sqrt() + epsilon);
                        scaled * scaled
                    })
                    .sum()
            }
        }
    }
}

/// The two squared norms of a step that tell signal from noise, and the batch they came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientNorms {
    /// Steps the norms are an average over: 1, or more where a trainer passes them on now and then.
    pub steps: u32,
    /// `n`: micro-batch gradients that were averaged, over all replicas.
    pub micro_batches: u32,
    /// Samples behind their average.
    pub batch_size: f64,
    /// `mean |g_i|²`.
    pub micro_sqr: f64,
    /// `|ḡ|²`.
    pub mean_sqr: f64,
}

impl GradientNorms {
    /// From the gradients of the micro-batches of one step, which must be equally long.
    pub fn of_micro_batches(
        gradients: &[&[f32]],
        batch_size: u32,
        preconditioner: Preconditioner<'_>,
    ) -> Result<Self, ModelError> {
        let count = gradients.len();
        let length = gradients.first().map_or(0, |gradient| gradient.len());
        let mut micro_sqr = 0.0;
        for gradient in gradients {
            check_length("micro-batch gradient", gradient.len(), length)?;
            micro_sqr += preconditioner.squared_norm(gradient)?;
        }
        let mean = (0..length)
            .map(|idx| gradients.iter().map(|gradient| f64::from(gradient[idx])).sum::<f64>() / count as f64);
        Ok(Self {
            steps: 1,
            micro_batches: u32::try_from(count).unwrap_or(u32::MAX),
            batch_size: f64::from(batch_size),
            micro_sqr: micro_sqr / count as f64,
            mean_sqr: preconditioner.sum_squares(mean),
        })
    }

    /// From two steps in a row, where each had a single micro-batch: what one of them would have said, had it run in
    /// two micro-batches of twice its noise.
    pub fn of_consecutive_steps(
        previous: &[f32],
        current: &[f32],
        batch_size: u32,
        preconditioner: Preconditioner<'_>,
    ) -> Result<Self, ModelError> {
        let pair = Self::of_micro_batches(&[previous, current], batch_size, preconditioner)?;
        // The mean of both has half of the noise that each has.
        let noise = 2.0 * (pair.micro_sqr - pair.mean_sqr);
        Ok(Self { micro_sqr: pair.micro_sqr + noise, mean_sqr: pair.micro_sqr, ..pair })
    }

    /// What this step alone says. `None` with fewer than two micro-batches or a norm that is not finite.
    pub fn estimate(&self, batch_size_baseline: u32) -> Option<NoiseSample> {
        let usable = self.steps > 0
            && self.micro_batches > 1
            && [self.micro_sqr, self.mean_sqr].iter().all(|norm| norm.is_finite() && *norm >= 0.0)
            && self.batch_size.is_finite()
            && self.batch_size > 0.0;
        if !usable {
            return None;
        }
        let count = f64::from(self.micro_batches);
        let scale = self.batch_size / f64::from(batch_size_baseline);
        let sqr = (count * self.mean_sqr - self.micro_sqr) / (count - 1.0);
        let var = (self.micro_sqr - self.mean_sqr) * scale / (count - 1.0);
        (sqr.is_finite() && var.is_finite()).then_some(NoiseSample { sqr, var })
    }
}

fn check_length(name: &'static str, found: usize, expected: usize) -> Result<(), ModelError> {
    if found == expected { Ok(()) } else { Err(ModelError::GradientLength { name, found, expected }) }
}

/// Unbiased estimates from a single step; either may come out negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseSample {
    /// Estimate of `|g|²`.
    pub sqr: f64,
    /// Estimate of the variance of a baseline batch's gradient.
    pub var: f64,
}

/// Smoothed noise statistics of a job. It refers everything to the baseline batch, so it survives any change of
/// replicas, batch or accumulation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawEstimator"))]
pub struct NoiseEstimator {
    batch_size_baseline: u32,
    steps: u64,
    sqr_sum: f64,
    var_sum: f64,
    /// Sum of the weights in the two sums: dividing by it removes the bias towards the zero they start from.
    weight: f64,
}

impl NoiseEstimator {
    /// An estimator that has seen nothing.
    pub const fn new(batch_size_baseline: u32) -> Self {
        Self { batch_size_baseline, steps: 0, sqr_sum: 0.0, var_sum: 0.0, weight: 0.0 }
    }

    /// Averages a step in. A step that cannot be used (one micro-batch, a norm that is not finite) is skipped and
    /// returns false.
    pub fn update(&mut self, norms: &GradientNorms) -> bool {
        let Some(NoiseSample { sqr, var }) = norms.estimate(self.batch_size_baseline) else { return false };
        let scale = norms.batch_size / f64::from(self.batch_size_baseline);
        let keep = SMOOTHING.powf(scale * f64::from(norms.steps));
        self.sqr_sum = keep * self.sqr_sum + (1.0 - keep) * sqr;
        self.var_sum = keep * self.var_sum + (1.0 - keep) * var;
        self.weight = keep * self.weight + (1.0 - keep);
        self.steps = self.steps.saturating_add(u64::from(norms.steps));
        true
    }

    /// The baseline batch everything refers to.
    pub const fn batch_size_baseline(&self) -> u32 {
        self.batch_size_baseline
    }

    /// Steps averaged in so far.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// The current estimates; `None` before the first usable step or while they carry no information.
    pub fn statistics(&self) -> Option<NoiseStatistics> {
        if self.weight <= 0.0 {
            return None;
        }
        let sqr = (self.sqr_sum / self.weight).max(0.0);
        let var = (self.var_sum / self.weight).max(0.0);
        NoiseStatistics::new(sqr, var).ok()
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawEstimator {
    batch_size_baseline: u32,
    steps: u64,
    sqr_sum: f64,
    var_sum: f64,
    weight: f64,
}

#[cfg(feature = "serde")]
impl TryFrom<RawEstimator> for NoiseEstimator {
    type Error = ModelError;

    fn try_from(raw: RawEstimator) -> Result<Self, ModelError> {
        let RawEstimator { batch_size_baseline, steps, sqr_sum, var_sum, weight } = raw;
        let refuse = |name, value, accepted| Err(ModelError::Parameter { name, value, accepted });
        if batch_size_baseline == 0 {
            return refuse("batch_size_baseline", 0.0, "1 or more");
        }
        for (name, sum) in [("sqr_sum", sqr_sum), ("var_sum", var_sum)] {
            if !sum.is_finite() {
                return refuse(name, sum, "finite numbers");
            }
        }
        if !(0.0..=1.0).contains(&weight) {
            return refuse("weight", weight, "0 to 1");
        }
        Ok(Self { batch_size_baseline, steps, sqr_sum, var_sum, weight })
    }
}
