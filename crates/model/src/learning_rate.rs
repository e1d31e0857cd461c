use std::fmt;
use std::sync::Arc;

use crate::{ModelError, NoiseStatistics};

/// What a learning-rate rule may look at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalingContext {
    /// `S = M/M0`: the batch against the one the user's learning rate was chosen for.
    pub scale: f64,
    /// Noise of the gradients, once measured.
    pub noise: Option<NoiseStatistics>,
    /// Epochs done, counted in progress.
    pub epochs: f64,
}

/// By how much the user's learning rate is multiplied when the batch grows.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum LearningRateRule {
    /// `(var + sqr)/(var/S + sqr)`: grows with the batch as long as noise dominates. For SGD.
    #[default]
    AdaScale,
    /// The square root of AdaScale. For Adam and its family.
    AdamScale,
    /// `S`.
    Linear,
    /// `√S`.
    SquareRoot,
    /// `√S` after a linear warm-up whose length in epochs grows with `S`.
    Legw {
        /// Epochs of warm-up at the baseline batch.
        warmup_epochs: f64,
    },
    /// A rule of the user's own.
    Custom(Arc<dyn Fn(&ScalingContext) -> f64 + Send + Sync>),
}

impl LearningRateRule {
    /// A rule of the user's own.
    pub fn custom(rule: impl Fn(&ScalingContext) -> f64 + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(rule))
    }

    /// The factor, which is refused unless it is a finite number from 0.
    ///
    /// ```
    /// use pollux_model::{LearningRateRule, ScalingContext};
    ///
    /// let context = ScalingContext { scale: 8.0, noise: None, epochs: 0.0 };
    /// let cube_root = LearningRateRule::custom(|context| context.scale.cbrt());
    /// assert_eq!(cube_root.factor(&context)?, 2.0);
    /// # Ok::<(), pollux_model::ModelError>(())
    /// ```
    pub fn factor(&self, context: &ScalingContext) -> Result<f64, ModelError> {
        // Without a measured noise no gain is proven, so none is assumed.
        let gain = context.noise.map_or(1.0, |noise| noise.gain(context.scale));
        let factor = match self {
            Self::AdaScale => gain,
            Self::AdamScale => gain.sqrt(),
            Self::Linear => context.scale,
            Self::SquareRoot => context.scale.sqrt(),
            Self::Legw { warmup_epochs } => {
                let warmup = warmup_epochs * context.scale;
                let ramp = if context.epochs < warmup { context.epochs / warmup } else { 1.0 };
                context.scale.sqrt() * ramp
            }
            Self::Custom(rule) => rule(context),
        };
        if !factor.is_finite() || factor < 0.0 {
            return Err(ModelError::Parameter {
                name: "learning-rate factor",
                value: factor,
                accepted: "finite numbers from 0",
            });
        }
        Ok(factor)
    }
}

impl fmt::Debug for LearningRateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AdaScale => f.write_str("AdaScale"),
            Self::AdamScale => f.write_str("AdamScale"),
            Self::Linear => f.write_str("Linear"),
            Self::SquareRoot => f.write_str("SquareRoot"),
            Self::Legw { warmup_epochs } => f.debug_struct("Legw").field("warmup_epochs", warmup_epochs).finish(),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factor(rule: &LearningRateRule, scale: f64, epochs: f64) -> f64 {
        let noise = NoiseStatistics::new(1.0, 3.0).ok();
        rule.factor(&ScalingContext { scale, noise, epochs }).unwrap()
    }

    #[test]
    fn every_rule_is_one_at_the_baseline_batch() {
        use LearningRateRule as Rule;
        for rule in [Rule::AdaScale, Rule::AdamScale, Rule::Linear, Rule::SquareRoot, Rule::Legw { warmup_epochs: 0.0 }]
        {
            assert_eq!(factor(&rule, 1.0, 0.0), 1.0, "{rule:?}");
        }
    }

    #[test]
    fn rules_follow_their_formulas() {
        assert_eq!(factor(&LearningRateRule::AdaScale, 3.0, 0.0), 2.0);
        assert_eq!(factor(&LearningRateRule::AdamScale, 3.0, 0.0), 2.0_f64.sqrt());
        assert_eq!(factor(&LearningRateRule::Linear, 3.0, 0.0), 3.0);
        assert_eq!(factor(&LearningRateRule::SquareRoot, 9.0, 0.0), 3.0);
        assert_eq!(factor(&LearningRateRule::custom(|context| context.scale / 2.0), 3.0, 0.0), 1.5);
    }

    #[test]
    fn legw_warms_up_longer_at_a_larger_batch() {
        let rule = LearningRateRule::Legw { warmup_epochs: 2.0 };
        assert_eq!(factor(&rule, 4.0, 4.0), 1.0);
        assert_eq!(factor(&rule, 4.0, 8.0), 2.0);
        assert_eq!(factor(&rule, 1.0, 2.0), 1.0);
    }

    #[test]
    fn without_noise_statistics_adascale_stays_at_one() {
        let context = ScalingContext { scale: 8.0, noise: None, epochs: 0.0 };
        assert_eq!(LearningRateRule::AdaScale.factor(&context), Ok(1.0));
    }

    #[test]
    fn a_custom_rule_that_returns_nonsense_is_refused() {
        for nonsense in [f64::NAN, f64::INFINITY, -1.0] {
            let context = ScalingContext { scale: 2.0, noise: None, epochs: 0.0 };
            assert!(LearningRateRule::custom(move |_| nonsense).factor(&context).is_err());
        }
    }
}
