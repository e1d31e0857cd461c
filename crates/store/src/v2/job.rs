use pollux_engine::{
    FailureCause as EngineCause, FailureReason as EngineReason, HeldGpus as EngineHeldGpus, JobState, JobUsage,
    Leaving as EngineLeaving, Revision, SavedJob, SizeChange as EngineChange, StartHistory as EngineStartHistory,
};
use pollux_job::JobId;
use pollux_policy::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::spec::Dependency;
use super::{Oracle, Places, Reason, ReceivedReport, Spec, allocation, places, words};
use crate::JobSummary;

/// A job that is not over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) spec: Spec,
    pub(crate) phase: Phase,
    pub(crate) phase_since: u64,
    pub(crate) revision: u64,
    pub(crate) revision_heard: u64,
    pub(crate) group: Places,
    pub(crate) target: Places,
    pub(crate) guest_of: Option<u64>,
    pub(crate) guest: Option<u64>,
    pub(crate) leaving: Vec<Leaving>,
    /// Records from before it was kept have none.
    #[serde(default)]
    pub(crate) standing: Option<Standing>,
    pub(crate) commanded: u64,
    #[serde(default)]
    pub(crate) pending: bool,
    #[serde(default)]
    pub(crate) stranded: bool,
    #[serde(default)]
    pub(crate) machine_failures: u32,
    pub(crate) timer: Option<u64>,
    #[serde(default)]
    pub(crate) deadline: Option<u64>,
    #[serde(default)]
    pub(crate) waits_for: Vec<Dependency>,
    pub(crate) usage: Usage,
    pub(crate) size_change: Option<SizeChange>,
    pub(crate) reason: Option<Reason>,
    pub(crate) report: Option<ReceivedReport>,
    pub(crate) silent: bool,
    pub(crate) oracle: Option<Oracle>,
}

/// How a job stands against others that wait.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Its submission, where nothing is said.
    #[serde(default)]
    pub(crate) eligible_since: Option<u64>,
    pub(crate) queued_since: u64,
    pub(crate) launched: Option<u64>,
    pub(crate) failed_starts: u32,
    pub(crate) yields_until: u64,
}

/// Where a job is in its life.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Queued { retry_at: Option<u64> },
    Starting,
    Running,
    Resizing { survivors: Places, cause: ResizeCause },
    Paused,
    Succeeded,
    Failed { reason: FailureReason },
    Cancelled,
}

words! {
    /// What a job is resized for.
    ResizeCause is pollux_engine::ResizeCause { Plan, NodeLoss }
}

/// Why a job was given up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureReason {
    Permanent { cause: FailureCause },
    RetriesExhausted { retries: u32, cause: FailureCause },
    MachineFailures { failures: u32, cause: FailureCause },
    TimeLimit { limit_s: u64 },
    Dependency { job: u64 },
}

/// What failed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureCause {
    Replica { node: u32 },
    Launch { node: u32 },
    Timeout,
}

/// What a cluster remembers of a job's past.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Usage {
    submitted: u64,
    first_started: Option<u64>,
    ended: Option<u64>,
    restarts: u32,
    retries: u32,
    restart_cost_s: Option<f64>,
    #[serde(default)]
    is_pause_known: bool,
    gpu_ms: u64,
    executed_ms: u64,
    queued_ms: u64,
    accrued_until: u64,
}

/// A group that was told to become smaller or larger.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SizeChange {
    at: u64,
    from: u32,
    to: u32,
}

/// Replicas that were told to leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Leaving {
    pub(crate) revision: u64,
    pub(crate) allocation: Places,
    pub(crate) why: StopReason,
    pub(crate) seats: Seats,
}

words! {
    /// What replicas are stopped for.
    StopReason is pollux_engine::StopReason {
        Preempted, Moved, Resized, Paused, Cancelled, Succeeded, TimeLimit, Failed, NodeLost, NodeEnds,
    }
}

/// GPUs that replicas are on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seats {
    owned: Places,
    shared: Places,
}

/// What became of a job that is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) phase: Phase,
    pub(crate) failure: Option<String>,
    pub(crate) usage: Usage,
    pub(crate) report: Option<ReceivedReport>,
    pub(crate) replicas: Vec<u64>,
}

