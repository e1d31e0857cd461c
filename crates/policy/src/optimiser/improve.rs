use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::ceiling::Ceiling;
use super::packing::Packing;
use super::prices::Prices;
use super::problem::{JobOptions, Problem};
use super::relaxation::Relaxation;

/// Gains below this share of the total are rounding.
const GAIN_MIN: f64 = 1e-12;
/// Closer to the upper bound than this is close enough.
const GAP_MIN: f64 = 1e-9;
/// Clusters up to this many nodes try every pair of them.
const ALL_PAIRS_NODES_MAX: usize = 16;
/// Jobs that would gain most from the current prices, offered a place at every attempt.
const STARVED: usize = 8;
/// Shares of the relaxation's prices to refill at: lower ones make jobs larger, higher ones make room for gangs.
const PRICES: [f64; 3] = [1.0, 0.5, 2.0];
/// The same where replicas leave gaps, or need what the price does not know of: the last lets everybody in before
/// anybody is large.
const PRICES_WITH_GAPS: [f64; 4] = [1.0, 0.5, 2.0, f64::INFINITY];
const PASSES_MAX: usize = 6;
/// How often jobs are looked at or moved at the most: so often, and so often more for each job. Ordinary rounds need less.
const WORK_MIN: usize = 1 << 19;
const WORK_PER_JOB: usize = 16;

/// Frees one or two nodes, adds a job that is worse off than its price justifies, refills, and keeps what is better.
pub(super) fn improve(problem: &Problem, relaxation: &Relaxation, packing: &mut Packing<'_>) {
    let enough = relaxation.upper_bound - GAP_MIN * relaxation.upper_bound.abs();
    let leaves_gaps = |options: &JobOptions| !options.replica.fits_any_gpu();
    let gaps = problem.nodes.len() <= ALL_PAIRS_NODES_MAX && problem.jobs.iter().any(leaves_gaps);
    let shares: &[f64] = if gaps { &PRICES_WITH_GAPS } else { &PRICES };
    if packing.total() >= enough {
        return;
    }
    let work = WORK_MIN + WORK_PER_JOB * problem.jobs.len();
    Search::new(problem, relaxation, shares, work).run(packing, enough, gaps);
}

/// A way to fill what was freed: puts the removed jobs somewhere at prices and returns what they are worth there.
type Fill<'a> = dyn Fn(&mut Packing<'_>, Prices<'_>) -> f64 + 'a;

struct Search<'a> {
    problem: &'a Problem,
    relaxation: &'a Relaxation,
    shares: &'a [f64],
    /// What each job could have left at the most after paying.
    nets: Vec<f64>,
    /// The same at half the prices.
    nets_at_half: Vec<f64>,
    removed: Vec<usize>,
    before: Vec<(Vec<(usize, u32)>, f64)>,
    /// How often jobs may still be looked at or moved.
    work_left: usize,
    /// GPUs of each kind that the removed jobs can share.
    gpus: Vec<u32>,
    ceiling: Ceiling,
    /// What was tried in vain, and how many improvements there were by then.
    failed: BTreeMap<Try, u32>,
    improvements: u32,
    /// The last improvement that changed what each job has, and who is on each node.
    jobs_changed: Vec<u32>,
    nodes_changed: Vec<u32>,
}

