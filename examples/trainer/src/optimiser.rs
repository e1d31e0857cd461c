use pollux_model::{LearningRateRule, Preconditioner};
use serde::{Deserialize, Serialize};

const MOMENTUM: f32 = 0.9;
const BETA1: f32 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// How parameters follow gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OptimiserKind {
    /// SGD with momentum; its learning rate follows the batch by AdaScale
    Sgd,
    /// Adam; its learning rate follows the batch by the square root of AdaScale
    Adam,
}

impl OptimiserKind {
    pub(crate) const fn learning_rate(self) -> f64 {
        match self {
            Self::Sgd => 0.02,
            Self::Adam => 0.001,
        }
    }

    pub(crate) const fn rule(self) -> LearningRateRule {
        match self {
            Self::Sgd => LearningRateRule::AdaScale,
            Self::Adam => LearningRateRule::AdamScale,
        }
    }
}

/// An optimiser and what it remembers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Optimiser {
    Sgd { velocity: Vec<f32> },
    Adam { first_moment: Vec<f32>, second_moment: Vec<f32>, steps: u32 },
}

impl Optimiser {
    pub(crate) fn new(kind: OptimiserKind, parameters: usize) -> Self {
        let zeros = || vec![0.0; parameters];
        match kind {
            OptimiserKind::Sgd => Self::Sgd { velocity: zeros() },
            OptimiserKind::Adam => Self::Adam { first_moment: zeros(), second_moment: zeros(), steps: 0 },
        }
    }

    pub(crate) fn update(&mut self, parameters: &mut [f32], gradient: &[f32], learning_rate: f64) {
        match self {
            Self::Sgd { velocity } => {
                for ((parameter, velocity), gradient) in parameters.iter_mut().zip(velocity).zip(gradient) {
                    *velocity = MOMENTUM * *velocity + gradient;
                    *parameter -= learning_rate as f32 * *velocity;
                }
            }
            Self::Adam { first_moment, second_moment, steps } => {
                *steps = steps.saturating_add(1);
                let first_weight = 1.0 - f64::from(BETA1).powf(f64::from(*steps));
                let root_weight = (1.0 - BETA2.powf(f64::from(*steps))).sqrt();
                let rate = (learning_rate / first_weight) as f32;
                let moments = first_moment.iter_mut().zip(second_moment);
                for ((parameter, (first, second)), gradient) in parameters.iter_mut().zip(moments).zip(gradient) {
                    *first = BETA1 * *first + (1.0 - BETA1) * gradient;
                    *second = BETA2 as f32 * *second + (1.0 - BETA2) as f32 * gradient * gradient;
                    *parameter -= rate * *first / (second.sqrt() / root_weight as f32 + EPSILON as f32);
                }
            }
        }
    }

    /// The space in which gradients are used, and their noise is measured.
    pub(crate) fn preconditioner(&self) -> Preconditioner<'_> {
        match self {
            Self::Sgd { .. } => Preconditioner::Identity,
            Self::Adam { second_moment, steps, .. } => {
                Preconditioner::Adam { second_moment, beta2: BETA2, step: *steps, epsilon: EPSILON }
            }
        }
    }

    /// Everything it remembers: vectors as long as the parameters, and steps.
    pub(crate) fn parts(&self) -> (Vec<&[f32]>, u32) {
        match self {
            Self::Sgd { velocity } => (vec![velocity], 0),
            Self::Adam { first_moment, second_moment, steps } => (vec![first_moment, second_moment], *steps),
        }
    }

    /// From what [`Self::parts`] gave; `None` if there is another number of vectors.
    pub(crate) fn from_parts(kind: OptimiserKind, vectors: Vec<Vec<f32>>, steps: u32) -> Option<Self> {
        let mut vectors = vectors.into_iter();
        let optimiser = match kind {
            OptimiserKind::Sgd => Self::Sgd { velocity: vectors.next()? },
            OptimiserKind::Adam => Self::Adam { first_moment: vectors.next()?, second_moment: vectors.next()?, steps },
        };
        vectors.next().is_none().then_some(optimiser)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_find_the_bottom_of_a_valley() {
        for (kind, rate) in [(OptimiserKind::Sgd, 0.05), (OptimiserKind::Adam, 0.05)] {
            let mut parameters = vec![3.0, -2.0];
            let mut optimiser = Optimiser::new(kind, 2);
            for _ in 0..500 {
                let gradient = [parameters[0] - 1.0, 4.0 * (parameters[1] - 0.5)];
                optimiser.update(&mut parameters, &gradient, rate);
            }
            assert!((parameters[0] - 1.0).abs() < 0.02 && (parameters[1] - 0.5).abs() < 0.02, "{parameters:?}");
        }
    }

    #[test]
    fn the_first_step_of_adam_is_as_long_as_its_rate() {
        let mut parameters = vec![0.0, 0.0];
        Optimiser::new(OptimiserKind::Adam, 2).update(&mut parameters, &[100.0, -0.001], 0.1);
        assert!((parameters[0] + 0.1).abs() < 1e-4 && (parameters[1] - 0.1).abs() < 1e-4, "{parameters:?}");
    }
}
