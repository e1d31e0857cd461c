//! Levenberg-Marquardt under bounds, from a few starting points.

use super::objective::{GAMMA, Objective, PARAMS, Params, Structure, bounds};

const ITERATIONS_MAX: usize = 60;
/// A step that gains less than this share of the objective is the last one.
const CONVERGED: f64 = 1e-7;
const DAMPING_MIN: f64 = 1e-9;
const DAMPING_MAX: f64 = 1e9;
/// Overlaps to start from: none, some, much. The objective has a valley for each.
const GAMMA_STARTS: [f64; 3] = [1.1, 2.0, 5.0];
/// With a warm start, one cold start guards against a valley that the new observations have left.
const GAMMA_GUARD: [f64; 1] = [1.1];

pub(super) struct Solution {
    pub(super) params: Params,
    pub(super) objective: f64,
}

pub(super) fn solve(objective: &Objective, structure: &Structure, warm_start: Option<Params>) -> Solution {
    let gammas: &[f64] = if warm_start.is_some() || !structure.free[GAMMA] { &GAMMA_GUARD } else { &GAMMA_STARTS };
    warm_start
        .into_iter()
        .chain(gammas.iter().map(|&gamma| objective.initial_guess(gamma)))
        .map(|start| descend(objective, structure, start))
        .min_by(|a, b| a.objective.total_cmp(&b.objective))
        .expect("there is at least one starting point")
}

fn descend(objective: &Objective, structure: &Structure, start: Params) -> Solution {
    let mut params = start;
    structure.project(&mut params);
    let mut damping = 1e-3;
    let mut expansion = objective.expand(&params);
    structure.fold(&mut expansion);
    for _ in 0..ITERATIONS_MAX {
        let moving = movable(structure, &params, &expansion.gradient);
        let mut accepted = None;
        while accepted.is_none() && damping <= DAMPING_MAX {
            let mut candidate = params;
            if let Some(step) = damped_step(&expansion.gradient, &expansion.curvature, &moving, damping) {
                for idx in 0..PARAMS {
                    candidate[idx] += step[idx];
                }
                structure.project(&mut candidate);
                let mut next = objective.expand(&candidate);
                if next.value < expansion.value {
                    structure.fold(&mut next);
                    accepted = Some((candidate, next));
                    damping = (damping * 0.2).max(DAMPING_MIN);
                    break;
                }
            }
            damping *= 5.0;
        }
        let Some((next_params, next)) = accepted else { break };
        let gain = expansion.value - next.value;
        (params, expansion) = (next_params, next);
        if gain < CONVERGED * expansion.value {
            break;
        }
    }
    Solution { params, objective: expansion.value }
}

/// Free parameters, but for those at a bound that would only leave it outwards.
fn movable(structure: &Structure, params: &Params, gradient: &Params) -> [bool; PARAMS] {
    std::array::from_fn(|idx| {
        let (low, high) = bounds(idx);
        let stuck = (params[idx] <= low && gradient[idx] > 0.0) || (params[idx] >= high && gradient[idx] < 0.0);
        structure.free[idx] && !stuck
    })
}

/// Solves `(C + damping·diag(C))·step = -gradient` over the moving parameters by Cholesky factors.
fn damped_step(
    gradient: &Params,
    curvature: &[Params; PARAMS],
    moving: &[bool; PARAMS],
    damping: f64,
) -> Option<Params> {
    let mut factor = [[0.0; PARAMS]; PARAMS];
    let mut half = [0.0; PARAMS];
    for i in (0..PARAMS).filter(|&i| moving[i]) {
        for j in (0..=i).filter(|&j| moving[j]) {
            let diagonal = if i == j { curvature[i][i] * (1.0 + damping) + f64::MIN_POSITIVE } else { curvature[i][j] };
            let rest = diagonal - (0..j).map(|k| factor[i][k] * factor[j][k]).sum::<f64>();
            if i == j {
                if rest <= 0.0 || !rest.is_finite() {
                    return None;
                }
                factor[i][i] = rest.sqrt();
            } else {
                factor[i][j] = rest / factor[j][j];
            }
        }
        half[i] = (-gradient[i] - (0..i).map(|k| factor[i][k] * half[k]).sum::<f64>()) / factor[i][i];
    }
    let mut step = [0.0; PARAMS];
    for i in (0..PARAMS).rev().filter(|&i| moving[i]) {
        step[i] = (half[i] - (i + 1..PARAMS).map(|k| factor[k][i] * step[k]).sum::<f64>()) / factor[i][i];
    }
    Some(step)
}
