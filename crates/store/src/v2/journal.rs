use pollux_engine::{Event as EngineEvent, Revision};
use pollux_job::JobId;
use pollux_model::GpuType;
use pollux_policy::{Assignment as PlanAssignment, Binding as PlanBinding, NodeId, Quality as PlanQuality, Timestamp};
use serde::{Deserialize, Serialize};

use super::snapshot::NodeEnd;
use super::{GpuTypeName, Places, Report, Spec, allocation, places, words};

/// One line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    Event {
        at: u64,
        event: Event,
    },
    Round {
        at: u64,
        #[serde(default)]
        policy: Option<String>,
        plan: Option<Plan>,
    },
}

words! {
    /// Whether another attempt makes sense.
    FailureKind is pollux_engine::FailureKind { Retryable, Permanent, Machine }
}

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    JobSubmitted {
        job: u64,
        spec: Box<Spec>,
    },
    Report {
        job: u64,
        revision: u64,
        report: Report,
    },
    OracleSpoke {
        job: u64,
        oracle: Oracle,
    },
    GroupReady {
        job: u64,
        revision: u64,
        pause_s: Option<f64>,
    },
    GroupSilent {
        job: u64,
        revision: u64,
    },
    GroupPending {
        job: u64,
        revision: u64,
    },
    GroupPlaced {
        job: u64,
        revision: u64,
    },
    ReplicasReleased {
        job: u64,
        revision: u64,
        allocation: Places,
    },
    JobSucceeded {
        job: u64,
        revision: u64,
    },
    ReplicaFailed {
        job: u64,
        revision: u64,
        node: u32,
        kind: FailureKind,
    },
    LaunchFailed {
        job: u64,
        revision: u64,
        node: u32,
        kind: FailureKind,
    },
    NodeJoined {
        node: u32,
        gpus: u32,
        gpu_type: GpuTypeName,
        #[serde(default)]
        cpus: Option<u32>,
        #[serde(default)]
        memory: Option<u64>,
    },
    NodeResources {
        node: u32,
        cpus: Option<u32>,
        memory: Option<u64>,
    },
    NodeRetired {
        node: u32,
    },
    NodeUnreachable {
        node: u32,
    },
    NodeReachable {
        node: u32,
    },
    NodeLost {
        node: u32,
    },
    NodeEnds {
        node: u32,
        #[serde(default)]
        end: Option<NodeEnd>,
    },
    NodeDrain {
        node: u32,
    },
    NodeUndrain {
        node: u32,
    },
    Cancel {
        job: u64,
    },
    Pause {
        job: u64,
    },
    Resume {
        job: u64,
    },
    Tick,
}

/// What only a simulator knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Oracle {
    remaining_steps: f64,
    step_s: Vec<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    by_type: Vec<(u16, Vec<f64>)>,
}

/// What every job got.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    assignments: Vec<Assignment>,
    quality: Option<Quality>,
}

/// What one job got.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    job: u64,
    allocation: Places,
    guest_of: Option<u64>,
    reason: Reason,
}

/// How good a plan was.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Quality {
    objective: f64,
    upper_bound: f64,
}

/// Why a job had what it had.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Reason {
    binding: Binding,
    one_more: Option<f64>,
    one_fewer: Option<f64>,
    payer: Option<(u64, f64)>,
}

/// What kept a job from having more.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Binding {
    Contention,
    NoGain,
    Maximum,
    Profile,
    RestartCost,
    Request,
    Impossible,
    NoSuchType,
    TooLargeForANode,
    NotEnoughCpus,
    NotEnoughMemory,
}

impl From<&crate::Record> for Record {
    fn from(record: &crate::Record) -> Self {
        match record {
            crate::Record::Event { at, event } => Self::Event { at: at.0, event: event.into() },
            crate::Record::Round { at, policy, plan } => {
                Self::Round { at: at.0, policy: policy.clone(), plan: plan.as_ref().map(Into::into) }
            }
        }
    }
}

impl From<Record> for crate::Record {
    fn from(record: Record) -> Self {
        match record {
            Record::Event { at, event } => Self::Event { at: Timestamp(at), event: event.into() },
            Record::Round { at, policy, plan } => Self::Round { at: Timestamp(at), policy, plan: plan.map(Into::into) },
        }
    }
}

