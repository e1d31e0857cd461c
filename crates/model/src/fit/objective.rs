use super::Observation;
use crate::throughput::{GAMMA_MAX, GAMMA_MIN, PARAM_MAX_S, PARAM_MIN_S};

pub(super) const PARAMS: usize = 7;
pub(super) type Params = [f64; PARAMS];

pub(super) const ALPHA_C: usize = 0;
pub(super) const BETA_C: usize = 1;
pub(super) const ALPHA_N: usize = 2;
pub(super) const BETA_N: usize = 3;
pub(super) const ALPHA_R: usize = 4;
pub(super) const BETA_R: usize = 5;
pub(super) const GAMMA: usize = 6;

const GAMMA_PENALTY: f64 = 1e-3;
const RETROGRESSION_PENALTY: f64 = 1e-2;
/// An RMS error below this counts as zero; the root is not smooth there.
const RMS_FLOOR: f64 = 1e-9;
/// How much dearer links between nodes are believed to be until measured.
const INTERNODE_PRIOR: f64 = 1.1;

/// Which parameters the observations say something about.
pub(super) struct Structure {
    /// Free to move; the others stay where `project` puts them.
    pub(super) free: [bool; PARAMS],
    /// No multi-node evidence: links between nodes follow those within.
    internode_tied: bool,
    /// Seconds that `α_c` is believed to be where a single batch size tells nothing of it.
    alpha_c_fixed: Option<f64>,
}

impl Structure {
    pub(super) fn of(observations: &[Observation]) -> Self {
        let any = |test: &dyn Fn(&Observation) -> bool| observations.iter().any(test);
        let internode = any(&|seen| seen.shape.nodes() > 1);
        let intranode = any(&|seen| seen.shape.nodes() == 1 && seen.shape.replicas() > 1);
        let beyond_two = any(&|seen| seen.shape.replicas() > 2);
        let single_batch = !any(&|seen| seen.local_batch != observations[0].local_batch);
        let mean_compute_s = observations.iter().map(|seen| seen.compute_s).sum::<f64>() / observations.len() as f64;
        let mut free = [true; PARAMS];
        free[ALPHA_C] = !single_batch;
        free[ALPHA_N] = internode;
        free[BETA_N] = internode && beyond_two;
        free[ALPHA_R] = intranode;
        free[BETA_R] = intranode && beyond_two;
        free[GAMMA] = internode || intranode;
        Self { free, internode_tied: !internode, alpha_c_fixed: single_batch.then_some(mean_compute_s / 2.0) }
    }

    /// Puts parameters within their bounds and applies what is fixed or tied.
    pub(super) fn project(&self, params: &mut Params) {
        for (idx, value) in params.iter_mut().enumerate() {
            let (low, high) = bounds(idx);
            *value = if self.free[idx] { value.clamp(low, high) } else { low };
        }
        if let Some(alpha_c) = self.alpha_c_fixed {
            params[ALPHA_C] = alpha_c;
        }
        if self.internode_tied {
            params[ALPHA_N] = INTERNODE_PRIOR * params[ALPHA_R];
            params[BETA_N] = INTERNODE_PRIOR * params[BETA_R];
        }
    }

    /// Where links between nodes follow those within, what pulls on the former pulls on the latter.
    pub(super) fn fold(&self, expansion: &mut Expansion) {
        if !self.internode_tied {
            return;
        }
        for (from, to) in [(ALPHA_N, ALPHA_R), (BETA_N, BETA_R)] {
            expansion.gradient[to] += INTERNODE_PRIOR * expansion.gradient[from];
            expansion.curvature[to][to] += INTERNODE_PRIOR * INTERNODE_PRIOR * expansion.curvature[from][from];
        }
        expansion.curvature[BETA_R][ALPHA_R] +=
            INTERNODE_PRIOR * INTERNODE_PRIOR * expansion.curvature[BETA_N][ALPHA_N];
    }
}

pub(super) const fn bounds(idx: usize) -> (f64, f64) {
    if idx == GAMMA { (GAMMA_MIN, GAMMA_MAX) } else { (PARAM_MIN_S, PARAM_MAX_S / INTERNODE_PRIOR) }
}

/// One observation in the form the inner loop wants.
struct Row {
    local_batch: f64,
    /// Index of the link's `α`, its `β` follows; `None` on one replica.
    link: Option<usize>,
    further_replicas: f64,
    log_compute: f64,
    log_step: f64,
}

/// RMS log errors of compute and step times, plus the regularisers.
pub(super) struct Objective {
    rows: Vec<Row>,
}

/// Gradient and Gauss-Newton matrix of the objective at a point.
pub(super) struct Expansion {
    pub(super) value: f64,
    pub(super) gradient: Params,
    pub(super) curvature: [Params; PARAMS],
}