/// Nodes that are freed and guests that come, or the job that is moved from the first of the nodes to the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Try {
    nodes: [Option<usize>; 2],
    guests: [Option<usize>; 2],
    moved: Option<usize>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, relaxation: &'a Relaxation, shares: &'a [f64], work: usize) -> Self {
        let nets = |share: f64| {
            let prices = Prices::new(&relaxation.prices, share);
            problem.jobs.iter().map(|options| options.best_net(&problem.nodes, prices)).collect()
        };
        Self {
            problem,
            relaxation,
            shares,
            nets: nets(1.0),
            nets_at_half: nets(0.5),
            removed: Vec::new(),
            before: Vec::new(),
            work_left: work,
            gpus: Vec::new(),
            ceiling: Ceiling::default(),
            failed: BTreeMap::new(),
            improvements: 0,
            jobs_changed: vec![0; problem.jobs.len()],
            nodes_changed: vec![0; problem.nodes.len()],
        }
    }

    /// Tries until all passes are done, nothing is better, or so much was tried that it must do.
    fn run(&mut self, packing: &mut Packing<'_>, enough: f64, gaps: bool) {
        for _ in 0..PASSES_MAX {
            if packing.total() >= enough || self.work_left == 0 {
                break;
            }
            let starved = self.starved(packing);
            let mut improved = false;
            for job in 0..starved.len() {
                for other in 0..job {
                    improved |= self.attempt(packing, &[], &[starved[job], starved[other]]);
                }
            }
            let nodes = self.problem.nodes.len();
            for first in 0..nodes {
                let guest = starved.get(first % STARVED).copied();
                improved |= self.attempt(packing, &[first], guest.as_slice());
                // Where replicas leave gaps, who waits may fit only here.
                for other in starved.iter().filter(|&&other| gaps && Some(other) != guest) {
                    improved |= self.attempt(packing, &[first], &[*other]);
                }
                let partners =
                    if nodes <= ALL_PAIRS_NODES_MAX { first + 1..nodes } else { first + 1..(first + 2).min(nodes) };
                for second in partners {
                    let guest = starved.get((first + second) % STARVED).copied();
                    improved |= self.attempt(packing, &[first, second], guest.as_slice());
                    for other in starved.iter().filter(|&&other| gaps && Some(other) != guest) {
                        improved |= self.attempt(packing, &[first, second], &[*other]);
                    }
                }
            }
            if nodes <= ALL_PAIRS_NODES_MAX {
                improved |= self.relocate(packing);
            }
            if !improved {
                break;
            }
        }
    }

    /// Jobs by what they would gain if GPUs could be had for less than the price, at which some are indifferent.
    fn starved(&self, packing: &Packing<'_>) -> Vec<usize> {
        let prices = Prices::new(&self.relaxation.prices, 0.5);
        let mut regrets: Vec<(f64, usize)> = (0..self.problem.jobs.len())
            .map(|job| {
                let price = packing.kind_of(&packing.places[job]).map_or(0.0, |kind| prices.of(kind));
                let now = packing.values[job] - price * self.problem.jobs[job].gpus(packing.replicas(job));
                (self.nets_at_half[job] - now, job)
            })
            .filter(|&(regret, _)| regret > 0.0)
            .collect();
        let by_regret = |a: &(f64, usize), b: &(f64, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if regrets.len() > STARVED {
            regrets.select_nth_unstable_by(STARVED, by_regret);
            regrets.truncate(STARVED);
        }
        regrets.sort_unstable_by(by_regret);
        regrets.into_iter().map(|(_, job)| job).collect()
    }

    /// Tries every other node for each newly placed job that sits on one: the job whose place it took may be the wrong
    /// one to pay.
    fn relocate(&mut self, packing: &mut Packing<'_>) -> bool {
        let mut improved = false;
        for job in 0..self.problem.jobs.len() {
            for target in 0..self.problem.nodes.len() {
                let &[(home, replicas)] = packing.places[job].as_slice() else { break };
                let options = &self.problem.jobs[job];
                if options.keep.as_ref().is_some_and(|keep| keep.places == packing.places[job]) {
                    break;
                }
                let (here, there) = (&self.problem.nodes[home], &self.problem.nodes[target]);
                let fits = there.resources.fits(options.replica) >= replicas;
                if target == home || here.kind != there.kind || !fits {
                    continue;
                }
                self.choose(packing, &[home, target], &[job]);
                let tried = Try { nodes: [Some(home), Some(target)], guests: [None; 2], moved: Some(job) };
                if !self.could_gain(packing) || self.is_in_vain(packing, &tried) {
                    continue;
                }
                self.take_out(packing);
                let others: Vec<usize> = self.removed.iter().copied().filter(|&other| other != job).collect();
                let value = options.sizes.at(here.kind, replicas, false).unwrap_or(f64::NEG_INFINITY);
                improved |= self.keep_if_better(
                    packing,
                    tried,
                    &[&|packing, prices| {
                        packing.place(job, vec![(target, replicas)], value);
                        refill(packing, &others, prices) + value
                    }],
                );
            }
        }
        improved
    }

    /// Frees the nodes, takes the guests out too, and refills; true if something better came out.
    fn attempt(&mut self, packing: &mut Packing<'_>, nodes: &[usize], guests: &[usize]) -> bool {
        self.choose(packing, nodes, guests);
        let pair = |of: &[usize]| [of.first().copied(), of.get(1).copied()];
        let tried = Try { nodes: pair(nodes), guests: pair(guests), moved: None };
        if !self.could_gain(packing) || self.is_in_vain(packing, &tried) {
            return false;
        }
        self.take_out(packing);
        let size = |job: usize| (self.problem.jobs[job].replica.gpus, self.relaxation.gpus[job]);
        // Larger jobs first, because they are the hardest to fit; but what was starved was starved by them.
        let mut orders = [self.removed.clone(), self.removed.clone()];
        orders[0].sort_by_key(|&job| (!guests.contains(&job), Reverse(size(job)), job));
        orders[1].sort_by_key(|&job| (Reverse(size(job)), job));
        let fills: [&Fill<'_>; 2] = [&|packing, prices| refill(packing, &orders[0], prices), &|packing, prices| {
            refill(packing, &orders[1], prices)
        }];
        // The same order fills in the same way.
        let different = if orders[0] == orders[1] { 1 } else { 2 };
        self.keep_if_better(packing, tried, &fills[..different])
    }

    /// Every job on the nodes, and the guests wherever they are.
    fn choose(&mut self, packing: &Packing<'_>, nodes: &[usize], guests: &[usize]) {
        self.removed.clear();
        for &node in nodes {
            self.removed.extend(packing.tenants[node].iter().map(|&job| job as usize));
        }
        self.removed.extend(guests);
        self.removed.sort_unstable();
        self.removed.dedup();
    }

    /// Whether the chosen jobs could be worth more on what they have and what is free, if it did not matter where that is.
    /// Most could not, and need not be moved about to find out.
    fn could_gain(&mut self, packing: &Packing<'_>) -> bool {
        if self.work_left == 0 {
            return false;
        }
        self.work_left = self.work_left.saturating_sub(self.removed.len());
        self.gpus.clear();
        self.gpus.extend_from_slice(packing.free_gpus());
        let (mut now, mut most) = (0.0, 0.0);
        for &job in &self.removed {
            let places = &packing.places[job];
            if let Some(kind) = packing.kind_of(places) {
                self.gpus[kind] += self.problem.jobs[job].replica.gpus_of(packing.replicas(job));
            }
            now += packing.values[job];
            most += self.nets[job];
        }
        let enough = now + GAIN_MIN * now.abs();
        let prices = Prices::new(&self.relaxation.prices, 1.0);
        let paid: f64 = self.gpus.iter().enumerate().map(|(kind, &gpus)| prices.of(kind) * f64::from(gpus)).sum();
        if most + paid <= enough {
            return false;
        }
        self.ceiling.of(self.problem, &self.removed, &self.gpus).is_none_or(|ceiling| ceiling > enough)
    }

    /// Whether it failed before and would again, since nothing changed that it could make use of.
    fn is_in_vain(&self, packing: &Packing<'_>, tried: &Try) -> bool {
        let Some(&at) = self.failed.get(tried).filter(|_| packing.is_full()) else { return false };
        let nodes_alike = |places: &[(usize, u32)]| places.iter().all(|&(node, _)| self.nodes_changed[node] <= at);
        let alike = |&job: &usize| self.jobs_changed[job] <= at && nodes_alike(&packing.places[job]);
        let freed = tried.nodes.iter().flatten();
        freed.copied().all(|node| self.nodes_changed[node] <= at) && self.removed.iter().all(alike)
    }

    fn take_out(&mut self, packing: &mut Packing<'_>) {
        self.before.clear();
        for &job in &self.removed {
            self.before.push(packing.remove(job));
        }
    }

    /// Fills the freed places in each of the given ways at several prices; puts everything back and returns false unless
    /// one is worth more.
    fn keep_if_better(&mut self, packing: &mut Packing<'_>, tried: Try, fills: &[&Fill<'_>]) -> bool {
        let old: f64 = self.before.iter().map(|(_, value)| value).sum();
        for (fill, share) in fills.iter().flat_map(|fill| self.shares.iter().map(move |&share| (fill, share))) {
            self.work_left = self.work_left.saturating_sub(self.removed.len());
            let new = fill(packing, Prices::new(&self.relaxation.prices, share));
            if new > old + GAIN_MIN * old.abs() {
                self.note_improvement(packing);
                return true;
            }
            for &job in &self.removed {
                packing.remove(job);
            }
        }
        for (&job, (places, value)) in self.removed.iter().zip(self.before.drain(..)) {
            packing.place(job, places, value);
        }
        // Elsewhere nothing is free then that could have been used.
        if packing.is_full() {
            self.failed.insert(tried, self.improvements);
        }
        false
    }

    fn note_improvement(&mut self, packing: &Packing<'_>) {
        self.improvements += 1;
        for (&job, (before, _)) in self.removed.iter().zip(&self.before) {
            self.jobs_changed[job] = self.improvements;
            for &(node, _) in before.iter().chain(&packing.places[job]) {
                self.nodes_changed[node] = self.improvements;
            }
        }
    }
}

