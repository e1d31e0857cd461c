use serde::{Deserialize, Serialize};

/// What Slurm is asked for, again and again: body of `POST /v1/allocation-queues` and `POST /v1/allocation-rehearsals`, and what
/// the scheduler keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AllocationQueueSpec {
    /// What it is called; 1 to 40 letters, digits, `-` or `_`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9_-]{1,40}$"))]
    pub name: String,
    /// How long each allocation lasts, in seconds.
    pub time_limit_s: u64,
    /// Nodes of each allocation.
    #[serde(default = "one")]
    pub nodes_per_alloc: u32,
    /// Most allocations that wait at once.
    #[serde(default = "one")]
    pub backlog: u32,
    /// Most nodes, those that are waited for included; as many as jobs are worth, if left out.
    #[serde(default)]
    pub max_nodes: Option<u32>,
    /// A node without work for so many seconds is given back.
    #[serde(default = "ten_minutes")]
    pub idle_timeout_s: u64,
    /// How many seconds before its end a node is emptied.
    #[serde(default = "ten_minutes")]
    pub drain_before_s: u64,
    /// What the GPUs of its nodes are called; as the driver calls them, if left out.
    #[serde(default)]
    pub gpu_type: Option<String>,
    /// Slots of each node, where it has no GPUs.
    #[serde(default)]
    pub slots: Option<u32>,
    /// A folder that every node sees, for scripts, the token and what allocations print.
    #[serde(default)]
    pub folder: Option<String>,
    /// What else `sbatch` is told.
    #[serde(default)]
    pub sbatch: Vec<String>,
}

const fn one() -> u32 {
    1
}

const fn ten_minutes() -> u64 {
    600
}

/// A queue of allocations, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationQueue {
    /// What was asked for.
    pub request: AllocationQueueSpec,
    /// `active`, `paused`, `stopped` after failures, or `removed`.
    pub state: String,
    /// Why it asks for what it asks for, or for nothing: a sentence.
    pub standing: String,
    /// Nodes of all its allocations.
    pub nodes: u32,
    /// Those that have joined.
    pub nodes_joined: u32,
    /// GPUs or slots of each, as far as that is known.
    pub gpus_per_node: u32,
    /// What it has, the oldest first.
    pub allocations: Vec<SlurmAllocation>,
    /// What became of it lately, the oldest first.
    pub log: Vec<AllocationEvent>,
}

/// One job of Slurm's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SlurmAllocation {
    /// Its name in Slurm.
    pub name: String,
    /// Its number there, once that is known.
    pub job: Option<u64>,
    /// `asked`, `waits` or `runs`.
    pub stage: String,
    /// What Slurm calls its state.
    pub state: String,
    /// Why it waits, in Slurm's word.
    pub reason: String,
    /// When it was asked for.
    pub asked_ms: u64,
    /// When Slurm expects to start it, or has started it.
    pub start_ms: Option<u64>,
    /// When it ends at the latest.
    pub end_ms: Option<u64>,
    /// The nodes that it has, in Slurm's words.
    pub hosts: String,
    /// Its machines that have joined.
    pub machines: Vec<String>,
    /// Why it is given back, if it is.
    pub given_up: Option<String>,
}

/// Something that became of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationEvent {
    /// When.
    pub at_ms: u64,
    /// What, as a sentence.
    pub text: String,
}

/// Response to `GET /v1/allocation-queues`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationQueueList {
    /// In the order in which they were added.
    pub queues: Vec<AllocationQueue>,
}

/// Response to `POST /v1/allocation-rehearsals`: what `sbatch` would say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationRehearsal {
    /// Whether it would take the allocation.
    pub is_accepted: bool,
    /// What it says.
    pub said: String,
    /// The command, as it would be called.
    pub command: Vec<String>,
}

/// Response to `GET /v1/allocation-queues/{name}/output`: what an allocation has printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AllocationOutput {
    /// Which Slurm job; nothing if there was none yet.
    pub job: Option<u64>,
    /// The end of it.
    pub text: String,
}