impl Objective {
    pub(super) fn new(observations: &[Observation]) -> Self {
        let rows = observations
            .iter()
            .map(|seen| Row {
                local_batch: f64::from(seen.local_batch),
                link: match (seen.shape.nodes(), seen.shape.replicas()) {
                    (_, 1) => None,
                    (1, _) => Some(ALPHA_R),
                    _ => Some(ALPHA_N),
                },
                further_replicas: f64::from(seen.shape.replicas().saturating_sub(2)),
                log_compute: seen.compute_s.ln(),
                log_step: seen.step_s.ln(),
            })
            .collect();
        Self { rows }
    }

    /// Parameters that tell the observations roughly, if the overlap were `gamma`.
    pub(super) fn initial_guess(&self, gamma: f64) -> Params {
        let (alpha_c, beta_c) = affine(self.rows.iter().map(|row| (row.local_batch, row.log_compute.exp())));
        let link = |wanted: usize| {
            affine(self.rows.iter().filter(|row| row.link == Some(wanted)).map(|row| {
                let (compute_s, step_s) = (row.log_compute.exp(), row.log_step.exp());
                let hidden = (compute_s / step_s).powf(gamma);
                // At least a trace of synchronisation, so that the logarithm has something to hold on to.
                (row.further_replicas, step_s * (1.0 - hidden).powf(1.0 / gamma).max(1e-4))
            }))
        };
        let ((alpha_n, beta_n), (alpha_r, beta_r)) = (link(ALPHA_N), link(ALPHA_R));
        [alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma]
    }

    pub(super) fn value(&self, params: &Params) -> f64 {
        let mut squares = [0.0; 2];
        for row in &self.rows {
            let predicted = Prediction::of(row, params);
            squares[0] += (predicted.log_compute - row.log_compute).powi(2);
            squares[1] += (predicted.log_step - row.log_step).powi(2);
        }
        let count = self.rows.len() as f64;
        (squares[0] / count).sqrt() + (squares[1] / count).sqrt() + regulariser(params)
    }

    /// Each root of squares is replaced by the parabola that touches it from above, which makes the whole a
    /// least-squares problem.
    pub(super) fn expand(&self, params: &Params) -> Expansion {
        let mut squares = [0.0; 2];
        let mut gradients = [[0.0; PARAMS]; 2];
        let mut curvatures = [[[0.0; PARAMS]; PARAMS]; 2];
        for row in &self.rows {
            let predicted = Prediction::of(row, params);
            let (compute, step) = predicted.slopes(row, params);
            let errors = [predicted.log_compute - row.log_compute, predicted.log_step - row.log_step];
            for (part, slopes) in [compute, step].iter().enumerate() {
                squares[part] += errors[part] * errors[part];
                for (i, row) in curvatures[part].iter_mut().enumerate() {
                    gradients[part][i] += errors[part] * slopes[i];
                    for (j, cell) in row.iter_mut().enumerate().take(i + 1) {
                        *cell += slopes[i] * slopes[j];
                    }
                }
            }
        }
        let count = self.rows.len() as f64;
        let mut expansion =
            Expansion { value: regulariser(params), gradient: [0.0; PARAMS], curvature: [[0.0; PARAMS]; PARAMS] };
        for part in 0..2 {
            let rms = (squares[part] / count).sqrt();
            expansion.value += rms;
            let weight = 1.0 / (count * rms.max(RMS_FLOOR));
            for (i, row) in curvatures[part].iter().enumerate() {
                expansion.gradient[i] += weight * gradients[part][i];
                for (total, cell) in expansion.curvature[i].iter_mut().zip(row) {
                    *total += weight * cell;
                }
            }
        }
        add_regulariser(params, &mut expansion);
        expansion
    }
}

/// What the model says of a row, in logarithms.
struct Prediction {
    compute_s: f64,
    sync_s: f64,
    log_compute: f64,
    log_step: f64,
    /// Share of synchronisation in `T_grad^γ + T_sync^γ`.
    sync_share: f64,
    log_ratio: f64,
}

impl Prediction {
    fn of(row: &Row, params: &Params) -> Self {
        let compute_s = params[ALPHA_C] + params[BETA_C] * row.local_batch;
        let log_compute = compute_s.ln();
        let Some(link) = row.link else {
            return Self {
                compute_s,
                sync_s: 0.0,
                log_compute,
                log_step: log_compute,
                sync_share: 0.0,
                log_ratio: 0.0,
            };
        };
        let sync_s = params[link] + params[link + 1] * row.further_replicas;
        let log_ratio = (sync_s / compute_s).ln();
        let exponent = params[GAMMA] * log_ratio;
        // ln(1 + e^x), and its slope, without overflow on either side.
        let (softplus, sync_share) = if exponent > 0.0 {
            let small = (-exponent).exp();
            (exponent + small.ln_1p(), 1.0 / (1.0 + small))
        } else {
            let small = exponent.exp();
            (small.ln_1p(), small / (1.0 + small))
        };
        let log_step = log_compute + softplus / params[GAMMA];
        Self { compute_s, sync_s, log_compute, log_step, sync_share, log_ratio }
    }

