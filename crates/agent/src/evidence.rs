use pollux_model::{BatchLimits, NoiseEstimator, NoiseStatistics};

/// What has to be measured before a batch grows.
///
/// Norms of gradients vary from step to step, and their average is off by as much as that says. The batch follows what is
/// certain, and grows by steps, each of which is measured before the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Measurements before the noise is believed at all, and at a batch before a larger one is tried.
    pub measurements_min: u32,
    /// Measurements that an average is over at least, however large the batch.
    pub window_min: u32,
    /// Standard errors that noise and signal are taken to be off, to the side that favours a smaller batch.
    pub deviations: f64,
    /// How many times larger a batch may be than the one before it; `None` for as large as the noise says. A process that
    /// is alone needs two micro-batches above its baseline, so that twice the batch would gain it nothing.
    pub growth_max: Option<f64>,
}

impl Evidence {
    /// For gradients of a real training.
    pub const MEASURED: Self = Self { measurements_min: 10, window_min: 64, deviations: 1.0, growth_max: Some(4.0) };

    /// For a simulator, which knows the noise: every word is believed at once.
    pub const KNOWN: Self = Self { measurements_min: 1, window_min: 1, deviations: 0.0, growth_max: None };

    /// Whether there are enough measurements to believe any.
    pub(crate) fn suffices(&self, noise: &NoiseEstimator) -> bool {
        noise.measurements() >= u64::from(self.measurements_min)
    }

    /// What is certain of the noise.
    pub(crate) fn certain(&self, noise: &NoiseEstimator) -> Option<NoiseStatistics> {
        noise.certain(self.deviations).filter(|_| self.suffices(noise))
    }

    /// The limits of the next choice, while `batch_size` runs and was measured so often.
    pub(crate) fn limits(&self, user: BatchLimits, batch_size: u64, measurements: u32) -> BatchLimits {
        let Some(growth_max) = self.growth_max else { return user };
        let growth = if measurements >= self.measurements_min { growth_max } else { 1.0 };
        let baseline = user.batch_size_baseline();
        let reach = (batch_size.max(u64::from(baseline)) as f64 * growth).min(f64::from(user.batch_size_max()));
        user.with_batch_size_max(reach as u32)
    }
}