/// Gives each job the best option at the prices, then what is left over at none.
pub(super) fn refill(packing: &mut Packing<'_>, jobs: &[usize], prices: Prices<'_>) -> f64 {
    for &job in jobs {
        let offer = packing.best_offer(job, prices);
        packing.accept(job, &offer);
    }
    if !packing.is_full() {
        // Whoever gains most goes first: the order of the refill says nothing about that.
        let mut gains: Vec<(f64, usize)> = jobs.iter().map(|&job| (gain_from_rest(packing, job), job)).collect();
        gains.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        gains.into_iter().filter(|&(gain, _)| gain > 0.0).for_each(|(_, job)| trade(packing, job));
    }
    jobs.iter().map(|&job| packing.values[job]).sum()
}

/// What a job would gain by trading what it has for the best of what is free.
fn gain_from_rest(packing: &mut Packing<'_>, job: usize) -> f64 {
    let (places, value) = packing.remove(job);
    let gain = packing.best_offer(job, Prices::NONE).value - value;
    packing.place(job, places, value);
    gain
}

/// Lets each job trade what it has for the best of what is free.
pub(super) fn top_up(packing: &mut Packing<'_>, jobs: &[usize]) {
    for &job in jobs {
        if packing.is_full() {
            return;
        }
        trade(packing, job);
    }
}