impl From<&EngineEvent> for Event {
    fn from(event: &EngineEvent) -> Self {
        match event.clone() {
            EngineEvent::JobSubmitted { job, spec } => {
                Self::JobSubmitted { job: job.0, spec: Box::new((&spec).into()) }
            }
            EngineEvent::Report { job, revision, report } => {
                Self::Report { job: job.0, revision: revision.0, report: (&report).into() }
            }
            EngineEvent::OracleSet { job, oracle } => Self::OracleSpoke { job: job.0, oracle: oracle.into() },
            EngineEvent::GroupReady { job, revision, pause_s } => {
                Self::GroupReady { job: job.0, revision: revision.0, pause_s }
            }
            EngineEvent::GroupSilent { job, revision } => Self::GroupSilent { job: job.0, revision: revision.0 },
            EngineEvent::GroupPending { job, revision } => Self::GroupPending { job: job.0, revision: revision.0 },
            EngineEvent::GroupPlaced { job, revision } => Self::GroupPlaced { job: job.0, revision: revision.0 },
            EngineEvent::ReplicasReleased { job, revision, allocation } => {
                Self::ReplicasReleased { job: job.0, revision: revision.0, allocation: places(&allocation) }
            }
            EngineEvent::JobSucceeded { job, revision } => Self::JobSucceeded { job: job.0, revision: revision.0 },
            EngineEvent::ReplicaFailed { job, revision, node, kind } => {
                Self::ReplicaFailed { job: job.0, revision: revision.0, node: node.0, kind: kind.into() }
            }
            EngineEvent::LaunchFailed { job, revision, node, kind } => {
                Self::LaunchFailed { job: job.0, revision: revision.0, node: node.0, kind: kind.into() }
            }
            EngineEvent::NodeJoined { node, gpus, gpu_type, cpus, memory } => {
                Self::NodeJoined { node: node.0, gpus, gpu_type, cpus, memory }
            }
            EngineEvent::NodeResources { node, cpus, memory } => Self::NodeResources { node: node.0, cpus, memory },
            EngineEvent::NodeRetired { node } => Self::NodeRetired { node: node.0 },
            EngineEvent::NodeUnreachable { node } => Self::NodeUnreachable { node: node.0 },
            EngineEvent::NodeReachable { node } => Self::NodeReachable { node: node.0 },
            EngineEvent::NodeLost { node } => Self::NodeLost { node: node.0 },
            EngineEvent::NodeEnds { node, end } => Self::NodeEnds { node: node.0, end: end.map(Into::into) },
            EngineEvent::NodeDrain { node } => Self::NodeDrain { node: node.0 },
            EngineEvent::NodeUndrain { node } => Self::NodeUndrain { node: node.0 },
            EngineEvent::Cancel { job } => Self::Cancel { job: job.0 },
            EngineEvent::Pause { job } => Self::Pause { job: job.0 },
            EngineEvent::Resume { job } => Self::Resume { job: job.0 },
            EngineEvent::Tick => Self::Tick,
        }
    }
}

impl From<Event> for EngineEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::JobSubmitted { job, spec } => Self::JobSubmitted { job: JobId(job), spec: (*spec).into() },
            Event::Report { job, revision, report } => {
                Self::Report { job: JobId(job), revision: Revision(revision), report: report.into() }
            }
            Event::OracleSpoke { job, oracle } => Self::OracleSet { job: JobId(job), oracle: oracle.into() },
            Event::GroupReady { job, revision, pause_s } => {
                Self::GroupReady { job: JobId(job), revision: Revision(revision), pause_s }
            }
            Event::GroupSilent { job, revision } => Self::GroupSilent { job: JobId(job), revision: Revision(revision) },
            Event::GroupPending { job, revision } => {
                Self::GroupPending { job: JobId(job), revision: Revision(revision) }
            }
            Event::GroupPlaced { job, revision } => Self::GroupPlaced { job: JobId(job), revision: Revision(revision) },
            Event::ReplicasReleased { job, revision, allocation: released } => {
                let allocation = allocation(released);
                Self::ReplicasReleased { job: JobId(job), revision: Revision(revision), allocation }
            }
            Event::JobSucceeded { job, revision } => {
                Self::JobSucceeded { job: JobId(job), revision: Revision(revision) }
            }
            Event::ReplicaFailed { job, revision, node, kind } => {
                let (job, revision, node) = (JobId(job), Revision(revision), NodeId(node));
                Self::ReplicaFailed { job, revision, node, kind: kind.into() }
            }
            Event::LaunchFailed { job, revision, node, kind } => {
                let (job, revision, node) = (JobId(job), Revision(revision), NodeId(node));
                Self::LaunchFailed { job, revision, node, kind: kind.into() }
            }
            Event::NodeJoined { node, gpus, gpu_type, cpus, memory } => {
                Self::NodeJoined { node: NodeId(node), gpus, gpu_type, cpus, memory }
            }
            Event::NodeResources { node, cpus, memory } => Self::NodeResources { node: NodeId(node), cpus, memory },
            Event::NodeRetired { node } => Self::NodeRetired { node: NodeId(node) },
            Event::NodeUnreachable { node } => Self::NodeUnreachable { node: NodeId(node) },
            Event::NodeReachable { node } => Self::NodeReachable { node: NodeId(node) },
            Event::NodeLost { node } => Self::NodeLost { node: NodeId(node) },
            Event::NodeEnds { node, end } => Self::NodeEnds { node: NodeId(node), end: end.map(Into::into) },
            Event::NodeDrain { node } => Self::NodeDrain { node: NodeId(node) },
            Event::NodeUndrain { node } => Self::NodeUndrain { node: NodeId(node) },
            Event::Cancel { job } => Self::Cancel { job: JobId(job) },
            Event::Pause { job } => Self::Pause { job: JobId(job) },
            Event::Resume { job } => Self::Resume { job: JobId(job) },
            Event::Tick => Self::Tick,
        }
    }
}

