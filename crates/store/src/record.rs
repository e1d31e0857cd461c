use pollux_engine::{Event, JobState, JobUsage, ReceivedReport};
use pollux_job::{JobId, JobSpec};
use pollux_policy::{NodeId, Plan, Timestamp};

use crate::{GroupRow, HistoryEvent, NodeRow};

/// One line of the journal: with the snapshot before it, enough to get the engine back to where it was.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are events, and few are in memory at once")]
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
        /// The policy that was asked; it is not known of rounds of version 0.1.
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
    /// Who belongs together, wherever that changed: the job, and its group, or none.
    pub groups: Vec<(JobId, Option<GroupRow>)>,
    /// Tokens given out. Those of a job end with it.
    pub tokens: Vec<TokenRow>,
    /// Digests of tokens that are taken back.
    pub tokens_gone: Vec<[u8; 32]>,
    /// Digests of users' tokens that were used, and when.
    pub tokens_used: Vec<([u8; 32], Timestamp)>,
    /// Nodes that joined, by the engine's number.
    pub nodes: Vec<(NodeId, NodeRow)>,
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
            && self.tokens_used.is_empty()
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
    /// What was asked for.
    pub spec: JobSpec,
}

/// A token. What it reads is not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Digest of the token.
    pub digest: [u8; 32],
    /// Whom it was given to.
    pub holder: TokenHolder,
}

/// Who has a token, and so what it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenHolder {
    /// The workers of a job.
    Job(JobId),
    /// A user.
    User(UserToken),
}

/// What is kept of a user's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserToken {
    /// Whose it is.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// When it was made; not known of those of version 0.1.
    pub created: Option<Timestamp>,
    /// From when on it opens nothing, if it ends.
    pub expires: Option<Timestamp>,
    /// When it was used last, to the minute; nothing if it never was.
    pub used: Option<Timestamp>,
}

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Submit, and change their own jobs.
    Member,
    /// Look.
    Viewer,
}

impl Role {
    /// As it is written.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Member => "member",
            Self::Viewer => "viewer",
        }
    }

    /// As it was written.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        [Self::Admin, Self::Member, Self::Viewer].into_iter().find(|role| role.word() == word)
    }
}

/// A job that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedJob {
    /// Its number.
    pub id: JobId,
    /// When it ended.
    pub ended: Timestamp,
    /// What became of it.
    pub summary: JobSummary,
}

/// What is kept of a job that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSummary {
    /// How it ended.
    pub state: JobState,
    /// Why it was given up.
    pub failure: Option<String>,
    /// Its times and GPU-seconds.
    pub usage: JobUsage,
    /// What its agent said last.
    pub report: Option<ReceivedReport>,
    /// Replicas that worked for it, the oldest first; of very many the oldest are forgotten.
    pub replicas: Vec<u64>,
}

/// A job as it is kept.
#[derive(Clone, Debug, PartialEq)]
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
    /// Where it runs.
    pub node: NodeId,
    /// The replica whose GPUs it uses as a guest.
    pub shares_with: Option<u64>,
    /// The first of those that come and go with it, if it does not come alone.
    pub bundle: Option<u64>,
}

/// Something that happened, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEntry<E = HistoryEvent> {
    /// Grows; given by the caller.
    pub sequence: u64,
    /// When.
    pub at: Timestamp,
    /// To which job, if to one.
    pub job: Option<JobId>,
    /// What.
    pub event: E,
}

/// A line of history as it is read back.
pub type HistoryLine = HistoryEntry<Result<HistoryEvent, UnreadableEvent>>;

/// A line of history that this version cannot read: damaged, or of a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableEvent {
    /// As it is written.
    pub text: String,
    /// Why it cannot be read.
    pub reason: String,
}