impl From<&SavedJob> for Job {
    fn from(job: &SavedJob) -> Self {
        Self {
            id: job.id.0,
            spec: (&job.spec).into(),
            phase: (&job.state).into(),
            phase_since: job.phase_since.0,
            revision: job.revision.0,
            revision_heard: job.revision_heard.0,
            group: places(&job.group),
            target: places(&job.target),
            guest_of: job.guest_of.map(|host| host.0),
            guest: job.guest.map(|guest| guest.0),
            leaving: job.leaving.iter().map(Into::into).collect(),
            standing: Some(job.start_history.into()),
            commanded: job.commanded.0,
            pending: job.pending,
            stranded: job.stranded,
            machine_failures: job.machine_failures,
            timer: job.timer.map(|at| at.0),
            deadline: job.deadline.map(|at| at.0),
            waits_for: job.waits_for.iter().copied().map(Into::into).collect(),
            usage: job.usage.into(),
            size_change: job.size_change.map(|EngineChange { at, from, to }| SizeChange { at: at.0, from, to }),
            reason: job.reason.map(Into::into),
            report: job.report.as_ref().map(Into::into),
            silent: job.silent,
            oracle: job.oracle.clone().map(Into::into),
        }
    }
}

impl From<Job> for SavedJob {
    fn from(job: Job) -> Self {
        Self {
            id: JobId(job.id),
            spec: job.spec.into(),
            state: job.phase.into(),
            phase_since: Timestamp(job.phase_since),
            revision: Revision(job.revision),
            revision_heard: Revision(job.revision_heard),
            group: allocation(job.group),
            target: allocation(job.target),
            guest_of: job.guest_of.map(JobId),
            guest: job.guest.map(JobId),
            leaving: job.leaving.into_iter().map(Into::into).collect(),
            start_history: standing(job.standing, job.usage.submitted, job.phase_since),
            commanded: Timestamp(job.commanded),
            pending: job.pending,
            stranded: job.stranded,
            machine_failures: job.machine_failures,
            timer: job.timer.map(Timestamp),
            deadline: job.deadline.map(Timestamp),
            waits_for: job.waits_for.into_iter().map(Into::into).collect(),
            usage: job.usage.into(),
            size_change: job.size_change.map(|SizeChange { at, from, to }| EngineChange {
                at: Timestamp(at),
                from,
                to,
            }),
            reason: job.reason.map(Into::into),
            report: job.report.map(Into::into),
            silent: job.silent,
            oracle: job.oracle.map(Into::into),
        }
    }
}

impl From<EngineStartHistory> for Standing {
    fn from(standing: EngineStartHistory) -> Self {
        let EngineStartHistory { eligible_since, queued_since, launched, failed_starts, yields_until } = standing;
        Self {
            eligible_since: Some(eligible_since.0),
            queued_since: queued_since.0,
            launched: launched.map(|at| at.0),
            failed_starts,
            yields_until: yields_until.0,
        }
    }
}

/// Of a job that was submitted and entered its phase then, where it was not told.
fn standing(told: Option<Standing>, submitted: u64, phase_since: u64) -> EngineStartHistory {
    let submitted = Timestamp(submitted);
    let Some(Standing { eligible_since, queued_since, launched, failed_starts, yields_until }) = told else {
        return EngineStartHistory { eligible_since: submitted, ..EngineStartHistory::since(Timestamp(phase_since)) };
    };
    EngineStartHistory {
        eligible_since: eligible_since.map_or(submitted, Timestamp),
        queued_since: Timestamp(queued_since),
        launched: launched.map(Timestamp),
        failed_starts,
        yields_until: Timestamp(yields_until),
    }
}

impl From<&JobState> for Phase {
    fn from(state: &JobState) -> Self {
        match state {
            JobState::Queued { retry_at } => Self::Queued { retry_at: retry_at.map(|at| at.0) },
            JobState::Starting => Self::Starting,
            JobState::Running => Self::Running,
            JobState::Resizing { survivors, cause } => {
                Self::Resizing { survivors: places(survivors), cause: (*cause).into() }
            }
            JobState::Paused => Self::Paused,
            JobState::Succeeded => Self::Succeeded,
            JobState::Failed { reason } => Self::Failed { reason: (*reason).into() },
            JobState::Cancelled => Self::Cancelled,
        }
    }
}

impl From<Phase> for JobState {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Queued { retry_at } => Self::Queued { retry_at: retry_at.map(Timestamp) },
            Phase::Starting => Self::Starting,
            Phase::Running => Self::Running,
            Phase::Resizing { survivors, cause } => {
                Self::Resizing { survivors: allocation(survivors), cause: cause.into() }
            }
            Phase::Paused => Self::Paused,
            Phase::Succeeded => Self::Succeeded,
            Phase::Failed { reason } => Self::Failed { reason: reason.into() },
            Phase::Cancelled => Self::Cancelled,
        }
    }
}

