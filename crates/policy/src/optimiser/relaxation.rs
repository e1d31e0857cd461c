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
    /// Replicas of each job at that price.
    pub(super) replicas: Vec<u32>,
}

/// A stretch of a job's concave hull: `replicas` more GPUs for `slope` each.
struct Segment {
    slope: f64,
    job: u32,
    replicas: u32,
    /// The job's value at its end.
    value: f64,
}

/// Replaces each job's values by their concave hull, on which taking the steepest stretches first is optimal: the
/// values gained, the last stretch in part, bound what any packing can reach.
pub(super) fn relax(problem: &Problem) -> Relaxation {
    let capacity: u32 = problem.nodes.iter().map(|node| node.gpus).sum();
    let node_gpus_max = problem.nodes.iter().map(|node| node.gpus).max().unwrap_or(0);
    let mut segments = Vec::with_capacity(4 * problem.jobs.len());
    let mut points = Vec::new();
    let mut hull = Vec::new();
    let mut left = i64::from(capacity);
    let mut replicas = vec![0; problem.jobs.len()];
    // Kept per job and summed at the end: values may differ by so much that gains would vanish in a running sum.
    let mut values: Vec<f64> = problem.jobs.iter().map(|options| options.none).collect();
    for (job, options) in problem.jobs.iter().enumerate() {
        option_points(options, capacity, node_gpus_max, &mut points);
        concave_hull(&points, &mut hull);
        segments.extend(hull.windows(2).map(|pair| Segment {
            slope: (pair[1].1 - pair[0].1) / f64::from(pair[1].0 - pair[0].0),
            job: job as u32,
            replicas: pair[1].0 - pair[0].0,
            value: pair[1].1,
        }));
    }
    segments
        .sort_unstable_by(|a, b| b.slope.total_cmp(&a.slope).then(a.job.cmp(&b.job)).then(a.replicas.cmp(&b.replicas)));
    let mut price = 0.0;
    for segment in &segments {
        if left <= 0 {
            price = segment.slope;
            break;
        }
        let job = segment.job as usize;
        if i64::from(segment.replicas) > left {
            values[job] += segment.slope * left as f64;
            price = segment.slope;
            break;
        }
        left -= i64::from(segment.replicas);
        replicas[job] += segment.replicas;
        values[job] = segment.value;
    }
    Relaxation { upper_bound: values.iter().sum(), price: price * (1.0 - INDIFFERENCE), replicas }
}

/// The best value of each number of replicas, however placed, in ascending order of replicas.
fn option_points(options: &JobOptions, capacity: u32, node_gpus_max: u32, points: &mut Vec<(u32, f64)>) {
    points.clear();
    points.push((0, options.none));
    let longest = options.single.iter().chain(&options.multi).map(Vec::len).max().unwrap_or(0);
    for replicas in 1..=longest.min(capacity as usize) {
        let mut best = f64::NEG_INFINITY;
        for (kind, single) in options.single.iter().enumerate() {
            if replicas <= node_gpus_max as usize {
                best = best.max(single.get(replicas - 1).copied().unwrap_or(f64::NEG_INFINITY));
            }
            best = best.max(options.multi[kind].get(replicas - 1).copied().unwrap_or(f64::NEG_INFINITY));
        }
        if best > f64::NEG_INFINITY {
            points.push((replicas as u32, best));
        }
    }
    if let Some(keep) = &options.keep {
        let replicas = keep.replicas();
        match points.binary_search_by_key(&replicas, |&(replicas, _)| replicas) {
            Ok(idx) => points[idx].1 = points[idx].1.max(keep.value),
            Err(idx) => points.insert(idx, (replicas, keep.value)),
        }
    }
}

/// The vertices of the upper concave hull up to its highest point.
fn concave_hull(points: &[(u32, f64)], hull: &mut Vec<(u32, f64)>) {
    hull.clear();
    for &(replicas, value) in points {
        if hull.last().is_some_and(|&(_, last)| value <= last) {
            continue;
        }
        while let [.., (r0, v0), (r1, v1)] = hull[..] {
            let before = (v1 - v0) * f64::from(replicas - r0);
            let across = (value - v0) * f64::from(r1 - r0);
            if before > across {
                break;
            }
            hull.pop();
        }
        hull.push((replicas, value));
    }
}
