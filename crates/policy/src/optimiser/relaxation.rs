use super::problem::{JobOptions, Keep, Problem};

/// By how much the price is lowered so that jobs which are indifferent at it take what they can get.
const INDIFFERENCE: f64 = 1e-9;

/// The optimum when GPUs are one big pool that can be cut at will.
#[derive(Debug)]
pub(super) struct Relaxation {
    /// No packing is worth more.
    pub(super) upper_bound: f64,
    /// What one more GPU of each kind would add.
    pub(super) prices: Vec<f64>,
    /// GPUs of each job at these prices.
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

/// Of one kind of GPU: replaces each job's values by their concave hull, on which taking the steepest stretches first is optimal: the
/// values gained, the last stretch in part, bound what any packing can reach. That CPUs and memory are left out can only
/// raise it.
pub(super) fn relax(problem: &Problem) -> Relaxation {
    let capacity: u32 = problem.nodes.iter().map(|node| node.resources.gpus).sum();
    let node_gpus_max = problem.nodes.iter().map(|node| node.resources.gpus).max().unwrap_or(0);
    let mut segments = Vec::with_capacity(4 * problem.jobs.len());
    let mut points = Vec::new();
    let mut hull = Vec::new();
    let mut gpus = vec![0; problem.jobs.len()];
    // Kept per job and summed at the end: values may differ by so much that gains would vanish in a running sum.
    let mut values: Vec<f64> = problem.jobs.iter().map(|options| options.none).collect();
    for (job, options) in problem.jobs.iter().enumerate() {
        option_points(options, (0, options.keep.as_ref()), (node_gpus_max, capacity), &mut points);
        concave_hull(&points, &mut hull);
        segments.extend(hull.windows(2).map(|pair| Segment {
            slope: (pair[1].1 - pair[0].1) / f64::from(pair[1].0 - pair[0].0),
            job: job as u32,
            gpus: pair[1].0 - pair[0].0,
            value: pair[1].1,
        }));
    }
    let (taken, next) = steepest(&mut segments, capacity);
    let mut left = capacity;
    for segment in taken {
        let job = segment.job as usize;
        left -= segment.gpus;
        gpus[job] += segment.gpus;
        // Of two stretches that rise alike the later may come first, by rounding.
        values[job] = values[job].max(segment.value);
    }
    let price = next.map_or(0.0, |segment| segment.slope);
    if let Some(segment) = next.filter(|_| left > 0) {
        values[segment.job as usize] += segment.slope * f64::from(left);
    }
    Relaxation { upper_bound: values.iter().sum(), prices: vec![price * (1.0 - INDIFFERENCE)], gpus }
}

/// The steepest stretches that fit, in any order, and the next steepest. Halves are told apart and never sorted: most
/// stretches are far from the price.
fn steepest(segments: &mut [Segment], capacity: u32) -> (&[Segment], Option<&Segment>) {
    let steeper =
        |a: &Segment, b: &Segment| b.slope.total_cmp(&a.slope).then(a.job.cmp(&b.job)).then(a.gpus.cmp(&b.gpus));
    // Those before `taken` fit, and those from `end` on are less steep than the first that does not.
    let (mut taken, mut end, mut left) = (0, segments.len(), u64::from(capacity));
    while taken < end {
        let middle = (end - taken) / 2;
        let (upper, pivot, _) = segments[taken..end].select_nth_unstable_by(middle, steeper);
        let above: u64 = upper.iter().map(|segment| u64::from(segment.gpus)).sum();
        let with_pivot = above + u64::from(pivot.gpus);
        if with_pivot <= left {
            left -= with_pivot;
            taken += middle + 1;
        } else if above <= left {
            taken += middle;
            break;
        } else {
            end = taken + middle;
        }
    }
    let (fit, rest) = segments.split_at(taken);
    (fit, rest.first())
}

/// The best value of each number of replicas on a kind, however placed, and of what is kept there, in ascending order of
/// their GPUs; `largest` is the node with the most GPUs of the kind and `all` what there are of it.
pub(super) fn option_points(
    options: &JobOptions,
    (kind, kept): (usize, Option<&Keep>),
    (largest, all): (u32, u32),
    points: &mut Vec<(u32, f64)>,
) {
    points.clear();
    points.push((0, options.none));
    let (single, multi) = options.sizes.of_kind(kind);
    let of = |replicas: usize| options.replica.gpus_of(replicas as u32);
    let most = single.len().max(multi.len()).min((all / options.replica.gpus) as usize);
    let on_one = single.len().min((largest / options.replica.gpus) as usize);
    for replicas in 1..=most {
        let single = if replicas <= on_one { single[replicas - 1] } else { f64::NEG_INFINITY };
        let best = multi.get(replicas - 1).map_or(single, |multi| multi.max(single));
        if best > f64::NEG_INFINITY {
            points.push((of(replicas), best));
        }
    }
    if let Some(keep) = kept {
        let gpus = options.replica.gpus_of(keep.replicas());
        match points.binary_search_by_key(&gpus, |&(gpus, _)| gpus) {
            Ok(idx) => points[idx].1 = points[idx].1.max(keep.value),
            Err(idx) => points.insert(idx, (gpus, keep.value)),
        }
    }
}

/// The vertices of the upper concave hull up to its highest point.
pub(super) fn concave_hull(points: &[(u32, f64)], hull: &mut Vec<(u32, f64)>) {
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
    use crate::by_size::BySize;
    use crate::{NodeResources, ReplicaResources};

    /// A job alone on a node, worth as much as it has replicas, but for what a restart costs.
    fn alone(node_gpus: u32, gpus: u32, restart_factor: f64) -> Relaxation {
        let resources = NodeResources { gpus: node_gpus, cpus: None, memory: None };
        let mut sizes = BySize::with_room(1, 9, 0);
        sizes.push_kind(|replicas| f64::from(replicas) / 9.0 * restart_factor + 4e-3, |_| f64::NEG_INFINITY);
        let options =
            JobOptions { replica: ReplicaResources { gpus, cpus: 0, memory: 0 }, none: 4e-3, keep: None, sizes };
        let nodes = vec![ProblemNode { resources, hosts_multi: false, kind: 0 }];
        relax(&Problem { nodes, jobs: vec![options], one_multi_node_job_per_node: false })
    }

    #[test]
    fn stretches_that_rise_alike_are_not_lost_by_rounding() {
        let bound = alone(9, 1, 0.042_581_372_235_274_92).upper_bound;
        assert_eq!(bound, 0.046_581_372_235_274_92, "all nine fit");
    }

    #[test]
    fn the_steepest_stretches_are_those_that_a_sort_puts_first() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for case in 0..2_000 {
            let count = next(12) + u64::from(case % 10 == 0) * 200;
            let mut segments: Vec<(u64, u32, u32)> =
                (0..count).map(|job| (next(6), job as u32, 1 + next(5) as u32)).collect();
            let capacity = next(3 * count + 4) as u32;
            let of = |&(slope, job, gpus): &(u64, u32, u32)| Segment { slope: slope as f64, job, gpus, value: 0.0 };
            let mut unsorted: Vec<Segment> = segments.iter().map(of).collect();
            let (taken, after) = steepest(&mut unsorted, capacity);
            let mut taken: Vec<u32> = taken.iter().map(|segment| segment.job).collect();
            taken.sort_unstable();

            segments.sort_by_key(|&(slope, job, gpus)| (std::cmp::Reverse(slope), job, gpus));
            let mut used = 0;
            let fit = segments.iter().position(|&(_, _, gpus)| {
                used += gpus;
                used > capacity
            });
            let fit = fit.unwrap_or(segments.len());
            let mut expected: Vec<u32> = segments[..fit].iter().map(|&(_, job, _)| job).collect();
            expected.sort_unstable();
            assert_eq!(taken, expected, "case {case}");
            assert_eq!(after.map(|segment| segment.job), segments.get(fit).map(|&(_, job, _)| job), "case {case}");
        }
    }

    #[test]
    fn gpus_and_not_replicas_are_what_runs_out() {
        let relaxation = alone(8, 3, 9.0);
        assert_eq!(relaxation.gpus, [6], "a third replica would need nine");
        assert!((relaxation.upper_bound - 2.004).abs() < 1e-9, "{}", relaxation.upper_bound);
    }
}
