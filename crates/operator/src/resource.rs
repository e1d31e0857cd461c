//! The custom resource. Its schema follows from these types; the file in `deploy` is made from them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, CustomResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A training job. Fields have the names that they have everywhere else, written as Kubernetes writes them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "pollux.dev",
    version = "v1alpha1",
    kind = "PolluxJob",
    plural = "polluxjobs",
    shortname = "pj",
    namespaced,
    status = "PolluxJobStatus",
    doc = "A training whose GPUs Pollux chooses.",
    printcolumn(json_path = ".status.phase", name = "Phase", type_ = "string"),
    printcolumn(json_path = ".status.reason", name = "Reason", type_ = "string"),
    printcolumn(json_path = ".status.gpus", name = "GPUs", type_ = "integer"),
    printcolumn(json_path = ".status.nodeCount", name = "Nodes", type_ = "integer"),
    printcolumn(json_path = ".status.batchSize", name = "Batch", type_ = "integer"),
    printcolumn(json_path = ".status.goodput", name = "Goodput", type_ = "number"),
    printcolumn(json_path = ".status.progress", name = "Progress", type_ = "string"),
    printcolumn(json_path = ".status.estimatedStart", name = "ETA", type_ = "string"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date"),
    printcolumn(json_path = ".spec.queue", name = "Queue", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.efficiency", name = "Efficiency", type_ = "number", priority = 1),
    printcolumn(json_path = ".status.restarts", name = "Restarts", type_ = "integer", priority = 1),
    printcolumn(json_path = ".status.estimatedEnd", name = "End", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.message", name = "Message", type_ = "string", priority = 1),
    validation = Rule::new("!has(self.spec.replicas) || self.spec.replicasMin <= self.spec.replicas").message(
        "replicasMin is larger than replicas: expected replicasMin <= replicas <= replicasMax"
    ),
    validation = Rule::new(
        "!has(self.spec.replicasMax) || !has(self.spec.replicas) || self.spec.replicas <= self.spec.replicasMax"
    ).message("replicas is larger than replicasMax: expected replicasMin <= replicas <= replicasMax"),
    validation = Rule::new("!has(self.spec.replicasMax) || self.spec.replicasMin <= self.spec.replicasMax").message(
        "replicasMin is larger than replicasMax: expected replicasMin <= replicas <= replicasMax"
    ),
    validation = Rule::new(
        "!has(self.spec.work) || has(self.spec.work.epochs) != has(self.spec.work.baselineSteps)"
    ).message("work: expected either epochs or baselineSteps"),
    validation = Rule::new(
        "self.spec.template == oldSelf.spec.template && \
         has(self.spec.replicas) == has(oldSelf.spec.replicas) && \
         (!has(self.spec.replicas) || self.spec.replicas == oldSelf.spec.replicas) && \
         self.spec.replicasMin == oldSelf.spec.replicasMin && \
         has(self.spec.replicasMax) == has(oldSelf.spec.replicasMax) && \
         (!has(self.spec.replicasMax) || self.spec.replicasMax == oldSelf.spec.replicasMax) && \
         self.spec.gpusPerReplica == oldSelf.spec.gpusPerReplica && self.spec.gpuTypes == oldSelf.spec.gpuTypes && \
         self.spec.podsPer == oldSelf.spec.podsPer && \
         self.spec.flexibility == oldSelf.spec.flexibility && self.spec.priority == oldSelf.spec.priority && \
         self.spec.retries == oldSelf.spec.retries && \
         has(self.spec.batchSize) == has(oldSelf.spec.batchSize) && \
         (!has(self.spec.batchSize) || self.spec.batchSize == oldSelf.spec.batchSize) && \
         has(self.spec.work) == has(oldSelf.spec.work) && \
         (!has(self.spec.work) || self.spec.work == oldSelf.spec.work) && \
         has(self.spec.application) == has(oldSelf.spec.application) && \
         (!has(self.spec.application) || self.spec.application == oldSelf.spec.application) && \
         has(self.spec.timeLimit) == has(oldSelf.spec.timeLimit) && \
         (!has(self.spec.timeLimit) || self.spec.timeLimit == oldSelf.spec.timeLimit) && \
         has(self.spec.queue) == has(oldSelf.spec.queue) && \
         (!has(self.spec.queue) || self.spec.queue == oldSelf.spec.queue) && \
         has(self.spec.checkpointClaim) == has(oldSelf.spec.checkpointClaim) && \
         (!has(self.spec.checkpointClaim) || self.spec.checkpointClaim == oldSelf.spec.checkpointClaim)"
    ).message("only suspend and ttlSecondsAfterFinished can be changed: make another job instead"),
    validation = Rule::new("size(self.metadata.name) <= 128").message("metadata.name: expected up to 128 characters")
)]
#[serde(rename_all = "camelCase")]
pub struct PolluxJobSpec {
    /// What every replica runs, as in a Deployment. The first container trains: it must name its command.
    #[schemars(schema_with = "template_schema")]
    pub template: Value,
    /// Replicas it begins with, where so many fit; `replicasMin`, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub replicas: Option<u32>,
    /// Fewest replicas it can run with.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 65536))]
    pub replicas_min: u32,
    /// Most replicas it may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub replicas_max: Option<u32>,
    /// GPUs of one replica, always on one node.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub gpus_per_replica: u32,
    /// What its pods hold.
    #[serde(default)]
    pub pods_per: PodsPer,
    /// Types of GPU it may run on, as nodes name them; any, if left out.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 64)))]
    pub gpu_types: Vec<String>,
    /// What it trains, by any name: jobs of one application train alike, so that one is taken to do what others did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub application: Option<String>,
    /// How it may be moved and resized.
    #[serde(default)]
    pub flexibility: Flexibility,
    /// Total batch that its user fixed, for policies that leave it to users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4294967295u32))]
    pub batch_size: Option<u32>,
    /// Higher goes first. A job below 0 uses what others leave.
    #[serde(default)]
    pub priority: i32,
    /// A name of yours for those it belongs to. It is kept and shown, and decides nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub queue: Option<String>,
    /// How long it is to train, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// Failures after which it is tried again.
    #[serde(default = "retries")]
    #[schemars(range(max = 1000))]
    pub retries: u32,
    /// Seconds that it may hold GPUs; then it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 316224000))]
    pub time_limit: Option<u64>,
    /// Sets it aside: it saves, gives its GPUs back, and goes on when this is false.
    #[serde(default)]
    pub suspend: bool,
    /// Seconds after its end at which it is deleted; never, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// A volume that all its pods can write to, for checkpoints. Without one, a job that is stopped begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub checkpoint_claim: Option<String>,
}

const fn one() -> u32 {
    1
}

const fn retries() -> u32 {
    3
}

/// Kept as it was written, whatever it holds: one that makes no sense must not keep the others from being read. The API server checks
/// a pod when it is made.
fn template_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// What the pods of a job hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodsPer {
    /// All replicas that it has on a node, which reach each other's GPUs by NVLink. Another number of them is another pod.
    #[default]
    Node,
    /// One replica, so that it grows and shrinks by single ones while the others train on.
    Replica,
}

