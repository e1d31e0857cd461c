use serde::Serialize;

use crate::ApplicationName;

/// What became of a workload under a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunOutcome {
    /// What the policy is called.
    pub policy: String,
    /// Name of the workload.
    pub workload: String,
    /// Seed the workload was drawn with.
    pub seed: Option<u64>,
    /// GPUs of the cluster; the most there may be where nodes come and go.
    pub gpus: u32,
    /// GPUs there were on average, from the first submission to the last completion.
    pub avg_gpus: f64,
    /// Hours for which nodes were paid in that time.
    pub node_hours: f64,
    /// In order of submission.
    pub jobs: Vec<JobOutcome>,
    /// The cluster over time, where it was asked for: one sample whenever something changed.
    pub cluster: Vec<ClusterSample>,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its name in the workload.
    pub name: String,
    /// What it trained.
    pub application: ApplicationName,
    /// Seconds from the start of the workload.
    pub submitted_s: f64,
    /// When it first held GPUs.
    pub started_s: f64,
    /// When it was complete, or failed.
    pub finished_s: f64,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Changes of its allocation after the first.
    pub restarts: u32,
    /// GPU-seconds held.
    pub gpu_seconds: f64,
    /// Seconds without GPUs.
    pub queued_s: f64,
    /// Completion time against the time alone on its share of the cluster.
    pub rho: f64,
    /// Statistical efficiency, averaged over the samples it processed.
    pub efficiency: f64,
    /// What it had, where that was asked for: one sample per change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<JobSample>,
}

impl JobOutcome {
    /// Seconds from submission to completion.
    pub fn completion_s(&self) -> f64 {
        self.finished_s - self.submitted_s
    }
}

/// What a job has from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JobSample {
    /// From when.
    pub time_s: f64,
    /// Replicas held.
    pub replicas: u32,
    /// Nodes they are on.
    pub nodes: u32,
    /// Total batch.
    pub batch_size: u32,
    /// Statistical efficiency at that batch.
    pub efficiency: f64,
}

/// What the cluster does from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClusterSample {
    /// From when.
    pub time_s: f64,
    /// GPUs held by jobs.
    pub gpus_used: u32,
    /// Nodes that are up.
    pub nodes: u32,
    /// Jobs that hold GPUs.
    pub jobs_running: u32,
    /// Jobs that wait.
    pub jobs_waiting: u32,
}

/// A run in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Jobs that failed: times, efficiency and fairness are those of the others.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: usize,
    /// Mean completion time.
    pub avg_jct_s: f64,
    /// Median completion time.
    pub p50_jct_s: f64,
    /// 99th percentile of completion times.
    pub p99_jct_s: f64,
    /// From the first submission to the last completion.
    pub makespan_s: f64,
    /// GPU-hours held.
    pub gpu_hours: f64,
    /// Hours for which nodes were paid.
    pub node_hours: f64,
    /// Share of the GPUs held, from the first submission to the last completion.
    pub utilisation: f64,
    /// Restarts per job.
    pub restarts_per_job: f64,
    /// Mean seconds without GPUs.
    pub avg_queued_s: f64,
    /// Largest finish-time fairness.
    pub rho_max: f64,
    /// Its 90th percentile.
    pub rho_p90: f64,
    /// Share of jobs above 1.
    pub rho_above_1: f64,
    /// Mean statistical efficiency.
    pub avg_efficiency: f64,
}

impl RunOutcome {
    /// The run in a few numbers.
    pub fn summary(&self) -> Summary {
        let column = |value: fn(&JobOutcome) -> f64| {
            let complete = self.jobs.iter().filter(|job| job.failure.is_none());
            let mut values: Vec<f64> = complete.map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let completion = column(JobOutcome::completion_s);
        let rho = column(|job| job.rho);
        let first_s = self.jobs.iter().map(|job| job.submitted_s).fold(f64::INFINITY, f64::min);
        let last_s = self.jobs.iter().map(|job| job.finished_s).fold(0.0, f64::max);
        let gpu_seconds: f64 = self.jobs.iter().map(|job| job.gpu_seconds).sum();
        Summary {
            failed: self.jobs.iter().filter(|job| job.failure.is_some()).count(),
            avg_jct_s: mean(&completion),
            p50_jct_s: percentile(&completion, 0.5),
            p99_jct_s: percentile(&completion, 0.99),
            makespan_s: last_s - first_s,
            gpu_hours: gpu_seconds / 3600.0,
            node_hours: self.node_hours,
            utilisation: gpu_seconds / (self.avg_gpus * (last_s - first_s)),
            restarts_per_job: mean(&column(|job| f64::from(job.restarts))),
            avg_queued_s: mean(&column(|job| job.queued_s)),
            rho_max: percentile(&rho, 1.0),
            rho_p90: percentile(&rho, 0.9),
            rho_above_1: rho.iter().filter(|&&rho| rho > 1.0).count() as f64 / rho.len() as f64,
            avg_efficiency: mean(&column(|job| job.efficiency)),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Linear between the two nearest of sorted values; not a number where there are none.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let position = share * (sorted.len() - 1) as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (position - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_the_nearest_values() {
        let values = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0.0, 0.5, 1.0].map(|share| percentile(&values, share)), [1.0, 3.0, 8.0]);
    }
}
