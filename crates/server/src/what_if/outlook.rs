use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pollux_job::JobId;
use pollux_sim::{LiveCluster, forecast};

use crate::Cluster;

/// The cluster at a moment, from which the future of its jobs follows: that of a what-if without changes.
pub struct Outlook(LiveCluster);

/// What is foreseen of a job, in seconds from the moment of its outlook; nothing where nobody can know.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreseen {
    /// Until it gets GPUs, if it has none.
    pub start_s: Option<f64>,
    /// Until it is complete.
    pub completion_s: Option<f64>,
}

impl Outlook {
    /// Of the cluster as it is.
    pub fn of(cluster: &Cluster<'_>) -> Self {
        let (engine, settings) = (cluster.engine(), cluster.settings());
        let (settings, policy) = (settings.engine, settings.policy.clone());
        Self(LiveCluster { now: cluster.now(), state: engine.state(), settings, policy })
    }

    /// Plays it to its end, or for as long as `patience` lasts: what comes later is not foreseen. Nothing is where the
    /// cluster has no nodes.
    pub fn foresee(&self, patience: Duration) -> BTreeMap<JobId, Foreseen> {
        let deadline = Instant::now() + patience;
        let Ok(forecast) = forecast(&self.0, &[], &mut || Instant::now() < deadline) else { return BTreeMap::new() };
        let of = |job: pollux_sim::JobForecast| Foreseen { start_s: job.start_s, completion_s: job.completion_s.ok() };
        forecast.jobs.into_iter().map(|job| (job.id, of(job))).collect()
    }
}
