use crate::ModelError;

/// Far above any gradient, far enough below the largest float that sums and products stay finite.
const STATISTIC_MAX: f64 = 1e100;

/// The signal and the noise of a job's gradients at its baseline batch.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawStatistics"))]
pub struct NoiseStatistics {
    sqr: f64,
    var: f64,
}

impl NoiseStatistics {
    /// No noise at all: then nothing but the baseline batch is worth its samples.
    pub const NOISELESS: Self = Self { sqr: 1.0, var: 0.0 };

    /// Nothing but noise: then every sample counts in full, whatever the batch.
    pub const SIGNALLESS: Self = Self { sqr: 0.0, var: 1.0 };

    /// `sqr` estimates `|g|²`, `var` the variance of a baseline batch's gradient; neither negative, not both 0.
    pub fn new(sqr: f64, var: f64) -> Result<Self, ModelError> {
        for (name, value) in [("sqr", sqr), ("var", var)] {
            if !(0.0..=STATISTIC_MAX).contains(&value) {
                return Err(ModelError::Parameter { name, value, accepted: "0 to 1e100" });
            }
        }
        if sqr == 0.0 && var == 0.0 {
            return Err(ModelError::Parameter { name: "sqr + var", value: 0.0, accepted: "sums above 0" });
        }
        Ok(Self { sqr, var })
    }

    /// Statistics with the given noise scale `φ = M0·var/sqr`, which may be infinite: then every sample counts in full.
    pub fn from_noise_scale(noise_scale: f64, batch_size_baseline: u32) -> Result<Self, ModelError> {
        if noise_scale.is_nan() || noise_scale < 0.0 {
            return Err(ModelError::Parameter { name: "noise scale", value: noise_scale, accepted: "0 or more" });
        }
        if noise_scale.is_infinite() {
            return Ok(Self::SIGNALLESS);
        }
        Self::new(1.0, noise_scale / f64::from(batch_size_baseline))
    }

    /// Estimate of `|g|²`.
    pub const fn sqr(&self) -> f64 {
        self.sqr
    }

    /// Estimate of the variance of a baseline batch's gradient.
    pub const fn var(&self) -> f64 {
        self.var
    }

    /// `φ = M0·var/sqr`; none if it is infinite, because there is no signal.
    pub fn noise_scale(&self, batch_size_baseline: u32) -> Option<f64> {
        Some(f64::from(batch_size_baseline) * (self.var / self.sqr)).filter(|scale| scale.is_finite())
    }

    /// `(φ + M0)/(φ + M)` (equation 6) at `scale = M/M0`: progress per sample, relative to the baseline batch.
    pub fn efficiency(&self, scale: f64) -> f64 {
        1.0 / (1.0 + self.signal_share() * (scale - 1.0))
    }

    /// Progress of one step at `scale = M/M0`, in steps at the baseline batch (AdaScale's gain).
    pub fn gain(&self, scale: f64) -> f64 {
        scale * self.efficiency(scale)
    }

    /// Signal in signal and noise together. A share, because products of very small statistics would vanish.
    pub(crate) fn signal_share(&self) -> f64 {
        self.sqr / (self.sqr + self.var)
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawStatistics {
    sqr: f64,
    var: f64,
}

#[cfg(feature = "serde")]
impl TryFrom<RawStatistics> for NoiseStatistics {
    type Error = ModelError;

    fn try_from(raw: RawStatistics) -> Result<Self, ModelError> {
        Self::new(raw.sqr, raw.var)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ratio_of_noise_to_signal_counts_however_small_they_are() {
        for unit in [f64::from_bits(1), f64::MIN_POSITIVE, 1.0, STATISTIC_MAX / 4.0] {
            let statistics = |sqr: f64, var: f64| NoiseStatistics::new(sqr * unit, var * unit).unwrap();
            assert_eq!(statistics(1.0, 3.0).efficiency(5.0), 0.5);
            assert_eq!(statistics(1.0, 3.0).gain(5.0), 2.5);
            assert_eq!(statistics(1.0, 0.0).efficiency(4.0), 0.25);
            assert_eq!(statistics(0.0, 1.0).efficiency(4.0), 1.0);
        }
    }
}