    /// Derivatives of the two logarithms by each parameter.
    fn slopes(&self, row: &Row, params: &Params) -> (Params, Params) {
        let mut compute = [0.0; PARAMS];
        compute[ALPHA_C] = 1.0 / self.compute_s;
        compute[BETA_C] = row.local_batch / self.compute_s;
        let mut step = compute;
        if let Some(link) = row.link {
            step[ALPHA_C] *= 1.0 - self.sync_share;
            step[BETA_C] *= 1.0 - self.sync_share;
            step[link] = self.sync_share / self.sync_s;
            step[link + 1] = row.further_replicas * step[link];
            let softplus_over_gamma = self.log_step - self.log_compute;
            step[GAMMA] = (self.sync_share * self.log_ratio - softplus_over_gamma) / params[GAMMA];
        }
        (compute, step)
    }
}

fn regulariser(params: &Params) -> f64 {
    GAMMA_PENALTY * (params[GAMMA] - 1.0).powi(2)
        + RETROGRESSION_PENALTY
            * ((params[BETA_N] / params[ALPHA_N]).powi(2) + (params[BETA_R] / params[ALPHA_R]).powi(2))
}

fn add_regulariser(params: &Params, expansion: &mut Expansion) {
    expansion.gradient[GAMMA] += 2.0 * GAMMA_PENALTY * (params[GAMMA] - 1.0);
    expansion.curvature[GAMMA][GAMMA] += 2.0 * GAMMA_PENALTY;
    for alpha in [ALPHA_N, ALPHA_R] {
        let beta = alpha + 1;
        let ratio = params[beta] / params[alpha];
        let by_alpha = -ratio / params[alpha];
        let by_beta = 1.0 / params[alpha];
        expansion.gradient[alpha] += 2.0 * RETROGRESSION_PENALTY * ratio * by_alpha;
        expansion.gradient[beta] += 2.0 * RETROGRESSION_PENALTY * ratio * by_beta;
        let (low, high) = (alpha, beta);
        expansion.curvature[low][low] += 2.0 * RETROGRESSION_PENALTY * by_alpha * by_alpha;
        expansion.curvature[high][low] += 2.0 * RETROGRESSION_PENALTY * by_alpha * by_beta;
        expansion.curvature[high][high] += 2.0 * RETROGRESSION_PENALTY * by_beta * by_beta;
    }
}

/// `(a, b)` of the line `y = a + b·x` with the least relative error, neither falling below a share of the mean.
fn affine(points: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut weights, mut xs, mut ys, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in points {
        let weight = 1.0 / (y * y);
        weights += weight;
        xs += weight * x;
        ys += weight * y;
        xx += weight * x * x;
        xy += weight * x * y;
    }
    if weights == 0.0 {
        return (PARAM_MIN_S, PARAM_MIN_S);
    }
    let (mean_x, mean_y) = (xs / weights, ys / weights);
    let spread = xx / weights - mean_x * mean_x;
    let slope_max = if mean_x > 0.0 { 0.9 * mean_y / mean_x } else { 0.0 };
    let slope = if spread > 1e-12 * mean_x * mean_x { (xy / weights - mean_x * mean_y) / spread } else { slope_max };
    let slope = slope.clamp(0.01 * slope_max, slope_max);
    (mean_y - slope * mean_x, slope)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Shape;

    fn observations() -> Vec<Observation> {
        let shapes = [(1, 1), (1, 2), (1, 4), (2, 2), (3, 9)];
        let times = [(0.1, 0.1), (0.11, 0.15), (0.3, 0.5), (0.2, 0.9), (0.4, 0.45)];
        shapes
            .iter()
            .zip(times)
            .zip([8, 8, 32, 16, 64])
            .map(|((&(nodes, replicas), (compute_s, step_s)), local_batch)| {
                let shape = Shape::new(nodes, replicas).unwrap();
                Observation { shape, local_batch, compute_s, step_s }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn the_gradient_agrees_with_finite_differences(
            logs in prop::array::uniform6(-6.0f64..1.0), gamma in 1.1f64..9.0,
        ) {
            let mut params = [gamma; PARAMS];
            for (param, log) in params.iter_mut().zip(logs) {
                *param = log.exp();
            }
            let objective = Objective::new(&observations());
            let gradient = objective.expand(&params).gradient;
            for idx in 0..PARAMS {
                let width = 1e-5 * params[idx];
                let at = |shift: f64| {
                    let mut moved = params;
                    moved[idx] += shift;
                    objective.value(&moved)
                };
                let difference = (at(width) - at(-width)) / (2.0 * width);
                let scale = (gradient[idx] * params[idx]).abs().max(1e-3) / params[idx];
                prop_assert!(
                    (difference - gradient[idx]).abs() < 1e-4 * scale,
                    "parameter {}: {} by differences, {} analytic", idx, difference, gradient[idx]
                );
            }
        }
    }
}
