use pollux_job::{Dependency, Flexibility, Phase, Work, written};
use serde::{Deserialize, Serialize};

use crate::job::one;
use crate::phases;

/// Body of `POST /v1/what-if`: what would be changed now. Nothing is: the answer is a simulation of the cluster as it
/// is, and of one with all changes, in their order. Without changes it predicts the cluster as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WhatIfRequest {
    /// What would be done.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 64))]
    pub changes: Vec<Change>,
}

/// Something that could be done now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Submit a job.
    Submit(HypotheticalJob),
    /// Add nodes that are alike.
    AddNodes {
        /// How many.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
        count: u32,
        /// GPUs of each.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
        gpus: u32,
        /// Their kind; that of the cluster's first node, if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu_type: Option<String>,
    },
    /// Drain a node.
    Drain {
        /// Its name.
        node: String,
    },
    /// Let another policy decide.
    Policy {
        /// Its name; it has its default settings.
        name: String,
    },
    /// End a job.
    Cancel {
        /// Which.
        job: u64,
    },
    /// Set a job aside.
    Pause {
        /// Which.
        job: u64,
    },
    /// Let a paused job go on.
    Resume {
        /// Which.
        job: u64,
    },
}

/// A job that could be submitted. What is left out is as the job it trains like has it, or as a submission has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HypotheticalJob {
    /// What its training is known from.
    pub trains_like: TrainsLike,
    /// For people; what it trains like, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 128))]
    pub name: Option<String>,
    /// Replicas to begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas: Option<u32>,
    /// Fewest replicas it can run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_min: Option<u32>,
    /// Maximum number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 65536))]
    pub replicas_max: Option<u32>,
    /// GPUs of one replica.
    #[serde(default, alias = "gpus", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
    pub gpus_per_replica: Option<u32>,
    /// CPUs of one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub cpus: Option<u32>,
    /// Memory of one replica in bytes, or as text such as `16G`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "written::bytes")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub memory: Option<u64>,
    /// Types of GPU it may run on, by name; an empty list allows any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_types: Option<Vec<String>>,
    /// How it may be moved and resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flexibility: Option<Flexibility>,
    /// Total batch that its user fixes, for policies that leave it to users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub batch_size: Option<u32>,
    /// Higher goes first, where a policy knows priorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How long it is to train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Seconds that it may hold GPUs, or a text such as `8h`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "written::seconds")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub time_limit: Option<u64>,
    /// Live jobs that have to end before it starts. Those of the job it trains like do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
}

/// What a training is known from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrainsLike {
    /// What a job has told of itself, live or over.
    Job(u64),
    /// An application that the simulator knows, such as `cifar10`.
    Application(String),
}

/// Response to `GET /v1/what-if`: what changes may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhatIfChoices {
    /// Policies that can decide.
    pub policies: Vec<String>,
    /// Applications that a job can train like.
    pub applications: Vec<String>,
}

/// Response to `POST /v1/what-if`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhatIf {
    /// The moment that both futures begin, in milliseconds since 1970.
    pub now_ms: u64,
    /// Who decides in each.
    pub policy: BeforeAfter<String>,
    /// Live jobs in order of submission, then hypothetical ones.
    pub jobs: Vec<JobForecast>,
    /// Mean seconds from now, of jobs whose completion is known in both futures; nothing if there are none.
    pub average_completion_s: Option<BeforeAfter<f64>>,
    /// Seconds from now until the last of them is complete.
    pub makespan_s: BeforeAfter<Option<f64>>,
    /// Part of the GPUs that jobs hold until then, from 0 to 1.
    pub gpu_utilisation: BeforeAfter<Option<f64>>,
    /// Seconds from now that were simulated.
    pub horizon_s: BeforeAfter<f64>,
    /// What is to be known of the answer, a sentence each.
    pub notes: Vec<String>,
}

/// The cluster left as it is, and with all changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeforeAfter<T> {
    /// Nothing is changed.
    pub before: T,
    /// Everything is changed.
    pub after: T,
}

/// When a job would be complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobForecast {
    /// Its number; nothing for one that does not exist.
    pub id: Option<u64>,
    /// Its name.
    pub name: String,
    /// Where it is in its life; nothing for one that does not exist.
    #[serde(default, deserialize_with = "phases::any")]
    pub phase: Option<Phase>,
    /// Replicas of its group now.
    pub replicas: u32,
    /// GPUs of each replica.
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    /// If nothing is changed.
    pub before: Completion,
    /// If everything is changed.
    pub after: Completion,
}

impl JobForecast {
    /// GPUs of its group now.
    pub const fn gpus(&self) -> u32 {
        self.replicas.saturating_mul(self.gpus_per_replica)
    }
}

/// When a job would be complete, or why that is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Completion {
    /// Seconds from now.
    pub completion_s: Option<f64>,
    /// Why there is no such time.
    pub why: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_read_as_documented_and_unknown_fields_are_refused() {
        let text = r#"{"changes": [
            {"submit": {"trains_like": {"job": 3}, "replicas_max": 4, "work": {"epochs": 2}, "memory": "16G",
                "gpus_per_replica": 2, "gpu_types": ["A100"], "time_limit": "1h", "depends_on": [3]}},
            {"add_nodes": {"count": 2, "gpus": 4}},
            {"drain": {"node": "local"}},
            {"policy": {"name": "castor"}},
            {"cancel": {"job": 12}}
        ]}"#;
        let request: WhatIfRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.changes.len(), 5);
        assert_eq!(request.changes[1], Change::AddNodes { count: 2, gpus: 4, gpu_type: None });
        let written = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<WhatIfRequest>(&written).unwrap(), request);
        assert_eq!(serde_json::from_str::<WhatIfRequest>("{}").unwrap(), WhatIfRequest::default());
        for unknown in [
            r#"{"change": []}"#,
            r#"{"changes": [{"cancel": {"job": 1, "now": true}}]}"#,
            r#"{"changes": [{"submit": {"trains_like": {"job": 1}, "command": ["x"]}}]}"#,
            r#"{"changes": [{"submit": {"name": "like nothing"}}]}"#,
        ] {
            assert!(serde_json::from_str::<WhatIfRequest>(unknown).is_err(), "{unknown}");
        }
    }
}
