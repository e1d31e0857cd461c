use super::problem::{JobOptions, Problem};

/// By how much the price is lowered so that jobs which are indifferent at it take what they can get.
const INDIFFERENCE: f64 = 1e-9;

/// The optimum when GPUs are one big pool that can be cut at will.
#[derive(Debug)]
pub(super) struct Relaxation {
    /// No packing is worth more.
    pub(super) upper_bound: f64,
    /// What one more GPU would add.
    pub(super) price: f64,
    /// GPUs of each job at that price.
    pub(super) gpus: Vec<u32>,
}

/// A stretch of a job's concave hull: `gpus` more for `slope` each.
struct Segment {
    slope: f64,
    job: u32,
    gpus: u32,
    /// The job's value at its end.
    value: f64,
}

/// Replaces each job's values by their concave hull, on which taking the steepest stretches first is optimal: the
/// values gained, the last stretch in part, bound what any packing can reach. That CPUs and memory are left out can only
/// raise it.
pub(super) fn relax(problem: &Problem) -> Relaxation {
    let capacity: u32 = problem.nodes.iter().map(|node| node.resources.gpus).sum();
    let node_gpus_max = problem.nodes.iter().map(|node| node.resources.gpus).max().unwrap_or(0);
    let mut segments = Vec::with_capacity(4 * problem.jobs.len());
    let mut points = Vec::new();
    let mut hull = Vec::new();
    let mut left = i64::from(capacity);
    let mut gpus = vec![0; problem.jobs.len()];
    // Kept per job and summed at the end: values may differ by so much that gains would vanish in a running sum.
    let mut values: Vec<f64> = problem.jobs.iter().map(|options| options.none).collect();
    for (job, options) in problem.jobs.iter().enumerate() {
        option_points(options, capacity, node_gpus_max, &mut points);
        concave_hull(&points, &mut hull);
        segments.extend(hull.windows(2).map(|pair| Segment {
            slope: (pair[1].1 - pair[0].1) / f64::from(pair[1].0 - pair[0].0),
            job: job as u32,
            gpus: pair[1].0 - pair[0].0,
            value: pair[1].1,
        }));
    }
    segments.sort_unstable_by(|a, b| b.slope.total_cmp(&a.slope).then(a.job.cmp(&b.job)).then(a.gpus.cmp(&b.gpus)));
    let mut price = 0.0;
    for segment in &segments {
        if left <= 0 {
            price = segment.slope;
            break;
        }
        let job = segment.job as usize;
        if i64::from(segment.gpus) > left {
            values[job] += segment.slope * left as f64;
            price = segment.slope;
            break;
        }
        left -= i64::from(segment.gpus);
        gpus[job] += segment.gpus;
        // Of two stretches that rise alike the later may come first, by rounding.
        values[job] = values[job].max(segment.value);
    }
    Relaxation { upper_bound: values.iter().sum(), price: price * (1.0 - INDIFFERENCE), gpus }
}

/// The best value of each number of replicas, however placed, in ascending order of their GPUs.
fn option_points(options: &JobOptions, capacity: u32, node_gpus_max: u32, points: &mut Vec<(u32, f64)>) {
    points.clear();
    points.push((0, options.none));
    let of = |replicas: u32| options.replica.gpus_of(replicas);
    let longest = options.single.iter().chain(&options.multi).map(Vec::len).max().unwrap_or(0);
    for replicas in 1..=longest.min((capacity / options.replica.gpus) as usize) {
        let mut best = f64::NEG_INFINITY;
        for (kind, single) in options.single.iter().enumerate() {
            if of(replicas as u32) <= node_gpus_max {
                best = best.max(single.get(replicas - 1).copied().unwrap_or(f64::NEG_INFINITY));
            }
            best = best.max(options.multi[kind].get(replicas - 1).copied().unwrap_or(f64::NEG_INFINITY));
        }
        if best > f64::NEG_INFINITY {
            points.push((of(replicas as u32), best));
        }
    }
    if let Some(keep) = &options.keep {
        let gpus = of(keep.replicas());
        match points.binary_search_by_key(&gpus, |&(gpus, _)| gpus) {
            Ok(idx) => points[idx].1 = points[idx].1.max(keep.value),
            Err(idx) => points.insert(idx, (gpus, keep.value)),
        }
    }
}

/// The vertices of the upper concave hull up to its highest point.
fn concave_hull(points: &[(u32, f64)], hull: &mut Vec<(u32, f64)>) {
    hull.clear();
    for &(gpus, value) in points {
        if hull.last().is_some_and(|&(_, last)| value <= last) {
            continue;
        }
        while let [.., (g0, v0), (g1, v1)] = hull[..] {
            let before = (v1 - v0) * f64::from(gpus - g0);
            let across = (value - v0) * f64::from(g1 - g0);
            if before > across {
                break;
            }
            hull.pop();
        }
        hull.push((gpus, value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::ProblemNode;
    use super::*;
    use crate::{NodeResources, ReplicaResources};

    /// A job alone on a node, worth as much as it has replicas, but for what a restart costs.
    fn alone(node_gpus: u32, gpus: u32, restart_factor: f64) -> Relaxation {
        let resources = NodeResources { gpus: node_gpus, cpus: None, memory: None };
        let values = (1..=9).map(|replicas| f64::from(replicas) / 9.0 * restart_factor + 4e-3).collect();
        let options = JobOptions {
            replica: ReplicaResources { gpus, cpus: 0, memory: 0 },
            none: 4e-3,
            keep: None,
            single: vec![values],
            multi: vec![Vec::new()],
        };
        let nodes = vec![ProblemNode { resources, hosts_multi: false, kind: 0 }];
        relax(&Problem { nodes, jobs: vec![options], one_multi_node_job_per_node: false })
    }

    #[test]
    fn stretches_that_rise_alike_are_not_lost_by_rounding() {
        let bound = alone(9, 1, 0.042_581_372_235_274_92).upper_bound;
        assert_eq!(bound, 0.046_581_372_235_274_92, "all nine fit");
    }

    #[test]
    fn gpus_and_not_replicas_are_what_runs_out() {
        let relaxation = alone(8, 3, 9.0);
        assert_eq!(relaxation.gpus, [6], "a third replica would need nine");
        assert!((relaxation.upper_bound - 2.004).abs() < 1e-9, "{}", relaxation.upper_bound);
    }
}
