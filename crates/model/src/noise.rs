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
    /// Steps the norms stand for: 1, or more where a trainer measures only some of them.
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
///
/// Signal and noise are averaged apart: the noise scale is a ratio of averages, because the average of ratios is far
/// too large where the signal is small.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawEstimator"))]
pub struct NoiseEstimator {
    batch_size_baseline: u32,
    measurements: u64,
    sqr_sum: f64,
    var_sum: f64,
    /// Sum of the weights in the two sums: dividing by it removes the bias towards the zero they start from.
    weight: f64,
    /// Sum of the squares of these weights.
    weight_sqr: f64,
    /// Sums of squared deviations from the averages, by the squares of the weights.
    sqr_spread: f64,
    var_spread: f64,
}

impl NoiseEstimator {
    /// An estimator that has seen nothing.
    pub const fn new(batch_size_baseline: u32) -> Self {
        Self {
            batch_size_baseline,
            measurements: 0,
            sqr_sum: 0.0,
            var_sum: 0.0,
            weight: 0.0,
            weight_sqr: 0.0,
            sqr_spread: 0.0,
            var_spread: 0.0,
        }
    }

    /// Averages a measurement in, by the samples it stands for, but over no fewer than `window_min` measurements: where
    /// a batch is large a few of them would be the whole average. One that cannot be used (one micro-batch, a norm that
    /// is not finite) is skipped and returns false.
    pub fn update(&mut self, norms: &GradientNorms, window_min: u32) -> bool {
        let Some(NoiseSample { sqr, var }) = norms.estimate(self.batch_size_baseline) else { return false };
        let scale = norms.batch_size / f64::from(self.batch_size_baseline);
        let keep = SMOOTHING.powf(scale * f64::from(norms.steps)).max(1.0 - 1.0 / f64::from(window_min.max(1)));
        let before = [self.sqr_sum / self.weight, self.var_sum / self.weight];
        self.sqr_sum = keep * self.sqr_sum + (1.0 - keep) * sqr;
        self.var_sum = keep * self.var_sum + (1.0 - keep) * var;
        self.weight = keep * self.weight + (1.0 - keep);
        self.weight_sqr = keep.powi(2) * self.weight_sqr + (1.0 - keep).powi(2);
        if self.measurements > 0 {
            let deviation = |value: f64, before: f64, after: f64| (value - before) * (value - after);
            let squares = [
                deviation(sqr, before[0], self.sqr_sum / self.weight),
                deviation(var, before[1], self.var_sum / self.weight),
            ];
            let spread =
                |sum: f64, square: f64| (keep.powi(2) * sum + (1.0 - keep).powi(2) * square.max(0.0)).min(f64::MAX);
            self.sqr_spread = spread(self.sqr_spread, squares[0]);
            self.var_spread = spread(self.var_spread, squares[1]);
        }
        self.measurements = self.measurements.saturating_add(1);
        true
    }

    /// The baseline batch everything refers to.
    pub const fn batch_size_baseline(&self) -> u32 {
        self.batch_size_baseline
    }

    /// Measurements averaged in so far.
    pub const fn measurements(&self) -> u64 {
        self.measurements
    }

    /// The most likely signal and noise; `None` before the first usable measurement or while they carry no information.
    pub fn statistics(&self) -> Option<NoiseStatistics> {
        self.certain(0.0)
    }

    /// The least noise and the most signal that the measurements allow for, so many standard errors from the most likely
    /// ones: what a larger batch is worth at least.
    pub fn certain(&self, deviations: f64) -> Option<NoiseStatistics> {
        if self.weight <= 0.0 {
            return None;
        }
        let sqr = (self.sqr_sum / self.weight).max(0.0);
        let var = (self.var_sum / self.weight).max(0.0);
        if deviations <= 0.0 {
            return NoiseStatistics::new(sqr, var).ok();
        }
        let margin = |spread| deviations * self.standard_error(spread);
        NoiseStatistics::new(sqr + margin(self.sqr_spread), (var - margin(self.var_spread)).max(0.0)).ok()
    }

    /// How far an average may be off, from how far what it was made of is from it.
    fn standard_error(&self, spread: f64) -> f64 {
        // What n values vary around their own average is (n - 1)/n of their variance; here 1/n is the share of squares.
        let share = self.weight_sqr / self.weight.powi(2);
        spread.sqrt() / self.weight / (1.0 - share).sqrt()
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawEstimator {
    batch_size_baseline: u32,
    measurements: u64,
    sqr_sum: f64,
    var_sum: f64,
    weight: f64,
    weight_sqr: f64,
    sqr_spread: f64,
    var_spread: f64,
}

#[cfg(feature = "serde")]
impl TryFrom<RawEstimator> for NoiseEstimator {
    type Error = ModelError;

    fn try_from(raw: RawEstimator) -> Result<Self, ModelError> {
        let RawEstimator {
            batch_size_baseline,
            measurements,
            sqr_sum,
            var_sum,
            weight,
            weight_sqr,
            sqr_spread,
            var_spread,
        } = raw;
        let refuse = |name, value, accepted| Err(ModelError::Parameter { name, value, accepted });
        if batch_size_baseline == 0 {
            return refuse("batch_size_baseline", 0.0, "1 or more");
        }
        for (name, sum) in [("sqr_sum", sqr_sum), ("var_sum", var_sum)] {
            if !sum.is_finite() {
                return refuse(name, sum, "finite numbers");
            }
        }
        for (name, spread) in [("sqr_spread", sqr_spread), ("var_spread", var_spread)] {
            if !spread.is_finite() || spread < 0.0 {
                return refuse(name, spread, "finite numbers from 0");
            }
        }
        for (name, weight) in [("weight", weight), ("weight_sqr", weight_sqr)] {
            if !(0.0..=1.0).contains(&weight) {
                return refuse(name, weight, "0 to 1");
            }
        }
        Ok(Self { batch_size_baseline, measurements, sqr_sum, var_sum, weight, weight_sqr, sqr_spread, var_spread })
    }
}
