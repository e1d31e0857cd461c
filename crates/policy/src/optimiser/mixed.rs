//! Prices where GPUs are of several kinds: one for each.
//!
//! At any prices every job by itself chooses its best kind and size; what is left to all of them after paying, and what
//! all GPUs cost, bounds what any packing can reach (the Lagrangian dual). The bound is lowest at the best prices. It
//! is convex but has kinks where a job changes its mind, on which a search by one price at a time comes to rest far
//! from the end; so it is smoothed, as if jobs chose at random with better choices likelier, and its minimum is found
//! by Newton's method at ever lower temperatures. Whatever prices come out, the bound at them holds.

use super::hulls::{Hulls, chosen};
use super::prices::Prices;
use super::problem::Problem;

/// Temperatures, as shares of what a GPU costs on average.
const TEMPERATURES: [f64; 5] = [0.2, 0.06, 0.02, 0.006, 0.002];
/// Steps at each of them.
const STEPS_MAX: usize = 8;
/// Times that a step is halved which leads upwards.
const HALVINGS_MAX: usize = 5;
/// A step that would lower the smoothed bound by less than this share of it ends the search at a temperature.
const DECREMENT_MIN: f64 = 1e-7;
/// Choices worse than the best by more than so many temperatures are never made.
const TEMPERATURES_NEAR: f64 = 20.0;
/// The factor by which a price changes at most in a step.
const FACTOR_MAX: f64 = 4.0;

/// The lowest bound that was found, and the prices that it holds at.
pub(super) struct MixedPrices {
    pub(super) prices: Vec<f64>,
    pub(super) upper_bound: f64,
}

/// The bound at some prices.
struct Dual {
    exact: f64,
    smooth: f64,
    gradient: Vec<f64>,
    /// Row by row.
    curvature: Vec<f64>,
}

/// The prices at which as many GPUs of each kind are chosen as there are, as nearly as that can be.
pub(super) fn price_kinds(problem: &Problem, hulls: &Hulls) -> MixedPrices {
    let kinds = hulls.kinds();
    let mut capacity = vec![0.0; kinds];
    for node in &problem.nodes {
        capacity[node.kind] += f64::from(node.resources.gpus);
    }
    let mut search = Search { hulls, capacity, best: MixedPrices { prices: vec![0.0; kinds], upper_bound: f64::MAX } };
    let free = search.dual(&vec![0.0; kinds], 0.0);
    search.note(&vec![0.0; kinds], free.exact);
    let wanted: f64 = (0..kinds).map(|kind| (-free.gradient[kind]).max(0.0)).sum();
    let mut price = search.first_price(&free);
    if wanted > 0.0 && price > 0.0 && price.is_finite() {
        search.descend(&mut vec![price; kinds], TEMPERATURES[0] * price);
        for share in TEMPERATURES {
            price = search.mean(&search.best.prices).max(price * 1e-3);
            let mut prices = search.best.prices.clone();
            search.descend(&mut prices, share * price);
        }
    }
    search.best
}

struct Search<'a> {
    hulls: &'a Hulls,
    capacity: Vec<f64>,
    best: MixedPrices,
}