fn trade(packing: &mut Packing<'_>, job: usize) {
    let (places, value) = packing.remove(job);
    let offer = packing.best_offer(job, Prices::NONE);
    if offer.value > value {
        packing.accept(job, &offer);
    } else {
        packing.place(job, places, value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::ProblemNode;
    use super::super::relaxation::relax;
    use super::*;
    use crate::by_size::BySize;
    use crate::{NodeResources, ReplicaResources};

    /// Two nodes of four GPUs and jobs of which each gains less by more of them.
    fn crowded() -> Problem {
        let resources = NodeResources { gpus: 4, cpus: None, memory: None };
        let nodes = vec![ProblemNode { resources, hosts_multi: false, kind: 0 }; 2];
        let job = |idx: u32| {
            let mut sizes = BySize::with_room(1, 4, 0);
            sizes.push_kind(|replicas| f64::from(idx + 1) * f64::from(replicas).sqrt(), |_| f64::NEG_INFINITY);
            JobOptions { replica: ReplicaResources::ONE_GPU, none: 0.0, keep: None, sizes }
        };
        Problem { nodes, jobs: (0..12).map(job).collect(), one_multi_node_job_per_node: true }
    }

    #[test]
    fn a_search_ends_when_its_work_is_done() {
        let problem = crowded();
        let relaxation = relax(&problem);
        let mut totals = Vec::new();
        for work in [0, 40, usize::MAX] {
            let mut packing = Packing::new(&problem);
            // The eight that gain least have everything.
            (0..8).for_each(|job| packing.place(job, vec![(job / 4, 1)], f64::from(job as u32 + 1)));
            let mut search = Search::new(&problem, &relaxation, &PRICES, work);
            search.run(&mut packing, f64::INFINITY, false);
            assert_eq!(search.work_left == 0, work < usize::MAX, "{work}");
            totals.push(packing.total());
        }
        assert_eq!(totals[0], 36.0, "nothing was tried");
        assert!(totals[0] < totals[1] && totals[1] < totals[2], "{totals:?}");
        assert!(totals[2] <= relaxation.upper_bound + 1e-9, "{totals:?} of {}", relaxation.upper_bound);
    }
}
