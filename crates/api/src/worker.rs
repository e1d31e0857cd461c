use pollux_agent::AgentReport;
use serde::{Deserialize, Serialize};

/// Response to `GET /v1/jobs/{id}/assignment`: who belongs to the newest group of a job, and where it meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignment {
    /// Number of the group; every change gives a larger one.
    pub generation: u64,
    /// Whether the group trains.
    pub state: AssignmentState,
    /// Host on which rank 0 waits for the others.
    pub master_address: String,
    /// Port on which rank 0 waits for the others.
    pub master_port: u16,
    /// The group, ordered by rank. Replicas of the group before come first, in their old order.
    pub replicas: Vec<AssignedReplica>,
}

/// Whether a group trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssignmentState {
    /// It does, or will.
    Run,
    /// All of it is to save and exit.
    Stop,
}

/// One replica of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssignedReplica {
    /// Its number, which it keeps for life.
    pub replica: u64,
    /// Its place in the group.
    pub rank: u32,
    /// The node it runs on.
    pub node: String,
    /// Its place among the replicas of that node.
    pub local_rank: u32,
    /// Replicas of the group on that node.
    pub local_world_size: u32,
}

/// Body of `POST /v1/jobs/{id}/reports`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {
    /// The group that speaks.
    pub generation: u64,
    /// What its agent has learned.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub report: AgentReport,
}

/// Body of `POST /v1/jobs/{id}/ready`: every rank of the generation trains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadyRequest {
    /// The group that speaks.
    pub generation: u64,
    /// Seconds that the training stood still for the change; left out by a group that was started afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_s: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_reads_as_documented_and_may_gain_fields() {
        let text = r#"{"generation":3,"state":"run","master_address":"127.0.0.1","master_port":4711,"later":true,
            "replicas":[{"replica":17,"rank":0,"node":"local-0","local_rank":0,"local_world_size":2}]}"#;
        let replica =
            AssignedReplica { replica: 17, rank: 0, node: "local-0".to_owned(), local_rank: 0, local_world_size: 2 };
        let expected = Assignment {
            generation: 3,
            state: AssignmentState::Run,
            master_address: "127.0.0.1".to_owned(),
            master_port: 4711,
            replicas: vec![replica],
        };
        assert_eq!(serde_json::from_str::<Assignment>(text).unwrap(), expected);
    }

    #[test]
    fn a_ready_request_without_a_pause_has_none_and_refuses_what_it_does_not_know() {
        let fresh = ReadyRequest { generation: 1, pause_s: None };
        assert_eq!(serde_json::to_string(&fresh).unwrap(), r#"{"generation":1}"#);
        assert_eq!(serde_json::from_str::<ReadyRequest>(r#"{"generation":1}"#).unwrap(), fresh);
        assert!(serde_json::from_str::<ReadyRequest>(r#"{"generation":1,"pauses":2}"#).is_err());
    }
}
