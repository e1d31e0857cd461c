use pollux_job::Phase;
use serde::{Deserialize, Serialize};

use crate::job::one;
use crate::phases;

/// Response to `GET /v1/jobs/{id}/explanation`: why a job has what it has, and when that may change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Which job.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    #[serde(deserialize_with = "phases::one")]
    pub phase: Phase,
    /// Replicas of its group now.
    pub replicas: u32,
    /// GPUs of each replica.
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    /// All of the below for people, a sentence each.
    pub sentences: Vec<String>,
    /// What it waits for, as one word; nothing if it trains as planned, or has ended.
    pub wait: Option<String>,
    /// What keeps it from having more, as one word.
    pub binding: Option<String>,
    /// Goodput with one more GPU against now, minus 1.
    pub one_more: Option<f64>,
    /// Goodput with one GPU fewer against now, minus 1.
    pub one_fewer: Option<f64>,
    /// Who would have to give up the GPU.
    pub payer: Option<Payer>,
    /// GPUs that a fair share of the cluster would give it.
    pub fair_share: Option<f64>,
    /// When the next plan is made.
    pub next_round_ms: Option<u64>,
    /// What it is expected to do on other numbers of GPUs, where its agent has told enough.
    pub sizes: Vec<SizeOutlook>,
    /// What it is expected to do on each type of GPU that it may use, in a cluster of several.
    #[serde(default)]
    pub types: Vec<TypeOutlook>,
}

impl Explanation {
    /// GPUs of a group of so many replicas.
    pub const fn gpus_of(&self, replicas: u32) -> u32 {
        replicas.saturating_mul(self.gpus_per_replica)
    }
}

/// A job that would have to give up a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Payer {
    /// Which.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its goodput without that GPU against now, minus 1.
    pub change: f64,
}

/// What a job is expected to do on some number of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SizeOutlook {
    /// How many.
    pub replicas: u32,
    /// On so many nodes, the fewest that hold them.
    pub nodes: u32,
    /// Total batch: the best, or the one that its user fixed where the policy leaves batches to users.
    pub batch_size: u64,
    /// Samples per second.
    pub samples_per_s: f64,
    /// What a sample is worth at that batch, against one of the baseline batch.
    pub efficiency: f64,
    /// Samples per second times efficiency.
    pub goodput: f64,
    /// Whether it was measured on so many, or the model goes beyond what it knows.
    pub is_measured: bool,
}

/// What a job is expected to do on a type of GPU, on as many as it has, or on its fewest while it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TypeOutlook {
    /// The type.
    pub gpu_type: String,
    /// Replicas, which are fewer where there are not so many GPUs.
    pub replicas: u32,
    /// On so many nodes, the fewest that hold them.
    pub nodes: u32,
    /// Total batch.
    pub batch_size: u64,
    /// Samples per second.
    pub samples_per_s: f64,
    /// Samples per second times efficiency.
    pub goodput: f64,
    /// Goodput against that on the type it is on, minus 1; nothing there, and while it waits.
    pub change: Option<f64>,
    /// Whether it never ran there, so that what is known of other types and other jobs stands for it.
    pub is_estimated: bool,
}
