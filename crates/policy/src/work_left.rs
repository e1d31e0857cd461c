//! How much work is left of jobs, and how far that can be trusted.

use std::collections::BTreeMap;

use crate::{ClusterView, EndedJob, JobView, Timestamp};

/// What is guessed is told apart only by such factors, so that the order of jobs changes seldom while they train.
const BUCKET: f64 = 4.0;
/// Of declarations that were wrong by more than this, as the variance of logarithms, no more than of guesses is believed.
const EXACT: f64 = 0.1;
/// A declaration is never certain beyond this, as the variance of logarithms.
const VARIANCE_MIN: f64 = 1e-4;

/// Work that is left of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WorkLeft {
    /// By which jobs are ordered: seconds on one GPU, or of age where nothing is known of any job.
    pub(crate) size: f64,
    /// Samples at full efficiency; none if nobody can know.
    pub(crate) samples: Option<f64>,
    /// From 0, if the size is no more than a guess, to 1, if it is certain.
    pub(crate) trust: f64,
}

/// The work left of every job of a view, by its goodput on one replica.
///
/// What users declared is believed as far as the declarations of jobs that ended were right; beside it stands how long
/// ended jobs of the same application trained, as far as they are alike. Of whom nothing is known is taken to have as much
/// left as it has done, and at least as much as others; where nothing is known of anybody, as much as it is old: of jobs of
/// unknown length the older ones last longer, and their order never changes.
pub(crate) fn work_left(
    now: Timestamp,
    view: &ClusterView<'_>,
    single: &dyn Fn(usize) -> Option<f64>,
) -> Vec<WorkLeft> {
    let declaration_variance = declaration_variance(view);
    let known = |(idx, job): (usize, &JobView<'_>)| {
        let (samples, variance) = samples_left(job, declaration_variance)?;
        let single = single(idx).filter(|goodput| *goodput > 0.0)?;
        let gpu_s = samples / single * f64::from(job.per_replica().gpus);
        let is_declared = declared(job).is_some() && declaration_variance <= EXACT;
        let size = if is_declared { gpu_s } else { bucket(gpu_s) };
        Some(WorkLeft { size, samples: Some(samples), trust: 1.0 / (1.0 + variance) })
    };
    let known: Vec<Option<WorkLeft>> = view.jobs.iter().enumerate().map(known).collect();
    let sizes = || known.iter().flatten().map(|left| left.size);
    let typical = sizes().sum::<f64>() / (sizes().count().max(1) as f64);
    let is_any_known = sizes().next().is_some();
    let of = |(idx, known): (usize, &Option<WorkLeft>)| {
        let job = &view.jobs[idx];
        let guess = |size: f64| WorkLeft { size, samples: None, trust: 0.0 };
        match (known, single(idx).filter(|goodput| *goodput > 0.0)) {
            (Some(left), _) => *left,
            // It goes first, because a minute measures it.
            _ if job.profiles.is_empty() => guess(0.0),
            (None, Some(single)) if is_any_known => {
                let done = samples_done(job) / single * f64::from(job.per_replica().gpus);
                guess(bucket(done).max(typical))
            }
            (None, _) => guess(job.age_s(now)),
        }
    };
    known.iter().enumerate().map(of).collect()
}

/// Samples left of what was declared, if there are any.
pub(crate) fn declared(job: &JobView<'_>) -> Option<f64> {
    job.remaining_samples.filter(|samples| *samples > 0.0)
}

/// Samples left of a job, and the variance of the logarithm of its size.
fn samples_left(job: &JobView<'_>, declaration_variance: f64) -> Option<(f64, f64)> {
    let done = samples_done(job);
    let by_history = history(job.application_ended, done);
    match (declared(job), by_history) {
        (Some(declared), None) => Some((declared, declaration_variance)),
        (None, Some((left, variance))) => Some((left, variance)),
        (Some(declared), Some((left, variance))) => {
            let (by_user, by_others) = (1.0 / declaration_variance.max(VARIANCE_MIN), 1.0 / variance);
            let size = (by_user * (done + declared).ln() + by_others * (done + left).ln()) / (by_user + by_others);
            Some((size.exp() - done, 1.0 / (by_user + by_others)))
        }
        (None, None) => None,
    }
    .filter(|(samples, _)| *samples > 0.0)
}

/// Samples left of a job that has done so many, as much as those of its application that did more had left then; and the
/// variance of the logarithms of sizes, as if one more job had been off by a factor e.
fn history(ended: &[EndedJob], done: f64) -> Option<(f64, f64)> {
    let longer = ended.iter().map(|job| job.samples - done).filter(|left| *left > 0.0);
    let (count, sum) = longer.fold((0u32, 0.0), |(count, sum), left| (count + 1, sum + left));
    if count == 0 {
        return None;
    }
    let jobs = ended.len() as f64;
    let mean = ended.iter().map(|job| job.samples.ln()).sum::<f64>() / jobs;
    let spread: f64 = ended.iter().map(|job| (job.samples.ln() - mean).powi(2)).sum();
    Some((sum / f64::from(count), (spread + 1.0) / jobs))
}

/// How wrong the declarations of ended jobs were, as the mean square of logarithms; 0 until any ended.
fn declaration_variance(view: &ClusterView<'_>) -> f64 {
    let by_application: BTreeMap<Option<&str>, &[EndedJob]> =
        view.jobs.iter().map(|job| (job.application, job.application_ended)).collect();
    let squares = by_application.into_values().flatten().filter_map(|job| {
        let ratio = job.samples / job.samples_declared?;
        Some(ratio.ln().powi(2))
    });
    let (count, sum) = squares.fold((0u32, 0.0), |(count, sum), square| (count + 1, sum + square));
    sum / f64::from(count.max(1))
}

/// Samples at full efficiency so far.
fn samples_done(job: &JobView<'_>) -> f64 {
    let baseline = job.profiles.first().map(|profile| profile.goodput.limits.batch_size_baseline());
    job.baseline_steps * f64::from(baseline.unwrap_or(0))
}

fn bucket(size: f64) -> f64 {
    if size > 0.0 { BUCKET.powf(size.log(BUCKET).floor()) } else { 0.0 }
}
