use pollux_agent::AgentReport;
use pollux_model::{BatchMode, GpuTypeName};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Response to `GET /v1/jobs/{id}/assignment`: who belongs to the newest group of a job, and where it meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignment {
    /// Number of the group; every change gives a larger one.
    pub generation: u64,
    /// Whose word it is: of several schedulers that follow each other each has a larger one. A scheduler that knew no such thing
    /// leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Whether the group trains.
    pub state: AssignmentState,
    /// Where rank 0 waits for the others: null until it has told.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Endpoint>))]
    #[serde(default, skip_serializing_if = "Rendezvous::is_given")]
    pub rendezvous: Rendezvous,
    /// A host for programs that cannot tell where they wait: `MASTER_ADDR` of those that are started for this group.
    pub master_address: String,
    /// A port for such programs: `MASTER_PORT`.
    pub master_port: u16,
    /// Who chooses the batch.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(default)]
    pub batch: BatchMode,
    /// Whether another job runs on GPUs of the group: its steps then tell nothing of what those GPUs could do.
    #[serde(default)]
    pub shares_gpus: bool,
    /// What only workers of this job are told, so that they know each other. It stays the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The group, ordered by rank. Replicas of the group before come first, in their old order.
    pub replicas: Vec<AssignedReplica>,
}

/// Where the ranks of a group meet. It reads and writes as an [`Endpoint`] or null.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rendezvous {
    /// The scheduler is of version 0.1: it found a port by itself, and rank 0 listens there.
    #[default]
    Given,
    /// Rank 0 has yet to tell where it listens.
    Awaited,
    /// Rank 0 listens here.
    At(Endpoint),
}

impl Rendezvous {
    const fn is_given(&self) -> bool {
        matches!(self, Self::Given)
    }
}

impl Serialize for Rendezvous {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Given | Self::Awaited => serializer.serialize_none(),
            Self::At(endpoint) => serializer.serialize_some(endpoint),
        }
    }
}

impl<'de> Deserialize<'de> for Rendezvous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Endpoint>::deserialize(deserializer)?.map_or(Self::Awaited, Self::At))
    }
}

/// A place to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Endpoint {
    /// Host.
    pub address: String,
    /// Port.
    pub port: u16,
}

/// Whether a group trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssignmentState {
    /// All of it is to save and exit.
    Stop,
    /// It does, or will. So does one in a state that only a later scheduler knows.
    #[serde(other)]
    Run,
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
    /// The type of its GPUs.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    #[serde(default)]
    pub gpu_type: GpuTypeName,
}

impl Assignment {
    /// Where the others find rank 0; `None` until it has told.
    pub fn endpoint(&self) -> Option<Endpoint> {
        match &self.rendezvous {
            Rendezvous::Given => Some(Endpoint { address: self.master_address.clone(), port: self.master_port }),
            Rendezvous::Awaited => None,
            Rendezvous::At(endpoint) => Some(endpoint.clone()),
        }
    }
}

/// Body of `POST /v1/jobs/{id}/rendezvous`, by rank 0: where it waits for the others of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RendezvousRequest {
    /// The group that meets there.
    pub generation: u64,
    /// Host, as the others reach it.
    pub address: String,
    /// Port.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub port: u16,
}

/// Body of `POST /v1/jobs/{id}/reports`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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

    fn read(rendezvous: &str, more: &str) -> Assignment {
        let replica = r#"{"replica":17,"rank":0,"node":"local-0","local_rank":0,"local_world_size":2,"later":1}"#;
        let text = format!(
            r#"{{"generation":3,"state":"run",{rendezvous}"master_address":"127.0.0.1","master_port":4711,"later":true,
                {more}"replicas":[{replica}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn an_assignment_of_version_0_1_has_its_port_an_adaptive_batch_and_unnamed_gpus() {
        let replica = AssignedReplica {
            replica: 17,
            rank: 0,
            node: "local-0".to_owned(),
            local_rank: 0,
            local_world_size: 2,
            gpu_type: GpuTypeName::default(),
        };
        let expected = Assignment {
            generation: 3,
            epoch: None,
            state: AssignmentState::Run,
            rendezvous: Rendezvous::Given,
            master_address: "127.0.0.1".to_owned(),
            master_port: 4711,
            batch: BatchMode::Adaptive,
            shares_gpus: false,
            key: None,
            replicas: vec![replica],
        };
        assert_eq!(read("", ""), expected);
        assert_eq!(expected.endpoint(), Some(Endpoint { address: "127.0.0.1".to_owned(), port: 4711 }));
    }

    #[test]
    fn a_rendezvous_is_awaited_until_it_is_there() {
        let awaited = read(r#""rendezvous":null,"#, r#""batch":{"mode":"fixed","batch_size":64},"#);
        assert_eq!((awaited.endpoint(), awaited.batch), (None, BatchMode::Fixed { batch_size: Some(64) }));
        let there = read(r#""rendezvous":{"address":"10.0.0.1","port":80,"later":1},"#, "");
        assert_eq!(there.endpoint(), Some(Endpoint { address: "10.0.0.1".to_owned(), port: 80 }));
        for assignment in [awaited, there, read("", ""), read("", r#""epoch":7,"#)] {
            let text = serde_json::to_string(&assignment).unwrap();
            assert_eq!(serde_json::from_str::<Assignment>(&text).unwrap(), assignment, "{text}");
        }
    }

    #[test]
    fn what_a_worker_says_may_gain_fields() {
        let fresh = ReadyRequest { generation: 1, pause_s: None };
        assert_eq!(serde_json::to_string(&fresh).unwrap(), r#"{"generation":1}"#);
        assert_eq!(serde_json::from_str::<ReadyRequest>(r#"{"generation":1}"#).unwrap(), fresh);
        assert_eq!(serde_json::from_str::<ReadyRequest>(r#"{"generation":1,"later":2}"#).unwrap(), fresh);
        let place = r#"{"generation":1,"address":"a","port":7,"later":2}"#;
        assert_eq!(serde_json::from_str::<RendezvousRequest>(place).unwrap().port, 7);
        let report = r#"{"generation":1,"later":2,"report":{"limits":{"batch_size_baseline":8,"batch_size_max":64,
            "local_batch_min":1,"local_batch_max":64,"later":1},"types":[],"noise":{"sqr":0.4,"var":3.1,"later":1},
            "progress":{"steps":1,"samples":8,"epochs":0,"baseline_steps":1.0,"later":1},"epoch_samples":null,
            "samples_per_s":null,"loss":null,"tuning":{"local_batch":8,"accumulation_steps":0,"later":1},
            "learning_rate_factor":1.0,"later":1}}"#;
        assert_eq!(serde_json::from_str::<ReportRequest>(report).unwrap().report.progress.steps, 1);
    }
}
