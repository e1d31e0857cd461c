use serde::Deserialize;

use super::{GpuTypes, Report, Spec};
use crate::v2::{self, FailureKind, Oracle, Places, Plan};

/// One line of the journal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    Event { at: u64, event: Event },
    Round { at: u64, plan: Option<Plan> },
}

/// What happened. A revision was called a generation.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    JobSubmitted { job: u64, spec: Spec },
    Report { job: u64, generation: u64, report: Report },
    OracleSpoke { job: u64, oracle: Oracle },
    GroupReady { job: u64, generation: u64, pause_s: Option<f64> },
    GroupSilent { job: u64, generation: u64 },
    ReplicasReleased { job: u64, generation: u64, allocation: Places },
    JobSucceeded { job: u64, generation: u64 },
    ReplicaFailed { job: u64, generation: u64, node: u32, kind: FailureKind },
    LaunchFailed { job: u64, generation: u64, node: u32, kind: FailureKind },
    NodeJoined { node: u32, gpus: u32, gpu_type: u16 },
    NodeLost { node: u32 },
    NodeDrain { node: u32 },
    NodeUndrain { node: u32 },
    Cancel { job: u64 },
    Pause { job: u64 },
    Resume { job: u64 },
    Tick,
}

impl Record {
    pub(crate) fn named(self, types: &GpuTypes) -> v2::Record {
        match self {
            Self::Event { at, event } => v2::Record::Event { at, event: event.named(types) },
            Self::Round { at, plan } => v2::Record::Round { at, policy: None, plan },
        }
    }
}

impl Event {
    fn named(self, types: &GpuTypes) -> v2::Event {
        match self {
            Self::JobSubmitted { job, spec } => v2::Event::JobSubmitted { job, spec: Box::new(spec.into()) },
            Self::Report { job, generation: revision, report } => {
                v2::Event::Report { job, revision, report: report.named(types) }
            }
            Self::OracleSpoke { job, oracle } => v2::Event::OracleSpoke { job, oracle },
            Self::GroupReady { job, generation: revision, pause_s } => v2::Event::GroupReady { job, revision, pause_s },
            Self::GroupSilent { job, generation: revision } => v2::Event::GroupSilent { job, revision },
            Self::ReplicasReleased { job, generation: revision, allocation } => {
                v2::Event::ReplicasReleased { job, revision, allocation }
            }
            Self::JobSucceeded { job, generation: revision } => v2::Event::JobSucceeded { job, revision },
            Self::ReplicaFailed { job, generation: revision, node, kind } => {
                v2::Event::ReplicaFailed { job, revision, node, kind }
            }
            Self::LaunchFailed { job, generation: revision, node, kind } => {
                v2::Event::LaunchFailed { job, revision, node, kind }
            }
            Self::NodeJoined { node, gpus, gpu_type } => {
                let gpu_type = types.name(gpu_type).unwrap_or_default();
                v2::Event::NodeJoined { node, gpus, gpu_type, cpus: None, memory: None }
            }
            Self::NodeLost { node } => v2::Event::NodeLost { node },
            Self::NodeDrain { node } => v2::Event::NodeDrain { node },
            Self::NodeUndrain { node } => v2::Event::NodeUndrain { node },
            Self::Cancel { job } => v2::Event::Cancel { job },
            Self::Pause { job } => v2::Event::Pause { job },
            Self::Resume { job } => v2::Event::Resume { job },
            Self::Tick => v2::Event::Tick,
        }
    }
}
