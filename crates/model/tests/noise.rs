//! The noise estimators on gradients whose signal and noise are known.

use pollux_model::{GradientNorms, ModelError, NoiseEstimator, NoiseSample, NoiseStatistics, Preconditioner};
use proptest::prelude::*;

const DIMENSIONS: usize = 40;
const BASELINE: u32 = 32;

/// A small generator of normal numbers, so that a seed decides everything.
struct Normal(u64);

impl Normal {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Gradients of micro-batches around a fixed mean, with a known variance per sample and dimension.
struct World {
    mean: Vec<f64>,
    deviation: Vec<f64>,
    normal: Normal,
}

impl World {
    fn new(seed: u64, signal: f64, noise: f64) -> Self {
        let mut normal = Normal(seed);
        let mean = (0..DIMENSIONS).map(|_| signal * normal.next()).collect();
        let deviation = (0..DIMENSIONS).map(|_| noise * (0.5 + normal.uniform())).collect();
        Self { mean, deviation, normal }
    }

    fn gradient(&mut self, samples: u32) -> Vec<f32> {
        let shrink = f64::from(samples).sqrt();
        let normal = &mut self.normal;
        self.mean
            .iter()
            .zip(&self.deviation)
            .map(|(mean, deviation)| (mean + deviation / shrink * normal.next()) as f32)
            .collect()
    }

    fn step(&mut self, micro_batches: u32, local_batch: u32, preconditioner: Preconditioner<'_>) -> GradientNorms {
        let gradients: Vec<Vec<f32>> = (0..micro_batches).map(|_| self.gradient(local_batch)).collect();
        let views: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
        GradientNorms::of_micro_batches(&views, micro_batches * local_batch, preconditioner).expect("equally long")
    }

