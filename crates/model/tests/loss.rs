//! The loss curve of a job: fitted to what it told, and what follows from it.

use pollux_model::{LossCurve, ModelError};
use proptest::prelude::*;

fn told(curve: &LossCurve, steps: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    steps.map(|steps| (steps, curve.at(steps))).collect()
}

proptest! {
    #[test]
    fn the_fit_recovers_a_known_curve_and_predicts_its_future(
        start in 0.5f64..100.0,
        floor_share in 0.0f64..0.8,
        halvings in 1.0f64..40.0,
        last in 1e2f64..1e6,
    ) {
        let above = start * (1.0 - floor_share);
        let truth = LossCurve::new(halvings / (above * last), 1.0 / above, start * floor_share).unwrap();
        let points = told(&truth, (0..32).map(|idx| f64::from(idx) / 31.0 * last));
        let fitted = LossCurve::fit(&points).unwrap();
        for steps in [0.0, last / 3.0, last, 2.0 * last, 4.0 * last] {
            let (found, wanted) = (fitted.at(steps), truth.at(steps));
            prop_assert!((found / wanted - 1.0).abs() < 0.03, "{} is {}, not {}: {:?}", steps, found, wanted, fitted);
        }
    }

    #[test]
    fn a_fit_of_anything_is_a_curve_that_falls_or_an_error(
        losses in prop::collection::vec((0.0f64..1e5, prop_oneof![
            20 => 1e-6f64..1e3, 1 => Just(0.0), 1 => Just(-1.0), 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)
        ]), 0..40),
        sorted: bool,
    ) {
        let mut losses = losses;
        if sorted {
            losses.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        if let Ok(curve) = LossCurve::fit(&losses) {
            prop_assert!(curve.at(0.0).is_finite() && curve.at(1e9) <= curve.at(0.0));
            prop_assert_eq!(LossCurve::fit(&losses), Ok(curve));
        }
    }

    #[test]
    fn after_convergence_an_epoch_brings_less_than_the_threshold(
        slope in 1e-6f64..1.0,
        offset in 1e-3f64..10.0,
        floor in 0.0f64..10.0,
        epoch_steps in 1.0f64..1e4,
        threshold in 1e-3f64..0.5,
    ) {
        let curve = LossCurve::new(slope, offset, floor).unwrap();
        let share = |steps: f64| 1.0 - curve.at(steps + epoch_steps) / curve.at(steps);
        let end = curve.converges_after(epoch_steps, threshold);
        prop_assert!(share(end) <= threshold * (1.0 + 1e-6), "{} at {}", share(end), end);
        prop_assert!(end == 0.0 || (share(end) / threshold - 1.0).abs() < 1e-6, "{} at {}", share(end), end);
    }
}

#[test]
fn single_outliers_do_not_move_the_curve() {
    let truth = LossCurve::new(0.01, 0.5, 0.3).unwrap();
    let mut points = told(&truth, (0..30).map(|idx| f64::from(idx) * 50.0));
    for idx in [7, 15, 23] {
        points[idx].1 *= 5.0;
    }
    let fitted = LossCurve::fit(&points).unwrap();
    assert!((fitted.at(3000.0) / truth.at(3000.0) - 1.0).abs() < 0.05, "{fitted:?}");
}

#[test]
fn a_loss_that_does_not_fall_has_a_flat_curve_that_converged() {
    let flat = LossCurve::fit(&[(0.0, 2.0), (1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]).unwrap();
    assert!((flat.at(1e6) - 2.0).abs() < 1e-9, "{flat:?}");
    let rising = LossCurve::fit(&[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]).unwrap();
    assert_eq!((rising.slope(), rising.converges_after(1.0, 0.01)), (0.0, 0.0));
}

#[test]
fn what_says_nothing_of_a_curve_is_refused() {
    let few = LossCurve::fit(&[(1.0, 3.0), (2.0, 2.0), (2.0, 1.9), (3.0, 1.0)]).unwrap_err();
    assert_eq!(few.to_string(), "losses after 3 different numbers of steps: expected 4 or more, in ascending order");
    assert_eq!(LossCurve::fit(&[]), Err(ModelError::FewLosses { found: 0, needed: 4 }));
    let negative = LossCurve::fit(&[(1.0, -3.0)]).unwrap_err();
    assert_eq!(negative.to_string(), "loss -3: expected 1e-30 to 1e30");
}