impl From<EngineReason> for FailureReason {
    fn from(reason: EngineReason) -> Self {
        match reason {
            EngineReason::Permanent { cause } => Self::Permanent { cause: cause.into() },
            EngineReason::RetriesExhausted { retries, cause } => {
                Self::RetriesExhausted { retries, cause: cause.into() }
            }
            EngineReason::MachineFailures { failures, cause } => {
                Self::MachineFailures { failures, cause: cause.into() }
            }
            EngineReason::TimeLimit { limit_s } => Self::TimeLimit { limit_s },
            EngineReason::Dependency { job } => Self::Dependency { job: job.0 },
        }
    }
}

impl From<FailureReason> for EngineReason {
    fn from(reason: FailureReason) -> Self {
        match reason {
            FailureReason::Permanent { cause } => Self::Permanent { cause: cause.into() },
            FailureReason::RetriesExhausted { retries, cause } => {
                Self::RetriesExhausted { retries, cause: cause.into() }
            }
            FailureReason::MachineFailures { failures, cause } => {
                Self::MachineFailures { failures, cause: cause.into() }
            }
            FailureReason::TimeLimit { limit_s } => Self::TimeLimit { limit_s },
            FailureReason::Dependency { job } => Self::Dependency { job: JobId(job) },
        }
    }
}

impl From<EngineCause> for FailureCause {
    fn from(cause: EngineCause) -> Self {
        match cause {
            EngineCause::Replica { node } => Self::Replica { node: node.0 },
            EngineCause::Launch { node } => Self::Launch { node: node.0 },
            EngineCause::Timeout => Self::Timeout,
        }
    }
}

impl From<FailureCause> for EngineCause {
    fn from(cause: FailureCause) -> Self {
        match cause {
            FailureCause::Replica { node } => Self::Replica { node: NodeId(node) },
            FailureCause::Launch { node } => Self::Launch { node: NodeId(node) },
            FailureCause::Timeout => Self::Timeout,
        }
    }
}

impl From<JobUsage> for Usage {
    fn from(usage: JobUsage) -> Self {
        Self {
            submitted: usage.submitted.0,
            first_started: usage.first_started.map(|at| at.0),
            ended: usage.ended.map(|at| at.0),
            restarts: usage.restarts,
            retries: usage.retries,
            restart_cost_s: usage.restart_cost_s,
            is_pause_known: usage.is_pause_known,
            gpu_ms: usage.gpu_ms,
            executed_ms: usage.executed_ms,
            queued_ms: usage.queued_ms,
            accrued_until: usage.accrued_until.0,
        }
    }
}

impl From<Usage> for JobUsage {
    fn from(usage: Usage) -> Self {
        Self {
            submitted: Timestamp(usage.submitted),
            first_started: usage.first_started.map(Timestamp),
            ended: usage.ended.map(Timestamp),
            restarts: usage.restarts,
            retries: usage.retries,
            restart_cost_s: usage.restart_cost_s,
            is_pause_known: usage.is_pause_known,
            gpu_ms: usage.gpu_ms,
            executed_ms: usage.executed_ms,
            queued_ms: usage.queued_ms,
            accrued_until: Timestamp(usage.accrued_until),
        }
    }
}

impl From<&EngineLeaving> for Leaving {
    fn from(leaving: &EngineLeaving) -> Self {
        let EngineHeldGpus { owned, shared } = &leaving.held;
        Self {
            revision: leaving.revision.0,
            allocation: places(&leaving.allocation),
            why: leaving.why.into(),
            seats: Seats { owned: places(owned), shared: places(shared) },
        }
    }
}

impl From<Leaving> for EngineLeaving {
    fn from(leaving: Leaving) -> Self {
        let Seats { owned, shared } = leaving.seats;
        Self {
            revision: Revision(leaving.revision),
            allocation: allocation(leaving.allocation),
            why: leaving.why.into(),
            held: EngineHeldGpus { owned: allocation(owned), shared: allocation(shared) },
        }
    }
}

impl From<&JobSummary> for Summary {
    fn from(summary: &JobSummary) -> Self {
        Self {
            phase: (&summary.state).into(),
            failure: summary.failure.clone(),
            usage: summary.usage.into(),
            report: summary.report.as_ref().map(Into::into),
            replicas: summary.replicas.clone(),
        }
    }
}

impl From<Summary> for JobSummary {
    fn from(summary: Summary) -> Self {
        Self {
            state: summary.phase.into(),
            failure: summary.failure,
            usage: summary.usage.into(),
            report: summary.report.map(Into::into),
            replicas: summary.replicas,
        }
    }
}
