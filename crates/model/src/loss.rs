use crate::ModelError;

/// Fewer losses than this say nothing of a curve with three parameters.
const LOSSES_MIN: usize = 4;
/// Losses around one whose median takes its place, on either side.
const NEIGHBOURS: usize = 2;
/// Floors that are tried before the best of them is refined.
const FLOORS: u32 = 16;
/// Each step of the refinement leaves 0.62 of the interval.
const REFINEMENTS: u32 = 16;
/// The floor stays this far below the smallest loss, as a share of it: a job that trains has something left to learn.
const FLOOR_MARGIN: f64 = 1e-3;
/// The curve starts at this many times the largest loss seen at most.
const START_MAX: f64 = 100.0;

/// How a training loss falls with progress: `1/(a·k + b) + c` after `k` steps at the baseline batch (Optimus, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawCurve"))]
pub struct LossCurve {
    slope: f64,
    offset: f64,
    floor: f64,
}

impl LossCurve {
    /// `slope` is `a`, how fast it falls; `offset` is `b`, above 0; `floor` is `c`, what it never falls below.
    pub fn new(slope: f64, offset: f64, floor: f64) -> Result<Self, ModelError> {
        for (name, value) in [("slope", slope), ("floor", floor)] {
            if !(0.0..=1e100).contains(&value) {
                return Err(ModelError::Parameter { name, value, accepted: "0 to 1e100" });
            }
        }
        if !(1e-100..=1e100).contains(&offset) {
            return Err(ModelError::Parameter { name: "offset", value: offset, accepted: "1e-100 to 1e100" });
        }
        Ok(Self { slope, offset, floor })
    }

    /// The curve nearest to losses after so many steps each, in ascending order; single outliers are ignored.
    ///
    /// For a given floor the reciprocals lie on a line, which non-negative least squares find; they are weighed by what
    /// an error of a reciprocal is worth as an error of the loss. The floor itself is searched for.
    pub fn fit(losses: &[(f64, f64)]) -> Result<Self, ModelError> {
        for &(steps, loss) in losses {
            Self::check(steps, loss)?;
        }
        let distinct = losses.windows(2).filter(|pair| pair[0].0 < pair[1].0).count() + 1;
        if distinct < LOSSES_MIN || !losses.is_sorted_by(|a, b| a.0 <= b.0) {
            return Err(ModelError::FewLosses { found: distinct.min(losses.len()), needed: LOSSES_MIN });
        }
        // In units of the largest loss and the last step all numbers are near 1.
        let steps_unit = losses[losses.len() - 1].0;
        let loss_unit = losses.iter().map(|&(_, loss)| loss).fold(0.0, f64::max);
        let points: Vec<(f64, f64)> = without_outliers(losses).map(|(k, l)| (k / steps_unit, l / loss_unit)).collect();
        let smallest = points.iter().map(|&(_, loss)| loss).fold(f64::INFINITY, f64::min);
        let width = smallest * (1.0 - FLOOR_MARGIN) / f64::from(FLOORS);
        let error = |floor: f64| squared_error(&points, floor, line(&points, floor));
        let grid = (0..=FLOORS).map(|idx| f64::from(idx) * width);
        let best = grid.min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(0.0);
        let floor = golden_minimum((best - width).max(0.0), (best + width).min(f64::from(FLOORS) * width), error);
        let (slope, offset) = line(&points, floor);
        Self::new(slope / (steps_unit * loss_unit), offset / loss_unit, floor * loss_unit)
    }

    /// Refuses a loss that no fit accepts.
    pub fn check(steps: f64, loss: f64) -> Result<(), ModelError> {
        if !(0.0..=1e30).contains(&steps) {
            return Err(ModelError::Parameter { name: "steps", value: steps, accepted: "0 to 1e30" });
        }
        if !(1e-30..=1e30).contains(&loss) {
            return Err(ModelError::Parameter { name: "loss", value: loss, accepted: "1e-30 to 1e30" });
        }
        Ok(())
    }

    /// `a`.
    pub const fn slope(&self) -> f64 {
        self.slope
    }

    /// `b`.
    pub const fn offset(&self) -> f64 {
        self.offset
    }

    /// `c`.
    pub const fn floor(&self) -> f64 {
        self.floor
    }

    /// The loss after so many steps at the baseline batch.
    pub fn at(&self, baseline_steps: f64) -> f64 {
        1.0 / (self.slope * baseline_steps + self.offset) + self.floor
    }

    /// Steps from the start after which another `epoch_steps` make the loss smaller by less than the share `threshold`
    /// of it; 0 if they never do.
    pub fn converges_after(&self, epoch_steps: f64, threshold: f64) -> f64 {
        // With x = a·k + b and d = a·epoch the share is d / ((x + d)(1 + c·x)): solved for x where it is the threshold.
        let reach = self.slope * epoch_steps;
        if reach <= 0.0 || threshold <= 0.0 {
            return if reach <= 0.0 { 0.0 } else { f64::INFINITY };
        }
        let linear = 1.0 + self.floor * reach;
        let constant = reach * (1.0 - 1.0 / threshold);
        let root = (linear * linear - 4.0 * self.floor * constant).max(0.0).sqrt();
        // This form of the solution also holds where the floor, and with it the square, is 0.
        let reciprocal = -2.0 * constant / (linear + root);
        ((reciprocal - self.offset) / self.slope).max(0.0)
    }
}

/// Each loss replaced by the median of itself and its neighbours; at the ends there are fewer, but as many on each side.
fn without_outliers(losses: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    losses.iter().enumerate().map(|(idx, &(steps, _))| {
        let reach = NEIGHBOURS.min(idx).min(losses.len() - 1 - idx);
        let mut around: Vec<f64> = losses[idx - reach..=idx + reach].iter().map(|&(_, loss)| loss).collect();
        around.sort_by(f64::total_cmp);
        (steps, around[reach])
    })
}

/// Slope and offset, neither negative, of the line nearest to `1/(loss - floor)`.
fn line(points: &[(f64, f64)], floor: f64) -> (f64, f64) {
    let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(x, loss) in points {
        let above = loss - floor;
        let weight = above.powi(4);
        let y = 1.0 / above;
        w += weight;
        wx += weight * x;
        wxx += weight * x * x;
        wy += weight * y;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    let slope = if determinant > 0.0 { (w * wxy - wx * wy) / determinant } else { 0.0 };
    let slope = slope.max(0.0);
    let offset = (wy - slope * wx) / w;
    let offset_min = 1.0 / START_MAX;
    if offset >= offset_min {
        return (slope, offset);
    }
    (((wxy - offset_min * wx) / wxx).max(0.0), offset_min)
}

fn squared_error(points: &[(f64, f64)], floor: f64, (slope, offset): (f64, f64)) -> f64 {
    points.iter().map(|&(x, loss)| (1.0 / (slope * x + offset) + floor - loss).powi(2)).sum()
}

/// The argument of the minimum between two others, by golden sections.
fn golden_minimum(mut low: f64, mut high: f64, value: impl Fn(f64) -> f64) -> f64 {
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    for _ in 0..REFINEMENTS {
        let (left, right) = (high - ratio * (high - low), low + ratio * (high - low));
        if value(left) <= value(right) { high = right } else { low = left }
    }
    f64::midpoint(low, high)
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawCurve {
    slope: f64,
    offset: f64,
    floor: f64,
}

#[cfg(feature = "serde")]
impl TryFrom<RawCurve> for LossCurve {
    type Error = ModelError;

    fn try_from(raw: RawCurve) -> Result<Self, ModelError> {
        Self::new(raw.slope, raw.offset, raw.floor)
    }
}
