use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/jobs`: a job as its user asks for it. Only the command is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// For people; need not be unique. The program's name, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 128, pattern = r"^[^./\\][^/\\]*$"))]
    pub name: Option<String>,
    /// Program and arguments, the same for every replica.
    #[cfg_attr(feature = "openapi", schema(min_items = 1))]
    pub command: Vec<String>,
    /// Where the program starts; absolute.
    #[cfg_attr(feature = "openapi", schema(pattern = "^/"))]
    pub working_dir: String,
    /// Variables besides those of the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Replicas to begin with; policies that choose sizes take it as a hint. Each has a GPU of its own.
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_requested: u32,
    /// Fewest replicas it can run with.
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_min: u32,
    /// Most replicas it may have; as many as the scheduler's own limit, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_max: Option<u32>,
    /// How it may be moved and resized.
    #[serde(default)]
    pub flexibility: Flexibility,
    /// Total batch that the user fixes, for policies that leave it to users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub batch_size: Option<u32>,
    /// Higher goes first, where a policy knows priorities; below 0 a job uses what others leave.
    #[serde(default)]
    pub priority: i32,
    /// How long it is to train, if that is known: it makes predictions possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Failures after which it is tried again.
    #[serde(default = "three")]
    #[cfg_attr(feature = "openapi", schema(maximum = 1000))]
    pub retries_max: u32,
}

impl SubmitRequest {
    /// A command and where it starts; everything else is what a request says that leaves it out.
    pub fn new(command: Vec<String>, working_dir: &str) -> Self {
        Self {
            name: None,
            command,
            working_dir: working_dir.to_owned(),
            environment: BTreeMap::new(),
            replicas_requested: one(),
            replicas_min: one(),
            replicas_max: None,
            flexibility: Flexibility::default(),
            batch_size: None,
            priority: 0,
            work: None,
            retries_max: three(),
        }
    }
}

const fn one() -> u32 {
    1
}

const fn three() -> u32 {
    3
}

/// How a job may be moved and resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Flexibility {
    /// It may grow, shrink, move and wait.
    #[default]
    Elastic,
    /// Its size may be chosen, but once started it keeps its GPUs.
    NonPreemptible,
    /// It gets exactly what it asked for, and keeps it.
    Rigid,
}

/// How long a job is to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", try_from = "EitherLength")]
pub enum Work {
    /// Times through its data.
    Epochs(u32),
    /// Steps at the baseline batch.
    BaselineSteps(u64),
}

/// As it is read: an enum would be a tag in YAML, and two of its variants no JSON.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EitherLength {
    epochs: Option<u32>,
    baseline_steps: Option<u64>,
}

impl TryFrom<EitherLength> for Work {
    type Error = &'static str;

    fn try_from(length: EitherLength) -> Result<Self, Self::Error> {
        match (length.epochs, length.baseline_steps) {
            (Some(epochs), None) => Ok(Self::Epochs(epochs)),
            (None, Some(steps)) => Ok(Self::BaselineSteps(steps)),
            (_, _) => Err("work: accepted is either epochs or baseline_steps"),
        }
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for GPUs.
    Queued,
    /// Its replicas are being started.
    Starting,
    /// Every replica trains.
    Running,
    /// It trains on while its group changes.
    Resizing,
    /// Set aside by its user.
    Paused,
    /// Trained to the end.
    Succeeded,
    /// Given up.
    Failed,
    /// Ended by its user.
    Cancelled,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::Resizing,
        Self::Paused,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// As it is written.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Resizing => "resizing",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A job, as in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// For people.
    pub name: String,
    /// Where it is in its life.
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
    /// What its user asked for.
    pub request: SubmitRequest,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_and_a_folder_are_enough_and_unknown_fields_are_refused() {
        let request: SubmitRequest = serde_json::from_str(r#"{"command":["train"],"working_dir":"/"}"#).unwrap();
        let expected = SubmitRequest::new(vec!["train".to_owned()], "/");
        assert_eq!((expected.replicas_requested, expected.replicas_min, expected.retries_max), (1, 1, 3));
        assert_eq!(request, expected);
        let text = serde_json::to_string(&expected).unwrap();
        assert_eq!(serde_json::from_str::<SubmitRequest>(&text).unwrap(), expected);
        let unknown = r#"{"command":["train"],"working_dir":"/","gpus":4}"#;
        assert!(serde_json::from_str::<SubmitRequest>(unknown).is_err());
    }

    #[test]
    fn phases_have_one_word_each() {
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.word());
        }
    }

    #[test]
    fn work_reads_as_documented() {
        assert_eq!(serde_json::from_str::<Work>(r#"{"epochs":5}"#).unwrap(), Work::Epochs(5));
        assert_eq!(serde_json::from_str::<Work>(r#"{"baseline_steps":9}"#).unwrap(), Work::BaselineSteps(9));
        for neither in ["{}", r#"{"epochs":1,"baseline_steps":1}"#, r#"{"years":1}"#] {
            assert!(serde_json::from_str::<Work>(neither).is_err(), "{neither}");
        }
    }
}
