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
/// Of four times as many jobs and more, prices are first sought for a part with about so many, from where it is not far to
/// those of all.
const PART: usize = 2_048;
/// Temperatures from there on.
const TEMPERATURES_NEARBY: [f64; 2] = [0.006, 0.002];
/// The factor by which a price changes at most in a step.
const FACTOR_MAX: f64 = 4.0;

/// The lowest bound that was found, and the prices that it holds at.
#[derive(Debug)]
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
    let stride = hulls.jobs() / PART;
    let nearby = (stride > 3).then(|| Search::new(hulls, &capacity, stride).anywhere().prices);
    let all = Search::new(hulls, &capacity, 1);
    match nearby {
        Some(prices) => all.near(&prices),
        None => all.anywhere(),
    }
}

struct Search<'a> {
    hulls: &'a Hulls,
    /// Only every so many jobs are looked at.
    stride: usize,
    /// GPUs of each kind for these.
    capacity: Vec<f64>,
    best: MixedPrices,
}

impl<'a> Search<'a> {
    fn new(hulls: &'a Hulls, capacity: &[f64], stride: usize) -> Self {
        let kinds = capacity.len();
        let part = hulls.jobs().div_ceil(stride) as f64 / hulls.jobs().max(1) as f64;
        let capacity = capacity.iter().map(|gpus| gpus * part).collect();
        Self { hulls, stride, capacity, best: MixedPrices { prices: vec![0.0; kinds], upper_bound: f64::MAX } }
    }

    fn jobs(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.hulls.jobs()).step_by(self.stride)
    }

    /// The lowest bound, of which nothing is known yet.
    fn anywhere(mut self) -> MixedPrices {
        let kinds = self.capacity.len();
        let free = self.dual(&vec![0.0; kinds], 0.0);
        self.note(&vec![0.0; kinds], free.exact);
        let wanted: f64 = (0..kinds).map(|kind| (-free.gradient[kind]).max(0.0)).sum();
        let price = self.first_price(&free);
        if wanted > 0.0 && price > 0.0 && price.is_finite() {
            self.descend(&mut vec![price; kinds], TEMPERATURES[0] * price);
            self.cool(price, &TEMPERATURES);
        }
        self.best
    }

    /// The lowest bound, at prices that are near to these.
    fn near(mut self, prices: &[f64]) -> MixedPrices {
        let nothing = vec![0.0; prices.len()];
        self.note(&nothing, self.dual(&nothing, 0.0).exact);
        self.note(prices, self.dual(prices, 0.0).exact);
        let price = self.mean(&self.best.prices);
        if price > 0.0 {
            self.cool(price, &TEMPERATURES_NEARBY);
        }
        self.best
    }

    /// Newton's method from the best prices on at falling temperatures.
    fn cool(&mut self, mut price: f64, temperatures: &[f64]) {
        for share in temperatures {
            price = self.mean(&self.best.prices).max(price * 1e-3);
            let mut prices = self.best.prices.clone();
            self.descend(&mut prices, share * price);
        }
    }

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
            self.jobs().map(|job| self.hulls.best(job, Prices::new(&prices, 1.0)).1).sum()
        };
        let none: f64 = self.jobs().map(|job| self.hulls.none(job)).sum();
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
        for job in self.jobs() {
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

#[cfg(test)]
mod tests {
    use super::super::problem::{JobOptions, ProblemNode};
    use super::*;
    use crate::by_size::BySize;
    use crate::{NodeResources, ReplicaResources};

    #[test]
    fn prices_found_by_way_of_a_part_of_the_jobs_bound_as_well() {
        let resources = NodeResources { gpus: 8, cpus: None, memory: None };
        let nodes = (0..600).map(|node| ProblemNode { resources, hosts_multi: false, kind: node % 3 }).collect();
        let mut random = 5u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as f64 / f64::from(1u32 << 31)
        };
        let jobs = (0..4 * PART).map(|_| {
            let mut sizes = BySize::with_room(3, 8, 0);
            let (weight, power) = (next() * next(), 0.3 + 0.6 * next());
            for _ in 0..3 {
                let speed = 0.5 + next();
                sizes.push_kind(|replicas| weight * speed * f64::from(replicas).powf(power), |_| 0.0);
            }
            JobOptions { replica: ReplicaResources::ONE_GPU, none: 0.0, keep: None, sizes }
        });
        let problem = Problem { nodes, jobs: jobs.collect(), one_multi_node_job_per_node: false };
        let hulls = Hulls::of(&problem);
        let found = price_kinds(&problem, &hulls);
        let of_all = Search::new(&hulls, &[1_600.0; 3], 1).anywhere();
        assert!((found.upper_bound / of_all.upper_bound - 1.0).abs() < 1e-4, "{found:?} and {of_all:?}");
        let apart = |kind: usize| (found.prices[kind] / of_all.prices[kind] - 1.0).abs();
        assert!((0..3).all(|kind| apart(kind) < 0.02), "{found:?} and {of_all:?}");
    }
}
