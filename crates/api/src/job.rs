use pollux_job::{JobSpec, Phase};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::phases;

/// A job, as in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// For people.
    pub name: String,
    /// Who submitted it; empty if that is not known.
    #[serde(default)]
    pub owner: String,
    /// Where it is in its life.
    #[serde(deserialize_with = "phases::one")]
    pub phase: Phase,
    /// When that phase began, in milliseconds since 1970; so all moments.
    pub phase_since_ms: u64,
    /// When it was submitted.
    pub submitted_ms: u64,
    /// When its first group was launched.
    pub started_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// Replicas of its group now.
    pub replicas: u32,
    /// GPUs of each replica.
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    /// Nodes they are on.
    pub nodes: u32,
    /// Total batch now.
    pub batch_size: Option<u64>,
    /// Factor on the user's learning rate now.
    pub learning_rate_factor: Option<f64>,
    /// Samples per second lately.
    pub samples_per_s: Option<f64>,
    /// What a sample is worth at this batch, against one of the baseline batch.
    pub efficiency: Option<f64>,
    /// Samples per second times efficiency.
    pub goodput: Option<f64>,
    /// Its goodput against that on an equal share of the cluster, as its model tells.
    #[serde(default)]
    pub speedup: Option<f64>,
    /// Finish-time fairness: the time it takes in all, if nothing changes, against the time alone on an equal share.
    #[serde(default)]
    pub unfairness: Option<f64>,
    /// Epochs finished.
    pub epochs: Option<u32>,
    /// Part of the declared work that is done, from 0 to 1.
    pub progress: Option<f64>,
    /// Seconds until the declared work is done, if nothing changes.
    pub remaining_s: Option<f64>,
    /// GPU-seconds held.
    pub attained_gpu_s: f64,
    /// Seconds waited for GPUs.
    pub queued_s: f64,
    /// Groups launched or resized after the first.
    pub restarts: u32,
    /// Retries after failures.
    pub retries: u32,
    /// Why it was given up.
    pub failure: Option<String>,
}

impl Job {
    /// GPUs of its group now.
    pub const fn gpus(&self) -> u32 {
        self.replicas.saturating_mul(self.gpus_per_replica)
    }
}

/// What a server gives each replica that does not say.
pub(crate) const fn one() -> u32 {
    1
}

/// Response to `GET /v1/jobs`: live jobs first, in order of submission, then ended ones, the newest first. One that ends
/// while pages are read may be on two of them, and is left out of none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// What to give as `after_live` to read on; nothing if every live job was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after_live: Option<u64>,
    /// What to give as `before` to read on, once every live job was told; nothing at the end.
    pub next_before: Option<u64>,
}

/// Response to `GET /v1/jobs/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobDetail {
    /// As in a listing.
    #[serde(flatten)]
    pub job: Job,
    /// What its user asked for; the values of secrets are hidden.
    #[serde(alias = "request", deserialize_with = "spec_of_any_version")]
    pub spec: JobSpec,
    /// Number of its newest group, as workers know it; 0 before the first.
    pub generation: u64,
    /// Its newest group, ordered by rank.
    pub group: Vec<crate::AssignedReplica>,
    /// Replicas that work or worked for it and have logs, the oldest first.
    pub replicas_logged: Vec<u64>,
    /// Samples of one micro-batch on one replica.
    pub local_batch: Option<u32>,
    /// Micro-batches before the one that ends a step.
    pub accumulation_steps: Option<u32>,
    /// Noise scale of its gradients: at about this batch, twice the samples are worth half as much.
    pub noise_scale: Option<f64>,
    /// Most replicas it was measured on.
    pub replicas_profiled: Option<u32>,
    /// Seconds that a change of its group costs, as measured on itself.
    pub restart_cost_s: Option<f64>,
    /// When its agent spoke last.
    pub reported_ms: Option<u64>,
    /// Whether it runs without a word, so that it is left alone.
    pub is_silent: bool,
    /// Where it keeps its checkpoints.
    pub checkpoint_dir: String,
}

/// A specification is strict about what users write. What a newer server tells may have fields that are unknown here;
/// version 0.1 called it a request, and some of its fields otherwise.
fn spec_of_any_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<JobSpec, D::Error> {
    let fields: serde_json::Map<String, serde_json::Value> = Deserialize::deserialize(deserializer)?;
    let known = fields.into_iter().filter_map(|(name, value)| Some((JobSpec::field(&name)?.to_owned(), value)));
    serde_json::from_value(known.collect()).map_err(Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_of_a_newer_server_is_read_without_what_is_unknown() {
        let text =
            r#"{"name": "resnet", "command": ["train"], "working_dir": "/", "env": {"A": "1"}, "later": {"x": 1}}"#;
        let read = spec_of_any_version(&mut serde_json::Deserializer::from_str(text)).unwrap();
        let expected = JobSpec {
            command: vec!["train".to_owned()],
            working_dir: "/".into(),
            env: [("A".to_owned(), "1".to_owned())].into(),
            ..JobSpec::new("resnet", 1)
        };
        assert_eq!(read, expected);
        let earlier = r#"{"name": "resnet", "command": ["train"], "working_dir": "/", "environment": {"A": "1"},
            "replicas_requested": 1, "retries_max": 3}"#;
        let read = spec_of_any_version(&mut serde_json::Deserializer::from_str(earlier)).unwrap();
        assert_eq!(read, expected, "as version 0.1 tells it");
    }
}
