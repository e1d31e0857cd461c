use serde::Serialize;

use super::PageHeader;
use super::decimate::{cluster_series, job_series, quantiles};
use crate::{JobOutcome, RunOutcome, Summary};

/// Rows of an allocation plot: more would be thinner than a pixel.
const SHOWN_JOBS_MAX: usize = 400;
/// Points of all jobs of all runs; with a dozen bytes each, the page stays below 3 MB.
const JOB_POINTS_MAX: usize = 150_000;
const JOB_POINTS_RANGE: (usize, usize) = (4, 200);
const CURVE_POINTS_MAX: usize = 400;
const SLICES: usize = 360;

/// What the page draws.
#[derive(Serialize)]
pub(super) struct PageData<'a> {
    build: &'a str,
    settings: &'a [(String, String)],
    groups: Vec<Group<'a>>,
}

/// The runs of one workload.
#[derive(Serialize)]
struct Group<'a> {
    workload: &'a str,
    seed: Option<u64>,
    gpus: u32,
    job_count: usize,
    /// The last completion under any policy.
    end_s: f64,
    /// Those that have a row.
    jobs: Vec<GroupJob<'a>>,
    runs: Vec<Run<'a>>,
}

#[derive(Serialize)]
struct GroupJob<'a> {
    name: &'a str,
    application: &'a str,
    submitted_s: f64,
}

#[derive(Serialize)]
struct Run<'a> {
    policy: &'a str,
    summary: Summary,
    /// Completion times, sorted.
    completion_s: Vec<f64>,
    rho: Vec<f64>,
    /// By slice of the group's time.
    gpus_used: Vec<f64>,
    jobs_waiting: Vec<f64>,
    /// In the order of the group's.
    jobs: Vec<RunJob>,
}

#[derive(Serialize)]
struct RunJob {
    finished_s: f64,
    restarts: u32,
    rho: f64,
    /// Seconds since the sample before, replicas, total batch, efficiency in thousandths; one after the other.
    series: Vec<u64>,
}

impl<'a> PageData<'a> {
    pub(super) fn new(header: &'a PageHeader, runs: &'a [RunOutcome]) -> Self {
        let shown_jobs: usize = runs.iter().map(|run| run.jobs.len().min(SHOWN_JOBS_MAX)).sum();
        let points_max = (JOB_POINTS_MAX / shown_jobs.max(1)).clamp(JOB_POINTS_RANGE.0, JOB_POINTS_RANGE.1);
        let together = |a: &RunOutcome, b: &RunOutcome| (&a.workload, a.seed) == (&b.workload, b.seed);
        let groups = runs.chunk_by(together).map(|runs| Group::new(runs, points_max)).collect();
        Self { build: &header.build, settings: &header.settings, groups }
    }
}

impl<'a> Group<'a> {
    fn new(runs: &'a [RunOutcome], points_max: usize) -> Self {
        let first = &runs[0];
        let end_s = runs.iter().flat_map(|run| &run.jobs).map(|job| job.finished_s).fold(0.0, f64::max);
        let shown = shown_jobs(first.jobs.len());
        let job = |&idx: &usize| {
            let JobOutcome { name, application, submitted_s, .. } = &first.jobs[idx];
            GroupJob { name, application: application.as_str(), submitted_s: *submitted_s }
        };
        Self {
            workload: &first.workload,
            seed: first.seed,
            gpus: first.gpus,
            job_count: first.jobs.len(),
            end_s,
            jobs: shown.iter().map(job).collect(),
            runs: runs.iter().map(|run| Run::new(run, &shown, end_s, points_max)).collect(),
        }
    }
}

impl<'a> Run<'a> {
    fn new(run: &'a RunOutcome, shown: &[usize], end_s: f64, points_max: usize) -> Self {
        let curve = |value: fn(&JobOutcome) -> f64, digits: i32| {
            let mut values: Vec<f64> = run.jobs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            quantiles(&values, CURVE_POINTS_MAX).into_iter().map(|value| rounded(value, digits)).collect()
        };
        let recorded = !run.cluster.is_empty();
        let cluster = if recorded { cluster_series(&run.cluster, end_s, SLICES) } else { Vec::new() };
        let job = |&idx: &usize| {
            let job = &run.jobs[idx];
            let series = flat(&job_series(&job.series, points_max));
            RunJob { finished_s: job.finished_s, restarts: job.restarts, rho: rounded(job.rho, 3), series }
        };
        Self {
            policy: &run.policy,
            summary: run.summary(),
            completion_s: curve(JobOutcome::completion_s, 0),
            rho: curve(|job| job.rho, 3),
            gpus_used: cluster.iter().map(|slice| rounded(slice.0, 2)).collect(),
            jobs_waiting: cluster.iter().map(|slice| rounded(slice.1, 2)).collect(),
            jobs: shown.iter().map(job).collect(),
        }
    }
}

/// All jobs while there are few; then as many as there are rows, evenly.
fn shown_jobs(count: usize) -> Vec<usize> {
    let rows = count.min(SHOWN_JOBS_MAX);
    (0..rows).map(|row| row * count / rows).collect()
}

fn flat(series: &[crate::JobSample]) -> Vec<u64> {
    let mut before_s = 0;
    let mut flat = Vec::with_capacity(4 * series.len());
    for sample in series {
        let time_s = sample.time_s.round() as u64;
        let thousandths = (sample.efficiency * 1000.0).round() as u64;
        flat.extend([time_s - before_s, sample.replicas.into(), sample.batch_size.into(), thousandths]);
        before_s = time_s;
    }
    flat
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}
