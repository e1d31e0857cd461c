use super::packing::Packing;
use super::problem::Problem;
use super::relaxation::Relaxation;

/// Gains below this share of the total are rounding.
const GAIN_MIN: f64 = 1e-12;
/// Clusters up to this many nodes try every pair of them.
const ALL_PAIRS_NODES_MAX: usize = 16;
/// Jobs that would gain most from the current prices, offered a place at every attempt.
const STARVED: usize = 8;
const PASSES_MAX: usize = 6;

/// Frees one or two nodes, adds a job that is worse off than its price justifies, refills, and keeps what is better.
pub(super) fn improve(problem: &Problem, relaxation: &Relaxation, packing: &mut Packing<'_>) {
    let mut search = Search { problem, relaxation, removed: Vec::new(), before: Vec::new() };
    for _ in 0..PASSES_MAX {
        let starved = search.starved(packing);
        let mut improved = false;
        for job in 0..starved.len() {
            for other in 0..job {
                improved |= search.attempt(packing, &[], &[starved[job], starved[other]]);
            }
        }
        let nodes = problem.nodes.len();
        for first in 0..nodes {
            let guest = starved.get(first % STARVED.max(1)).copied();
            improved |= search.attempt(packing, &[first], guest.as_slice());
            let partners =
                if nodes <= ALL_PAIRS_NODES_MAX { first + 1..nodes } else { first + 1..(first + 2).min(nodes) };
            for second in partners {
                let guest = starved.get((first + second) % STARVED.max(1)).copied();
                improved |= search.attempt(packing, &[first, second], guest.as_slice());
            }
        }
        if !improved {
            break;
        }
    }
}

struct Search<'a> {
    problem: &'a Problem,
    relaxation: &'a Relaxation,
    removed: Vec<usize>,
    before: Vec<(Vec<(usize, u32)>, f64)>,
}

impl Search<'_> {
    /// Jobs by what they would gain if every GPU could be had at the current price.
    fn starved(&self, packing: &Packing<'_>) -> Vec<usize> {
        let price = self.relaxation.price;
        let mut regrets: Vec<(f64, usize)> = (0..self.problem.jobs.len())
            .filter(|&job| !self.problem.jobs[job].is_pinned())
            .map(|job| {
                let now = packing.values[job] - price * f64::from(packing.replicas(job));
                (self.problem.jobs[job].best_net(price) - now, job)
            })
            .filter(|&(regret, _)| regret > 0.0)
            .collect();
        regrets.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        regrets.truncate(STARVED);
        regrets.into_iter().map(|(_, job)| job).collect()
    }

    /// Frees the nodes, takes the guests out too, and refills at two prices; true if something better came out.
    fn attempt(&mut self, packing: &mut Packing<'_>, nodes: &[usize], guests: &[usize]) -> bool {
        self.removed.clear();
        for &node in nodes {
            self.removed.extend(packing.tenants[node].iter().map(|&job| job as usize));
        }
        self.removed.extend(guests);
        self.removed.sort_unstable();
        self.removed.dedup();
        self.removed.retain(|&job| !self.problem.jobs[job].is_pinned());
        if self.removed.is_empty() {
            return false;
        }
        self.before.clear();
        for &job in &self.removed {
            self.before.push(packing.remove(job));
        }
        let old: f64 = self.before.iter().map(|(_, value)| value).sum();
        // Larger jobs first: they are the hardest to fit.
        let targets = &self.relaxation.replicas;
        self.removed.sort_by_key(|&job| (std::cmp::Reverse(targets[job]), job));
        for price in [self.relaxation.price, 0.5 * self.relaxation.price] {
            let new = refill(packing, &self.removed, price);
            if new > old + GAIN_MIN * old.abs() {
                return true;
            }
            for &job in &self.removed {
                packing.remove(job);
            }
        }
        self.removed.sort_unstable();
        for (&job, (places, value)) in self.removed.iter().zip(self.before.drain(..)) {
            packing.place(job, places, value);
        }
        false
    }
}

/// Gives each job the best option at a price, then what is left over at no price.
pub(super) fn refill(packing: &mut Packing<'_>, jobs: &[usize], price: f64) -> f64 {
    for &job in jobs {
        let offer = packing.best_offer(job, price);
        packing.accept(job, &offer);
    }
    top_up(packing, jobs);
    jobs.iter().map(|&job| packing.values[job]).sum()
}

/// Lets each job trade what it has for the best of what is free.
pub(super) fn top_up(packing: &mut Packing<'_>, jobs: &[usize]) {
    for &job in jobs {
        if packing.is_full() {
            return;
        }
        let (places, value) = packing.remove(job);
        let offer = packing.best_offer(job, 0.0);
        if offer.value > value {
            packing.accept(job, &offer);
        } else {
            packing.place(job, places, value);
        }
    }
}
