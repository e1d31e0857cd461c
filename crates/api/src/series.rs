use serde::{Deserialize, Serialize};

/// Response to `GET /v1/cluster/series`: the cluster over time. All lists are of one length, the oldest moment first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterSeries {
    /// Seconds from one moment to the next, while the server ran.
    pub step_s: u64,
    /// The moments.
    pub at_ms: Vec<u64>,
    /// GPUs of all nodes that are up.
    pub gpus: Vec<u32>,
    /// GPUs that replicas hold.
    pub gpus_held: Vec<u32>,
    /// Jobs that wait for GPUs.
    pub queued: Vec<u32>,
    /// Jobs that have some.
    pub running: Vec<u32>,
    /// Samples per second times what each is worth, of all jobs.
    pub goodput: Vec<f64>,
    /// What a sample is worth, on average over GPUs.
    pub efficiency: Vec<Option<f64>>,
    /// Finish-time fairness of the job that is treated worst: 1 is fair, more is later.
    pub unfairness_worst: Vec<Option<f64>>,
    /// The same on average over jobs.
    pub unfairness_average: Vec<Option<f64>>,
}

/// Response to `GET /v1/jobs/{id}/series`: a job over its life. All lists are of one length, the oldest moment first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSeries {
    /// The moments at which something was told or changed.
    pub at_ms: Vec<u64>,
    /// Replicas of its group.
    pub replicas: Vec<u32>,
    /// Total batch.
    pub batch_size: Vec<Option<u64>>,
    /// Factor on the user's learning rate.
    pub learning_rate_factor: Vec<Option<f64>>,
    /// Samples per second.
    pub samples_per_s: Vec<Option<f64>>,
    /// What a sample is worth at that batch, against one of the baseline batch.
    pub efficiency: Vec<Option<f64>>,
    /// Samples per second times efficiency.
    pub goodput: Vec<Option<f64>>,
    /// Noise scale of its gradients.
    pub noise_scale: Vec<Option<f64>>,
}
