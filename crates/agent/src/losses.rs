use pollux_model::{LossCurve, ModelError};

use crate::AgentError;

/// Points that are remembered at most; neighbours are merged when there would be more.
const POINTS_MAX: usize = 32;

/// Losses over a whole training, thinned evenly, and the curve fitted to them.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Losses {
    /// In order of progress.
    points: Vec<Point>,
    /// Steps at the baseline batch that a point stands for.
    spacing: f64,
    /// There is a new point since the last fit.
    stale: bool,
    /// The last good fit.
    curve: Option<LossCurve>,
}

/// The mean of some losses that follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Point {
    /// Progress at the first of them.
    start: f64,
    baseline_steps: f64,
    loss: f64,
    count: u64,
}

impl Losses {
    pub(crate) const fn curve(&self) -> Option<LossCurve> {
        self.curve
    }

    /// Refuses saved losses that no agent would have written.
    pub(crate) fn check(&self) -> Result<(), AgentError> {
        let points = self.points.len();
        let in_order = self.points.is_sorted_by(|a, b| a.start <= b.start && a.baseline_steps <= b.baseline_steps);
        let spacing = self.spacing;
        let empty = self.points.iter().any(|point| point.count == 0);
        if points > POINTS_MAX || empty || !in_order || !spacing.is_finite() || spacing < 0.0 {
            return Err(AgentError::Losses { points, spacing, limit: POINTS_MAX });
        }
        Ok(self.points.iter().try_for_each(|point| {
            LossCurve::check(point.start, point.loss)?;
            LossCurve::check(point.baseline_steps, point.loss)
        })?)
    }

    /// Takes the loss after so many steps at the baseline batch in; a loss that no training can have changes nothing.
    pub(crate) fn record(&mut self, baseline_steps: f64, loss: f64) -> Result<(), ModelError> {
        LossCurve::check(baseline_steps, loss)?;
        let new = Point { start: baseline_steps, baseline_steps, loss, count: 1 };
        match self.points.last_mut() {
            Some(last) if baseline_steps - last.start < self.spacing || baseline_steps <= last.baseline_steps => {
                *last = last.merged(new);
            }
            Some(_) | None => {
                self.points.push(new);
                self.stale = true;
            }
        }
        if self.points.len() > POINTS_MAX {
            let pairs = self.points.chunks(2);
            self.points = pairs.filter_map(|pair| pair.iter().copied().reduce(Point::merged)).collect();
            self.spacing = 2.0 * baseline_steps / POINTS_MAX as f64;
        }
        Ok(())
    }

    /// Fits again if there is a new point. What cannot be fitted leaves the last good curve in place.
    pub(crate) fn refit(&mut self) {
        if std::mem::take(&mut self.stale) {
            let points: Vec<(f64, f64)> = self.points.iter().map(|point| (point.baseline_steps, point.loss)).collect();
            self.curve = LossCurve::fit(&points).ok().or(self.curve);
        }
    }
}

impl Point {
    fn merged(self, next: Self) -> Self {
        let count = self.count.saturating_add(next.count);
        let share = next.count as f64 / count as f64;
        let mean = |mine: f64, other: f64| mine + (other - mine) * share;
        Self {
            start: self.start,
            baseline_steps: mean(self.baseline_steps, next.baseline_steps),
            loss: mean(self.loss, next.loss),
            count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_training_is_remembered_evenly_in_few_points() {
        let truth = LossCurve::new(1e-3, 0.5, 0.2).unwrap();
        let mut losses = Losses::default();
        for steps in 0..100_000 {
            losses.record(f64::from(steps), truth.at(f64::from(steps))).unwrap();
        }
        let points: Vec<f64> = losses.points.iter().map(|point| point.baseline_steps).collect();
        let gaps: Vec<f64> = points.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (least, most) =
            gaps[..gaps.len() - 1].iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &gap| (a.min(gap), b.max(gap)));
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&points.len()) && most < 3.0 * least, "{points:?}");
        losses.refit();
        let fitted = losses.curve().unwrap();
        assert!((fitted.at(200_000.0) / truth.at(200_000.0) - 1.0).abs() < 0.05, "{fitted:?}");
        losses.check().unwrap();
    }
}
