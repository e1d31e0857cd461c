use std::collections::BTreeMap;

use pollux_job::Phase;
use serde::{Deserialize, Serialize};

use crate::job::one;
use crate::phases;

/// Response to `GET /v1/cluster`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterStatus {
    /// Of the server.
    pub version: String,
    /// Who gets what.
    pub policy: String,
    /// By the cluster's clock.
    pub now_ms: u64,
    /// GPUs of all nodes that are up.
    pub gpus: u32,
    /// GPUs that replicas hold, those on their way out included.
    pub gpus_held: u32,
    /// Live jobs by phase.
    #[serde(deserialize_with = "phases::counts")]
    pub jobs: BTreeMap<Phase, u64>,
    /// Sum over jobs that train and tell.
    pub goodput: f64,
    /// Number of the last event; 0 before the first.
    pub last_event: u64,
    /// When the last plan was made.
    pub last_round_ms: Option<u64>,
    /// When the next plan is made.
    pub next_round_ms: Option<u64>,
    /// Whether nothing can be written at the moment, so that nothing new is done.
    pub is_degraded: bool,
}

/// A node that is used, or still has replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its GPUs.
    pub gpus: u32,
    /// Their kind.
    pub gpu_type: String,
    /// GPUs that replicas hold, those on their way out included.
    pub gpus_held: u32,
    /// CPUs for its replicas; nothing if they are not counted.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// CPUs that replicas were given, those on their way out included.
    #[serde(default)]
    pub cpus_held: u32,
    /// Bytes of memory for its replicas; nothing if they are not counted.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Bytes of memory that replicas were given, those on their way out included.
    #[serde(default)]
    pub memory_held: u64,
    /// Whether it is being emptied.
    pub is_draining: bool,
    /// From when on it is emptied because it ends, if that is known; milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drains_at_ms: Option<u64>,
    /// When it ends, if that is known; milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_ms: Option<u64>,
    /// Whether it does not answer: nothing is placed there, and what it had stays taken.
    #[serde(default)]
    pub is_unreachable: bool,
    /// Whether it is not used any more because its machine has changed: it goes with the last replica on it.
    #[serde(default)]
    pub is_retired: bool,
    /// After failures: nothing is placed there until then.
    pub cooling_until_ms: Option<u64>,
    /// Jobs with replicas there.
    pub jobs: Vec<NodeJob>,
    /// The machine that it is part of, if that has joined by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<NodeAgent>,
}

/// A machine that has joined by `pollux node --join`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeAgent {
    /// The machine's name.
    pub machine: String,
    /// The version of its program.
    pub version: String,
    /// The host under which its replicas are reached.
    pub address: String,
    /// Whether it is connected.
    pub is_connected: bool,
    /// When it was heard last, if it was since the scheduler has started.
    pub last_contact_ms: Option<u64>,
}

/// Body of `POST /v1/node-tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NodeTokenRequest {
    /// How long machines may join with it, in seconds; 7 days at most.
    pub expires_s: u64,
}

/// Response to `POST /v1/node-tokens`: the only time that the token is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedNodeToken {
    /// Lets machines join, and nothing else. Behind a dot there is the fingerprint of the server's certificate, if it has one.
    pub token: String,
    /// Until when.
    pub expires_ms: u64,
}

// Whatever prints an answer must not show the token.
impl std::fmt::Debug for IssuedNodeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedNodeToken").field("expires_ms", &self.expires_ms).finish_non_exhaustive()
    }
}

/// Response to `DELETE /v1/nodes/{name}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MachineRemoval {
    /// Whether it is gone already; else it ends what it runs, and is gone then.
    pub is_gone: bool,
}

/// A job on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeJob {
    /// Which.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its replicas there.
    pub replicas: u32,
    /// GPUs of each replica.
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    /// Whether it uses GPUs that others own, beside them.
    pub is_guest: bool,
}

impl NodeJob {
    /// Its GPUs there.
    pub const fn gpus(&self) -> u32 {
        self.replicas.saturating_mul(self.gpus_per_replica)
    }
}

/// A node that was seen and cannot be used yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldBackNode {
    /// Its name.
    pub name: String,
    /// Its GPUs.
    pub gpus: u32,
    /// Their kind.
    pub gpu_type: String,
    /// What it waits for, in a sentence.
    pub reason: String,
}

/// Response to `GET /v1/nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeList {
    /// In order of their names.
    pub nodes: Vec<Node>,
    /// In order of their names.
    #[serde(default)]
    pub held_back: Vec<HeldBackNode>,
}