impl Search<'_> {
    fn note(&mut self, prices: &[f64], bound: f64) {
        if bound < self.best.upper_bound {
            self.best = MixedPrices { prices: prices.to_vec(), upper_bound: bound };
        }
    }

    /// The mean price of a GPU.
    fn mean(&self, prices: &[f64]) -> f64 {
        let cost: f64 = prices.iter().zip(&self.capacity).map(|(price, gpus)| price * gpus).sum();
        cost / self.capacity.iter().sum::<f64>()
    }

    /// One price for all kinds at which about as many GPUs are chosen as there are.
    fn first_price(&self, free: &Dual) -> f64 {
        let all: f64 = self.capacity.iter().sum();
        let demand = |price: f64| -> f64 {
            let prices = vec![price; self.capacity.len()];
            (0..self.hulls.jobs()).map(|job| self.hulls.best(job, Prices::new(&prices, 1.0)).1).sum()
        };
        let none: f64 = (0..self.hulls.jobs()).map(|job| self.hulls.none(job)).sum();
        // What all could gain, spread over all GPUs: some price between this and a millionth of it.
        let (mut low, mut high) = (0.0, (free.exact - none) / all.max(1.0));
        for _ in 0..8 {
            if demand(high) <= all {
                break;
            }
            (low, high) = (high, high * 4.0);
        }
        for _ in 0..10 {
            let middle = if low > 0.0 { low.sqrt() * high.sqrt() } else { high / 8.0 };
            if demand(middle) > all { low = middle } else { high = middle }
        }
        high
    }

    /// Newton's method at one temperature, from the prices on; they end where the smoothed bound is lowest.
    fn descend(&mut self, prices: &mut Vec<f64>, temperature: f64) {
        let mut now = self.dual(prices, temperature);
        self.note(prices, now.exact);
        for _ in 0..STEPS_MAX {
            let Some(step) = newton_step(prices, &now, temperature) else { break };
            let mut length = 1.0;
            let mut found = None;
            for _ in 0..HALVINGS_MAX {
                let tried = moved(prices, &step, length, temperature);
                let there = self.dual(&tried, temperature);
                self.note(&tried, there.exact);
                if there.smooth < now.smooth {
                    found = Some((tried, there));
                    break;
                }
                length /= 2.0;
            }
            let Some((tried, there)) = found else { break };
            let fell = now.smooth - there.smooth;
            (*prices, now) = (tried, there);
            if fell <= DECREMENT_MIN * now.smooth.abs().max(f64::MIN_POSITIVE) * 1e-2 {
                break;
            }
        }
    }

    /// The bound at some prices and, above temperature 0, what it looks like nearby.
    fn dual(&self, prices: &[f64], temperature: f64) -> Dual {
        let kinds = prices.len();
        let (mut smooth, mut values) = (0.0, 0.0);
        let mut left = self.capacity.clone();
        let mut gradient = self.capacity.clone();
        let mut curvature = vec![0.0; kinds * kinds];
        let (mut mean, mut square) = (vec![0.0; kinds], vec![0.0; kinds]);
        let mut choice = vec![0usize; kinds];
        for job in 0..self.hulls.jobs() {
            let none = self.hulls.none(job);
            let (mut best, mut taken) = (none, None);
            for kind in 0..kinds {
                let hull = self.hulls.on(job, kind);
                choice[kind] = chosen(hull, prices[kind]);
                if let Some(idx) = choice[kind].checked_sub(1) {
                    let net = hull[idx].net(prices[kind]);
                    if net > best {
                        (best, taken) = (net, Some((kind, hull[idx])));
                    }
                }
            }
            // Kept apart from what is paid: values may differ by so much that gains would vanish.
            values += taken.map_or(none, |(_, vertex)| vertex.value);
            if let Some((kind, vertex)) = taken {
                left[kind] -= vertex.gpus;
            }
            if temperature <= 0.0 {
                if let Some((kind, vertex)) = taken {
                    gradient[kind] -= vertex.gpus;
                }
                continue;
            }
            let mut sum = ((none - best) / temperature).exp();
            for kind in 0..kinds {
                let hull = self.hulls.on(job, kind);
                (mean[kind], square[kind]) = (0.0, 0.0);
                let (before, after) = hull.split_at(choice[kind]);
                let mut weigh = |vertex: &super::hulls::Vertex| {
                    let behind = (best - vertex.net(prices[kind])) / temperature;
                    if behind > TEMPERATURES_NEAR {
                        return false;
                    }
                    let weight = (-behind).exp();
                    sum += weight;
                    mean[kind] += weight * vertex.gpus;
                    square[kind] += weight * vertex.gpus * vertex.gpus;
                    true
                };
                let _far = before.iter().rev().all(&mut weigh);
                let _far = after.iter().all(&mut weigh);
            }
            smooth += best + temperature * sum.ln();
            for kind in 0..kinds {
                let own = mean[kind] / sum;
                if own == 0.0 {
                    continue;
                }
                gradient[kind] -= own;
                curvature[kind * kinds + kind] += square[kind] / sum / temperature;
                for other in 0..kinds {
                    curvature[kind * kinds + other] -= own * (mean[other] / sum) / temperature;
                }
            }
        }
        let dot = |gpus: &[f64]| prices.iter().zip(gpus).map(|(price, gpus)| price * gpus).sum::<f64>();
        Dual { exact: values + dot(&left), smooth: smooth + dot(&self.capacity), gradient, curvature }
    }
}

/// The step to where the gradient would be 0; none if there is none to take. Prices that are 0 and would fall stay.
fn newton_step(prices: &[f64], dual: &Dual, temperature: f64) -> Option<Vec<f64>> {
    let kinds = prices.len();
    let moving: Vec<usize> = (0..kinds).filter(|&kind| prices[kind] > 0.0 || dual.gradient[kind] < 0.0).collect();
    let size = moving.len();
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(size);
    for &kind in &moving {
        let mut row: Vec<f64> = moving.iter().map(|&other| dual.curvature[kind * kinds + other]).collect();
        row.push(-dual.gradient[kind]);
        rows.push(row);
    }
    for (idx, row) in rows.iter_mut().enumerate() {
        // A kind that nobody hesitates about would have no curvature at all.
        row[idx] = row[idx] * (1.0 + 1e-9) + 1e-3 / temperature;
    }
    for pivot in 0..size {
        let (upper, lower) = rows.split_at_mut(pivot + 1);
        let first = &upper[pivot];
        if first[pivot].abs() <= f64::MIN_POSITIVE {
            return None;
        }
        for row in lower {
            let factor = row[pivot] / first[pivot];
            for column in pivot..=size {
                row[column] -= factor * first[column];
            }
        }
    }
    let mut step = vec![0.0; kinds];
    for pivot in (0..size).rev() {
        let known: f64 = (pivot + 1..size).map(|column| rows[pivot][column] * step[moving[column]]).sum();
        step[moving[pivot]] = (rows[pivot][size] - known) / rows[pivot][pivot];
    }
    step.iter().all(|step| step.is_finite()).then_some(step)
}

/// Prices after a part of a step, which changes none of them too much.
fn moved(prices: &[f64], step: &[f64], length: f64, temperature: f64) -> Vec<f64> {
    let bounded = |(&price, &step): (&f64, &f64)| {
        let least = if price <= temperature { 0.0 } else { price / FACTOR_MAX };
        price + length * ((price + step).clamp(least, price.max(temperature) * FACTOR_MAX) - price)
    };
    prices.iter().zip(step).map(bounded).collect()
}