impl From<pollux_policy::Oracle> for Oracle {
    fn from(oracle: pollux_policy::Oracle) -> Self {
        let by_type = oracle.by_type.into_iter().map(|(gpu_type, step_s)| (gpu_type.0, step_s)).collect();
        Self { remaining_steps: oracle.remaining_steps, step_s: oracle.step_s, by_type }
    }
}

impl From<Oracle> for pollux_policy::Oracle {
    fn from(oracle: Oracle) -> Self {
        let by_type = oracle.by_type.into_iter().map(|(gpu_type, step_s)| (GpuType(gpu_type), step_s)).collect();
        Self { remaining_steps: oracle.remaining_steps, step_s: oracle.step_s, by_type }
    }
}

impl From<&pollux_policy::Plan> for Plan {
    fn from(plan: &pollux_policy::Plan) -> Self {
        let assignment = |assignment: &PlanAssignment| Assignment {
            job: assignment.job.0,
            allocation: places(&assignment.allocation),
            guest_of: assignment.guest_of.map(|host| host.0),
            reason: assignment.reason.into(),
        };
        let quality = |PlanQuality { objective, upper_bound }| Quality { objective, upper_bound };
        Self { assignments: plan.assignments.iter().map(assignment).collect(), quality: plan.quality.map(quality) }
    }
}

impl From<Plan> for pollux_policy::Plan {
    fn from(plan: Plan) -> Self {
        let assignment = |assignment: Assignment| PlanAssignment {
            job: JobId(assignment.job),
            allocation: allocation(assignment.allocation),
            guest_of: assignment.guest_of.map(JobId),
            reason: assignment.reason.into(),
        };
        let quality = |Quality { objective, upper_bound }| PlanQuality { objective, upper_bound };
        Self { assignments: plan.assignments.into_iter().map(assignment).collect(), quality: plan.quality.map(quality) }
    }
}

impl From<pollux_policy::Reason> for Reason {
    fn from(reason: pollux_policy::Reason) -> Self {
        let pollux_policy::Reason { binding, one_more, one_fewer, payer } = reason;
        let binding = match binding {
            PlanBinding::NoGain => Binding::NoGain,
            PlanBinding::Maximum => Binding::Maximum,
            PlanBinding::Profile => Binding::Profile,
            PlanBinding::RestartCost => Binding::RestartCost,
            PlanBinding::Request => Binding::Request,
            PlanBinding::Impossible => Binding::Impossible,
            PlanBinding::NoSuchType => Binding::NoSuchType,
            PlanBinding::TooLargeForANode => Binding::TooLargeForANode,
            PlanBinding::NotEnoughCpus => Binding::NotEnoughCpus,
            PlanBinding::NotEnoughMemory => Binding::NotEnoughMemory,
            // Reasons are for people. One that this format has no word for is told as the most common one.
            _ => Binding::Contention,
        };
        Self { binding, one_more, one_fewer, payer: payer.map(|(job, cost)| (job.0, cost)) }
    }
}

impl From<Reason> for pollux_policy::Reason {
    fn from(reason: Reason) -> Self {
        let Reason { binding, one_more, one_fewer, payer } = reason;
        let binding = match binding {
            Binding::Contention => PlanBinding::Contention,
            Binding::NoGain => PlanBinding::NoGain,
            Binding::Maximum => PlanBinding::Maximum,
            Binding::Profile => PlanBinding::Profile,
            Binding::RestartCost => PlanBinding::RestartCost,
            Binding::Request => PlanBinding::Request,
            Binding::Impossible => PlanBinding::Impossible,
            Binding::NoSuchType => PlanBinding::NoSuchType,
            Binding::TooLargeForANode => PlanBinding::TooLargeForANode,
            Binding::NotEnoughCpus => PlanBinding::NotEnoughCpus,
            Binding::NotEnoughMemory => PlanBinding::NotEnoughMemory,
        };
        Self { binding, one_more, one_fewer, payer: payer.map(|(job, cost)| (JobId(job), cost)) }
    }
}
