use crate::rng::Rng;
use crate::samples::{CLASSES, INPUTS, STREAM_PARAMETERS, Samples};

/// A classifier with one hidden layer of `tanh` units. Its parameters are one flat slice: weights and biases of the
/// hidden layer, then of the output.
#[derive(Clone, Copy)]
pub(crate) struct Network {
    pub(crate) width: usize,
}

/// How well a network did on some samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    /// Sum of the cross-entropies.
    pub(crate) loss: f64,
    pub(crate) correct: u64,
}

/// What one sample leaves behind on its way through the network.
struct Activations {
    hidden: Vec<f32>,
    /// Logits, then what the loss says they should change by.
    output: [f32; CLASSES],
    hidden_error: Vec<f32>,
}

impl Network {
    pub(crate) const fn parameter_count(self) -> usize {
        self.width * (INPUTS + 1) + CLASSES * (self.width + 1)
    }

    /// Small random weights, biases of zero.
    pub(crate) fn initial_parameters(self, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed, STREAM_PARAMETERS);
        let mut parameters = Vec::with_capacity(self.parameter_count());
        for (inputs, outputs) in [(INPUTS, self.width), (self.width, CLASSES)] {
            let scale = (1.0 / inputs as f32).sqrt();
            parameters.extend((0..inputs * outputs).map(|_| rng.normal() * scale));
            parameters.extend((0..outputs).map(|_| 0.0));
        }
        parameters
    }

    /// Adds the gradients of the samples' losses to `gradient`.
    pub(crate) fn learn(
        self,
        parameters: &[f32],
        samples: &Samples,
        indices: impl Iterator<Item = u32>,
        gradient: &mut [f32],
    ) -> Score {
        let mut activations = self.activations();
        let mut score = Score::default();
        for idx in indices {
            let (input, label) = samples.get(idx);
            self.forward(parameters, input, &mut activations);
            score.add(&mut activations.output, label);
            self.backward(parameters, input, &mut activations, gradient);
        }
        score
    }

    /// Loss and hits without gradients.
    pub(crate) fn evaluate(self, parameters: &[f32], samples: &Samples) -> Score {
        let mut activations = self.activations();
        let mut score = Score::default();
        for idx in 0..samples.len() {
            let (input, label) = samples.get(idx);
            self.forward(parameters, input, &mut activations);
            score.add(&mut activations.output, label);
        }
        score
    }

    fn activations(self) -> Activations {
        Activations { hidden: vec![0.0; self.width], output: [0.0; CLASSES], hidden_error: vec![0.0; self.width] }
    }

    /// Where each part of the parameters, or of a gradient, ends.
    const fn bounds(self) -> [usize; 3] {
        let hidden_bias = self.width * INPUTS;
        let output = hidden_bias + self.width;
        [hidden_bias, output, output + CLASSES * self.width]
    }

    fn forward(self, parameters: &[f32], input: &[f32], activations: &mut Activations) {
        let [hidden_bias, output, output_bias] = self.bounds();
        for (unit, value) in activations.hidden.iter_mut().enumerate() {
            let weights = &parameters[unit * INPUTS..][..INPUTS];
            *value = (dot(weights, input) + parameters[hidden_bias + unit]).tanh();
        }
        for (class, value) in activations.output.iter_mut().enumerate() {
            let weights = &parameters[output + class * self.width..][..self.width];
            *value = dot(weights, &activations.hidden) + parameters[output_bias + class];
        }
    }

    fn backward(self, parameters: &[f32], input: &[f32], activations: &mut Activations, gradient: &mut [f32]) {
        let [hidden_bias, output, output_bias] = self.bounds();
        let Activations { hidden, output: output_error, hidden_error } = activations;
        hidden_error.fill(0.0);
        for (class, &error) in output_error.iter().enumerate() {
            let weights = output + class * self.width;
            add_scaled(&mut gradient[weights..][..self.width], error, hidden);
            gradient[output_bias + class] += error;
            add_scaled(hidden_error, error, &parameters[weights..][..self.width]);
        }
        for (unit, (error, value)) in hidden_error.iter().zip(hidden.iter()).enumerate() {
            let error = error * (1.0 - value * value);
            add_scaled(&mut gradient[unit * INPUTS..][..INPUTS], error, input);
            gradient[hidden_bias + unit] += error;
        }
    }
}

impl Score {
    pub(crate) fn accuracy(&self, samples: u64) -> f64 {
        self.correct as f64 / samples.max(1) as f64
    }

    /// Takes the logits of a sample in and turns them into their errors.
    fn add(&mut self, output: &mut [f32; CLASSES], label: usize) {
        let largest = output.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.correct += u64::from(output[label] >= largest);
        let log_sum = output.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln() + largest;
        self.loss += f64::from(log_sum - output[label]);
        for logit in output.iter_mut() {
            *logit = (*logit - log_sum).exp();
        }
        output[label] -= 1.0;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(sum: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_agree_with_finite_differences() {
        let network = Network { width: 5 };
        let samples = Samples::training(11, 8, 0.0);
        let mut parameters = network.initial_parameters(11);
        // Biases away from zero, so that every term counts.
        parameters.iter_mut().enumerate().for_each(|(idx, value)| *value += (idx % 7) as f32 * 0.01);
        let mut gradient = vec![0.0; network.parameter_count()];
        let score = network.learn(&parameters, &samples, 0..8, &mut gradient);
        assert!((score.loss - network.evaluate(&parameters, &samples).loss).abs() < 1e-5);

        let step = 1e-2;
        for idx in 0..parameters.len() {
            let mut loss = |offset: f32| {
                let before = parameters[idx];
                parameters[idx] += offset;
                let loss = network.evaluate(&parameters, &samples).loss;
                parameters[idx] = before;
                loss
            };
            let numeric = (loss(step) - loss(-step)) / (2.0 * f64::from(step));
            let analytic = f64::from(gradient[idx]);
            assert!((numeric - analytic).abs() < 2e-3 * (1.0 + analytic.abs()), "{idx}: {numeric} {analytic}");
        }
    }

    #[test]
    fn a_guess_costs_the_logarithm_of_the_classes() {
        let network = Network { width: 4 };
        let samples = Samples::test(1, 20);
        let score = network.evaluate(&vec![0.0; network.parameter_count()], &samples);
        assert!((score.loss / 20.0 - (CLASSES as f64).ln()).abs() < 1e-5);
    }
}
