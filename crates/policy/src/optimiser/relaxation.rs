use super::problem::{JobOptions, Problem};

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
}

/// Replaces each job's values by their concave hull, on which taking the steepest stretches first is optimal: the
/// values gained, the last stretch in part, bound what any packing can reach.
pub(super) fn relax(problem: &Problem) -> Relaxation {
    let capacity: u32 = problem.nodes.iter().map(|node| node.gpus).sum();
    let node_gpus_max = problem.nodes.iter().map(|node| node.gpus).max().unwrap_or(0);
    let mut segments = Vec::with_capacity(4 * problem.jobs.len());
    let mut points = Vec::new();
    let mut hull = Vec::new();
    let mut upper_bound = 0.0;
    let mut left = i64::from(capacity);
    let mut replicas = vec![0; problem.jobs.len()];
    for (job, options) in problem.jobs.iter().enumerate() {
        option_points(options, capacity, node_gpus_max, &mut points);
        concave_hull(&points, &mut hull);
        // A pinned job's hull starts at what it holds.
        upper_bound += hull[0].1;
        replicas[job] = hull[0].0;
        left -= i64::from(hull[0].0);
        segments.extend(hull.windows(2).map(|pair| Segment {
            slope: (pair[1].1 - pair[0].1) / f64::from(pair[1].0 - pair[0].0),
            job: job as u32,
            replicas: pair[1].0 - pair[0].0,
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
        let taken = i64::from(segment.replicas).min(left);
        upper_bound += segment.slope * taken as f64;
        left -= i64::from(segment.replicas);
        if left < 0 {
            price = segment.slope;
            break;
        }
        replicas[segment.job as usize] += segment.replicas;
    }
    Relaxation { upper_bound, price, replicas }
}

/// The best value of each number of replicas, however placed, in ascending order of replicas.
fn option_points(options: &JobOptions, capacity: u32, node_gpus_max: u32, points: &mut Vec<(u32, f64)>) {
    points.clear();
    if options.none > f64::NEG_INFINITY {
        points.push((0, options.none));
    }
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
    assert!(!hull.is_empty(), "a job has at least one option: nothing, or what it holds");
}
