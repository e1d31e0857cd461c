//! Fewer points than were recorded, where the eye cannot tell.

use crate::{ClusterSample, JobSample};

/// Changes of efficiency that cannot be seen in a plot.
const EFFICIENCY_STEP: f64 = 0.005;

/// A job's samples without those that change nothing, and at most `points_max` of them: then each stands for a slice
/// of the job's life, with what the job had at its end.
pub(super) fn job_series(series: &[JobSample], points_max: usize) -> Vec<JobSample> {
    let mut kept: Vec<JobSample> = Vec::new();
    for sample in series {
        match kept.last_mut() {
            Some(last) if last.time_s == sample.time_s => *last = *sample,
            Some(last) if looks_like(last, sample) => {}
            Some(_) | None => kept.push(*sample),
        }
    }
    if kept.len() <= points_max {
        return kept;
    }
    let (Some(first), Some(last)) = (kept.first().copied(), kept.last().copied()) else { return kept };
    let slice_s = (last.time_s - first.time_s) / (points_max - 1) as f64;
    let slice = |sample: &JobSample| ((sample.time_s - first.time_s) / slice_s) as usize;
    let mut thinned: Vec<JobSample> = Vec::with_capacity(points_max);
    for sample in kept {
        match thinned.last_mut() {
            Some(last) if slice(last) == slice(&sample) => *last = sample,
            Some(_) | None => thinned.push(sample),
        }
    }
    thinned
}

fn looks_like(a: &JobSample, b: &JobSample) -> bool {
    let exact = |sample: &JobSample| (sample.replicas, sample.nodes, sample.batch_size);
    exact(a) == exact(b) && (a.efficiency - b.efficiency).abs() < EFFICIENCY_STEP
}

/// What the cluster did in each of `slices` equal parts of the time from 0 to `end_s`, averaged: GPUs held, jobs
/// waiting.
pub(super) fn cluster_series(samples: &[ClusterSample], end_s: f64, slices: usize) -> Vec<(f64, f64)> {
    let slice_s = end_s / slices as f64;
    let mut sums = vec![(0.0, 0.0); slices];
    for (idx, sample) in samples.iter().enumerate() {
        let until_s = samples.get(idx + 1).map_or(end_s, |next| next.time_s).min(end_s);
        let first = ((sample.time_s / slice_s) as usize).min(slices - 1);
        let last = ((until_s / slice_s) as usize).min(slices - 1);
        for (slice, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
            let (start_s, end_s) = (slice as f64 * slice_s, (slice + 1) as f64 * slice_s);
            let held_s = (until_s.min(end_s) - sample.time_s.max(start_s)).max(0.0);
            sum.0 += f64::from(sample.gpus_used) * held_s;
            sum.1 += f64::from(sample.jobs_waiting) * held_s;
        }
    }
    sums.into_iter().map(|(used, waiting)| (used / slice_s, waiting / slice_s)).collect()
}

/// At most `points_max` of sorted values, evenly by rank, both ends among them.
pub(super) fn quantiles(sorted: &[f64], points_max: usize) -> Vec<f64> {
    if sorted.len() <= points_max {
        return sorted.to_vec();
    }
    (0..points_max).map(|point| sorted[point * (sorted.len() - 1) / (points_max - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_s: f64, replicas: u32) -> JobSample {
        JobSample { time_s, replicas, nodes: 1, batch_size: 8, efficiency: 1.0 }
    }

    #[test]
    fn samples_that_change_nothing_are_left_out() {
        let series = [sample(0.0, 1), sample(0.0, 2), sample(5.0, 2), sample(9.0, 3)];
        assert_eq!(job_series(&series, 10), [sample(0.0, 2), sample(9.0, 3)]);
    }

    #[test]
    fn long_series_keep_their_ends_and_the_last_of_each_slice() {
        let series: Vec<_> = (0..100).map(|time| sample(f64::from(time), time)).collect();
        let thinned = job_series(&series, 4);
        assert_eq!(thinned.iter().map(|sample| sample.replicas).collect::<Vec<_>>(), [32, 65, 98, 99]);
    }

    #[test]
    fn slices_average_over_time() {
        let used = |time_s, gpus_used| ClusterSample {
            time_s,
            gpus_used,
            nodes: 1,
            jobs_running: 1,
            jobs_waiting: gpus_used / 2,
        };
        let series = cluster_series(&[used(0.0, 4), used(5.0, 8), used(12.0, 0)], 20.0, 2);
        assert_eq!(series, [(6.0, 3.0), (1.6, 0.8)]);
    }

    #[test]
    fn quantiles_keep_both_ends() {
        let values: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(quantiles(&values, 3), [0.0, 49.0, 99.0]);
        assert_eq!(quantiles(&values[..2], 3), [0.0, 1.0]);
    }
}
