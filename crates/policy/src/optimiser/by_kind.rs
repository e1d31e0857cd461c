use super::hulls::Hulls;
use super::improve::{improve, top_up};
use super::mixed::price_kinds;
use super::packing::Packing;
use super::prices::Prices;
use super::problem::{JobOptions, Keep, Problem, ProblemNode};
use super::relaxation::{Relaxation, relax};
use super::solve::{Solution, pack};

/// Prices every kind of GPU, gives every job the kind that it would choose, packs each kind by itself, and then improves
/// all of it together.
pub(super) fn solve_by_kind(problem: &Problem) -> Solution {
    let hulls = Hulls::of(problem);
    let priced = price_kinds(problem, &hulls);
    let chosen = choose_kinds(problem, &hulls, &priced.prices);
    let mut packing = Packing::new(problem);
    for kind in 0..problem.kinds() {
        pack_kind(problem, kind, &chosen, &mut packing);
    }
    let all: Vec<usize> = (0..problem.jobs.len()).collect();
    top_up(&mut packing, &all);
    let prices = Prices::new(&priced.prices, 1.0);
    let gpus = all.iter().map(|&job| hulls.best(job, prices).1 as u32).collect();
    let relaxation = Relaxation { upper_bound: priced.upper_bound, prices: priced.prices, gpus };
    improve(problem, &relaxation, &mut packing);
    let total = packing.total();
    Solution { places: packing.into_places(), total, upper_bound: relaxation.upper_bound }
}

/// What a job would have of a kind at the prices.
#[derive(Clone, Copy)]
struct Wish {
    job: usize,
    kind: usize,
    gpus: f64,
    /// What is left after paying, over what nothing is worth.
    surplus: f64,
}

/// A kind for every job: the one that it would choose at the prices, those who lose most by another first. What these
/// leave goes to those who come nearest to paying for it.
fn choose_kinds(problem: &Problem, hulls: &Hulls, prices: &[f64]) -> Vec<usize> {
    let mut left = vec![0.0; hulls.kinds()];
    for node in &problem.nodes {
        left[node.kind] += f64::from(node.resources.gpus);
    }
    let mut chosen: Vec<Option<usize>> = vec![None; hulls.jobs()];
    let mut first_wishes: Vec<(f64, Wish)> = Vec::new();
    let mut wishes: Vec<Wish> = Vec::new();
    for (job, options) in problem.jobs.iter().enumerate() {
        let kept = options.keep.as_ref().map(|keep| keep.kind(&problem.nodes));
        let from = wishes.len();
        wishes.extend((0..hulls.kinds()).filter_map(|kind| {
            let (gpus, net) = hulls.choice_of_some(job, kind, prices[kind])?;
            Some(Wish { job, kind, gpus, surplus: net - options.none })
        }));
        let by_surplus = |a: &Wish, b: &Wish| b.surplus.total_cmp(&a.surplus);
        wishes[from..].sort_by(|a, b| by_surplus(a, b).then((kept != Some(a.kind)).cmp(&(kept != Some(b.kind)))));
        if let Some(&first) = wishes.get(from).filter(|first| first.surplus > 0.0) {
            let second = wishes.get(from + 1).map_or(0.0, |second| second.surplus.max(0.0));
            first_wishes.push((first.surplus - second, first));
        }
    }
    first_wishes.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.job.cmp(&b.1.job)));
    let mut grant = |wish: &Wish, least: f64| {
        let fits = chosen[wish.job].is_none() && left[wish.kind] >= least;
        if fits {
            left[wish.kind] -= wish.gpus;
            chosen[wish.job] = Some(wish.kind);
        }
    };
    first_wishes.iter().for_each(|(_, wish)| grant(wish, wish.gpus / 2.0));
    wishes.sort_by(|a, b| b.surplus.total_cmp(&a.surplus).then(a.job.cmp(&b.job)));
    wishes.iter().for_each(|wish| grant(wish, wish.gpus / 2.0));
    wishes.iter().for_each(|wish| grant(wish, f64::NEG_INFINITY));
    chosen.into_iter().map(|kind| kind.unwrap_or(0)).collect()
}

/// Packs the jobs of a kind on its nodes, as if there were nothing else.
fn pack_kind(problem: &Problem, kind: usize, chosen: &[usize], packing: &mut Packing<'_>) {
    let nodes: Vec<usize> = (0..problem.nodes.len()).filter(|&node| problem.nodes[node].kind == kind).collect();
    let jobs: Vec<usize> = (0..problem.jobs.len()).filter(|&job| chosen[job] == kind).collect();
    let options = |&job: &usize| {
        let options = &problem.jobs[job];
        let keep = options.keep.as_ref().filter(|keep| keep.kind(&problem.nodes) == kind).map(|keep| {
            let place = |&(node, replicas): &(usize, u32)| (nodes.binary_search(&node).unwrap_or(0), replicas);
            Keep { value: keep.value, places: keep.places.iter().map(place).collect() }
        });
        JobOptions { replica: options.replica, none: options.none, keep, sizes: options.sizes.only(kind) }
    };
    let part = Problem {
        nodes: nodes.iter().map(|&node| ProblemNode { kind: 0, ..problem.nodes[node] }).collect(),
        jobs: jobs.iter().map(options).collect(),
        one_multi_node_job_per_node: problem.one_multi_node_job_per_node,
    };
    let packed = pack(&part, &relax(&part));
    for (idx, &job) in jobs.iter().enumerate() {
        let places = packed.places[idx].iter().map(|&(node, replicas)| (nodes[node], replicas)).collect();
        packing.place(job, places, packed.values[idx]);
    }
}