    /// `|P·g|²` and the variance of a baseline batch's preconditioned gradient.
    fn truth(&self, scale: impl Fn(usize) -> f64) -> (f64, f64) {
        let sum = |values: &[f64]| values.iter().enumerate().map(|(idx, value)| (value * scale(idx)).powi(2)).sum();
        let (sqr, var): (f64, f64) = (sum(&self.mean), sum(&self.deviation));
        (sqr, var / f64::from(BASELINE))
    }
}

/// The plain average over enough steps that its standard error is a fifth of the 2% asked for.
fn average(mut step: impl FnMut() -> GradientNorms) -> (f64, f64) {
    let (mut sums, mut squares, mut count) = ([0.0; 2], [0.0; 2], 0.0);
    loop {
        for _ in 0..2_000 {
            let NoiseSample { sqr, var } = step().estimate(BASELINE).expect("finite and two micro-batches or more");
            for (part, value) in [sqr, var].into_iter().enumerate() {
                sums[part] += value;
                squares[part] += value * value;
            }
            count += 1.0;
        }
        let settled = (0..2).all(|part| {
            let mean: f64 = sums[part] / count;
            let error = ((squares[part] / count - mean * mean) / count).sqrt();
            error < 0.004 * mean
        });
        if settled {
            return (sums[0] / count, sums[1] / count);
        }
        assert!(count < 1e6, "no steady average after {count} steps");
    }
}

fn assert_close(found: (f64, f64), truth: (f64, f64)) -> Result<(), TestCaseError> {
    for (name, found, truth) in [("sqr", found.0, truth.0), ("var", found.1, truth.1)] {
        prop_assert!((found / truth - 1.0).abs() < 0.02, "{} {} but the truth is {}", name, found, truth);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn micro_batches_tell_signal_and_noise_without_bias(
        seed: u64, micro_batches in 2u32..9, local_batch in 8u32..65, noise in 1.0..5.0,
    ) {
        let mut world = World::new(seed, 1.0, noise);
        let truth = world.truth(|_| 1.0);
        let found = average(|| world.step(micro_batches, local_batch, Preconditioner::Identity));
        assert_close(found, truth)?;
    }

    #[test]
    fn consecutive_steps_tell_signal_and_noise_without_bias(
        seed: u64, batch_size in 16u32..200, noise in 1.0..5.0,
    ) {
        let mut world = World::new(seed, 1.0, noise);
        let truth = world.truth(|_| 1.0);
        let mut previous = world.gradient(batch_size);
        let found = average(|| {
            let current = world.gradient(batch_size);
            let norms =
                GradientNorms::of_consecutive_steps(&previous, &current, batch_size, Preconditioner::Identity);
            previous = current;
            norms.expect("equally long")
        });
        assert_close(found, truth)?;
    }

    #[test]
    fn preconditioned_norms_tell_the_preconditioned_truth(seed: u64, noise in 1.0..5.0, step in 1u32..500) {
        let mut world = World::new(seed, 1.0, noise);
        let (beta2, epsilon) = (0.99, 1e-8);
        let second_moment: Vec<f32> = (0..DIMENSIONS).map(|idx| 1.0 + 0.1 * idx as f32).collect();
        let correction = 1.0 - f64::powf(beta2, f64::from(step));
        let truth =
            world.truth(|idx| 1.0 / ((f64::from(second_moment[idx]) / correction).sqrt() + epsilon));
        let adam = Preconditioner::Adam { second_moment: &second_moment, beta2, step, epsilon };
        let found = average(|| world.step(4, 16, adam));
        assert_close(found, truth)?;
    }
}

#[test]
fn the_smoothed_estimate_survives_changes_of_replicas_and_accumulation() {
    let mut world = World::new(7, 1.0, 4.0);
    let (sqr, var) = world.truth(|_| 1.0);
    let mut estimator = NoiseEstimator::new(BASELINE);
    let (mut sqr_sum, mut var_sum, mut count) = (0.0, 0.0, 0.0);
    for phase in 0..60 {
        let (micro_batches, local_batch) = [(2, 16), (8, 16), (4, 64), (2, 128)][phase % 4];
        for _ in 0..1_000 {
            assert!(estimator.update(&world.step(micro_batches, local_batch, Preconditioner::Identity), 1));
            let statistics = estimator.statistics().unwrap();
            sqr_sum += statistics.sqr();
            var_sum += statistics.var();
            count += 1.0;
        }
        let statistics = estimator.statistics().unwrap();
        assert!((statistics.sqr() / sqr - 1.0).abs() < 0.1, "phase {phase}: sqr {} of {sqr}", statistics.sqr());
        assert!((statistics.var() / var - 1.0).abs() < 0.1, "phase {phase}: var {} of {var}", statistics.var());
    }
    assert!((sqr_sum / count / sqr - 1.0_f64).abs() < 0.02, "sqr {} of {sqr}", sqr_sum / count);
    assert!((var_sum / count / var - 1.0_f64).abs() < 0.02, "var {} of {var}", var_sum / count);
}

/// Estimates of the noise scale after so many steps, against the truth.
fn certain_noise_scales(steps: u32, deviations: f64) -> Vec<f64> {
    let ratio = |seed| {
        let mut world = World::new(seed, 0.3, 4.0);
        let (sqr, var) = world.truth(|_| 1.0);
        let mut estimator = NoiseEstimator::new(BASELINE);
        (0..steps).for_each(|_| assert!(estimator.update(&world.step(2, 16, Preconditioner::Identity), 64)));
        estimator.certain(deviations).and_then(|found| found.noise_scale(BASELINE)).unwrap_or(f64::INFINITY)
            / (f64::from(BASELINE) * var / sqr)
    };
    (0..200).map(ratio).collect()
}

#[test]
fn what_is_certain_is_rarely_too_much_and_comes_close_with_time() {
    let above = |ratios: &[f64]| ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let few = certain_noise_scales(20, 2.0);
    assert!(above(&few) <= 10, "{} of 200 are too large after 20 steps", above(&few));
    assert!(above(&certain_noise_scales(20, 0.0)) > 60, "the most likely estimate is too large half of the time");
    let mut many = certain_noise_scales(3_000, 2.0);
    many.sort_by(f64::total_cmp);
    assert!((0.6..1.0).contains(&many[100]), "the median is {} of the truth", many[100]);
}

#[test]
fn an_average_is_over_enough_measurements_however_large_the_batch() {
    let spread = |window_min| {
        let mut world = World::new(5, 1.0, 4.0);
        let (sqr, _) = world.truth(|_| 1.0);
        let mut estimator = NoiseEstimator::new(BASELINE);
        let mut off: f64 = 0.0;
        for idx in 0..4_000 {
            let norms = world.step(2, 16, Preconditioner::Identity);
            // As if it stood for 64 steps that nobody measured.
            assert!(estimator.update(&GradientNorms { steps: 64, ..norms }, window_min));
            if idx > 500 {
                off = off.max((estimator.statistics().unwrap().sqr() / sqr - 1.0).abs());
            }
        }
        off
    };
    assert!(spread(64) < 0.7 * spread(1), "{} and {}", spread(64), spread(1));
}

#[test]
fn steps_that_are_not_finite_or_have_one_micro_batch_are_skipped() {
    let mut world = World::new(3, 1.0, 1.0);
    let mut estimator = NoiseEstimator::new(BASELINE);
    assert_eq!(estimator.statistics(), None);
    estimator.update(&world.step(4, 8, Preconditioner::Identity), 1);
    let before = estimator;
    let good = world.step(4, 8, Preconditioner::Identity);
    for bad in [
        GradientNorms { micro_sqr: f64::NAN, ..good },
        GradientNorms { mean_sqr: f64::INFINITY, ..good },
        GradientNorms { mean_sqr: -1.0, ..good },
        GradientNorms { micro_batches: 1, ..good },
        GradientNorms { micro_batches: 0, ..good },
        GradientNorms { steps: 0, ..good },
        GradientNorms { batch_size: 0.0, ..good },
        GradientNorms { batch_size: f64::INFINITY, ..good },
    ] {
        assert!(!estimator.update(&bad, 1), "{bad:?} was averaged in");
        assert_eq!(estimator, before);
    }
    assert!(estimator.update(&good, 1));
}

#[test]
fn the_first_step_is_not_pulled_towards_zero() {
    let norms = GradientNorms { steps: 1, micro_batches: 2, batch_size: 64.0, micro_sqr: 5.0, mean_sqr: 4.0 };
    let mut estimator = NoiseEstimator::new(BASELINE);
    estimator.update(&norms, 1);
    let statistics = estimator.statistics().unwrap();
    assert!((statistics.sqr() - 3.0).abs() < 1e-12 && (statistics.var() - 2.0).abs() < 1e-12, "{statistics:?}");
}

#[test]
fn norms_that_stand_for_many_steps_weigh_as_many_steps() {
    let norms = |steps, mean_sqr| GradientNorms { steps, micro_batches: 2, batch_size: 64.0, micro_sqr: 5.0, mean_sqr };
    let (mut one_by_one, mut at_once) = (NoiseEstimator::new(BASELINE), NoiseEstimator::new(BASELINE));
    one_by_one.update(&norms(1, 3.0), 1);
    at_once.update(&norms(1, 3.0), 1);
    (0..100).for_each(|_| assert!(one_by_one.update(&norms(1, 4.0), 1)));
    at_once.update(&norms(100, 4.0), 1);
    let (slow, quick) = (one_by_one.statistics().unwrap(), at_once.statistics().unwrap());
    assert!((slow.sqr() / quick.sqr() - 1.0).abs() < 1e-9, "{slow:?} and {quick:?}");
    assert_eq!((one_by_one.measurements(), at_once.measurements()), (101, 2));
}

/// Statistics after a step that says (1, 1) at the baseline batch and a second step.
fn after(second: &GradientNorms) -> NoiseStatistics {
    let first = GradientNorms { steps: 1, micro_batches: 2, batch_size: 32.0, micro_sqr: 3.0, mean_sqr: 2.0 };
    let mut estimator = NoiseEstimator::new(BASELINE);
    assert!(estimator.update(&first, 1) && estimator.update(second, 1));
    estimator.statistics().expect("two steps with signal")
}

/// What a running average that keeps 0.999^S holds after (1, 1) and then (sqr, var).
fn smoothed(scale: f64, sqr: f64, var: f64) -> (f64, f64) {
    let (keep, first) = (0.999_f64.powf(scale), 1.0 - 0.999);
    let average = |second: f64| (keep * first + (1.0 - keep) * second) / (keep * first + 1.0 - keep);
    (average(sqr), average(var))
}

fn assert_statistics(found: NoiseStatistics, (sqr, var): (f64, f64)) {
    assert!((found.sqr() / sqr - 1.0).abs() < 1e-9, "sqr {} of {sqr}", found.sqr());
    assert!((found.var() / var - 1.0).abs() < 1e-9, "var {} of {var}", found.var());
}

#[test]
fn a_step_weighs_as_much_as_its_batch_is_large() {
    for scale in [1.0, 4.0, 50.0] {
        let batch_size = scale * f64::from(BASELINE);
        // (3, 5): two micro-batches have twice the step's noise, which is 5/S.
        let norms = GradientNorms {
            steps: 1,
            micro_batches: 2,
            batch_size,
            micro_sqr: 3.0 + 10.0 / scale,
            mean_sqr: 3.0 + 5.0 / scale,
        };
        assert_statistics(after(&norms), smoothed(scale, 3.0, 5.0));
    }
}

#[test]
fn a_pair_of_steps_weighs_as_much_as_one() {
    // Signal 4 along one axis, noise of ±1 along the other: |g|² = 5 each, 4 for their mean.
    let pair = GradientNorms::of_consecutive_steps(&[2.0, 1.0], &[2.0, -1.0], 64, Preconditioner::Identity).unwrap();
    // The difference is 1, half of a step's noise; a baseline batch has twice that of one twice as large.
    assert_eq!(pair.estimate(BASELINE), Some(NoiseSample { sqr: 3.0, var: 4.0 }));
    assert_statistics(after(&pair), smoothed(2.0, 3.0, 4.0));
}

#[test]
fn gradients_and_moments_of_other_lengths_are_refused() {
    let refused = |name, found, expected| Err(ModelError::GradientLength { name, found, expected });
    let identity = Preconditioner::Identity;
    assert_eq!(
        GradientNorms::of_micro_batches(&[&[1.0, 2.0], &[1.0]], 64, identity),
        refused("micro-batch gradient", 1, 2)
    );
    assert_eq!(
        GradientNorms::of_consecutive_steps(&[1.0], &[1.0, 2.0], 64, identity),
        refused("micro-batch gradient", 2, 1)
    );
    let adam = |step| Preconditioner::Adam { second_moment: &[1.0], beta2: 0.99, step, epsilon: 1e-8 };
    let error = GradientNorms::of_micro_batches(&[&[1.0, 2.0], &[3.0, 4.0]], 64, adam(1)).unwrap_err();
    assert_eq!(error.to_string(), "second moment of length 1: expected 2, the length of the gradient");
    assert_eq!(adam(1).squared_norm(&[1.0, 2.0]), Err(error));
    assert_eq!(adam(0).squared_norm(&[3.0, 4.0]), Ok(25.0), "before the first update the moment is not used");
}