/// How a job may be moved and resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Flexibility {
    /// It may be resized, moved and set aside.
    #[default]
    Elastic,
    /// It may be resized and moved, and keeps its fewest replicas once it runs.
    NonPreemptible,
    /// It has exactly as many replicas as it begins with.
    Rigid,
}

/// How long a job is to train: one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Work {
    /// Passes over its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4294967295u32))]
    pub epochs: Option<u32>,
    /// Steps of its baseline batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9007199254740991u64))]
    pub baseline_steps: Option<u64>,
}

/// What has become of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolluxJobStatus {
    /// Its number, as the scheduler and its workers know it.
    pub id: Option<u64>,
    /// Where it is in its life, in one word, for people.
    pub phase: String,
    /// Why, in one word that stays the same.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
    /// The version of the specification that this is about.
    pub observed_generation: Option<i64>,
    /// Replicas that it has.
    pub replicas: u32,
    /// GPUs that it has.
    pub gpus: u32,
    /// Nodes that it is on.
    pub nodes: Vec<String>,
    /// How many those are.
    pub node_count: u32,
    /// Total batch now.
    pub batch_size: Option<u64>,
    /// Samples per second times efficiency.
    pub goodput: Option<f64>,
    /// What a sample is worth at this batch, against one of the baseline batch.
    pub efficiency: Option<f64>,
    /// How much of the declared work is done.
    pub progress: Option<String>,
    /// How often it was launched or resized after the first time.
    pub restarts: u32,
    /// When its first pods were ordered.
    pub start_time: Option<Time>,
    /// When it ended.
    pub completion_time: Option<Time>,
    /// When it gets GPUs, if it waits for them and that can be known.
    pub estimated_start: Option<Time>,
    /// When its declared work is done, if nothing changes.
    pub estimated_end: Option<Time>,
    /// The same for programs.
    pub conditions: Vec<Condition>,
}

/// The definition of the resource.
pub fn definition() -> CustomResourceDefinition {
    PolluxJob::crd()
}
