use pollux_engine::Event;
use pollux_policy::{JobId, NodeId, Plan, Timestamp};
use serde::{Deserialize, Serialize};

/// One line of the journal: with the snapshot before it, enough to get the engine back to where it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The engine was told.
    Event {
        /// When.
        at: Timestamp,
        /// What.
        event: Event,
    },
    /// A round was held. Its plan is kept, because a policy that starts anew might plan otherwise.
    Round {
        /// When.
        at: Timestamp,
        /// The policy that was asked.
        #[serde(default)]
        policy: Option<String>,
        /// What came of it; none if the plan could not be used.
        plan: Option<Plan>,
    },
}

/// What one commit makes durable, all of it or nothing.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// For the journal, in order.
    pub records: Vec<Record>,
    /// New jobs.
    pub submitted: Vec<SubmittedJob>,
    /// Jobs that are over.
    pub ended: Vec<EndedJob>,
    /// Replicas that are about to be started.
    pub replicas_ordered: Vec<ReplicaRow>,
    /// Replicas that are gone.
    pub replicas_gone: Vec<u64>,
    /// Who belongs together, wherever that changed: the job, and its group in the caller's own words, or none.
    pub groups: Vec<(JobId, Option<String>)>,
    /// Tokens given out. Those of a job end with it.
    pub tokens: Vec<TokenRow>,
    /// Digests of tokens that are taken back.
    pub tokens_gone: Vec<[u8; 32]>,
    /// Nodes that joined, by the engine's number, with their names.
    pub nodes: Vec<(NodeId, String)>,
    /// What people may want to read later.
    pub history: Vec<HistoryEntry>,
}

impl Batch {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.submitted.is_empty()
            && self.ended.is_empty()
            && self.replicas_ordered.is_empty()
            && self.replicas_gone.is_empty()
            && self.groups.is_empty()
            && self.tokens.is_empty()
            && self.tokens_gone.is_empty()
            && self.nodes.is_empty()
            && self.history.is_empty()
    }
}

/// A job as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmittedJob {
    /// Its number.
    pub id: JobId,
    /// When it came.
    pub submitted: Timestamp,
    /// What was asked for, in the caller's own words.
    pub request: String,
}

/// A token that opens a job to its workers, or everything to a user. What it reads is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Digest of the token.
    pub digest: [u8; 32],
    /// The job that it opens, or everything.
    pub job: Option<JobId>,
    /// Whom it was given to.
    pub label: String,
}

/// A job that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedJob {
    /// Its number.
    pub id: JobId,
    /// When it ended.
    pub ended: Timestamp,
    /// How, in one word.
    pub phase: String,
    /// What became of it, in the caller's own words.
    pub summary: String,
}

/// A job as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// As it was asked for.
    pub submitted: SubmittedJob,
    /// How it ended, if it did.
    pub ended: Option<EndedJob>,
}

/// A replica that may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    /// Its number, never used again.
    pub id: u64,
    /// Its job.
    pub job: JobId,
    /// Where and as what it runs, in the caller's own words.
    pub detail: String,
}

/// Something that happened, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Grows; given by the caller.
    pub sequence: u64,
    /// When.
    pub at: Timestamp,
    /// To which job, if to one.
    pub job: Option<JobId>,
    /// What, in the caller's own words.
    pub text: String,
}
