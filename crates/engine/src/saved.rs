//! Jobs and nodes as plain data, for whoever keeps them.

use std::collections::BTreeSet;

use pollux_job::{Dependency, JobId, JobSpec};
use pollux_model::{Goodput, GpuTypeName};
use pollux_policy::{Allocation, EndedJob, NodeEnd, NodeId, Oracle, Reason, Timestamp};

use crate::gpu_types::GpuTypes;
use crate::job::Job;
use crate::node::Node;
use crate::type_knowledge::TypeKnowledge;
use crate::{JobState, JobUsage, Leaving, ReceivedReport, Revision, SizeChange, StartHistory};

/// What is known of an application, whose jobs train alike.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedApplication {
    /// Its name.
    pub name: String,
    /// When a job of it was last there.
    pub seen: Timestamp,
    /// What its jobs measured, one for each type of GPU.
    pub types: Vec<MeasuredType>,
    /// Samples of an epoch, as a job last told it.
    pub epoch_samples: Option<u64>,
    /// Jobs that succeeded, the last ones in that order.
    pub ended: Vec<EndedJob>,
}

/// What jobs of an application measured on a type of GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredType {
    /// The type.
    pub gpu_type: GpuTypeName,
    /// Their model, the noise that they began with and their limits.
    pub goodput: Goodput,
    /// The most replicas that were measured.
    pub replicas_profiled: u32,
}

/// A job that is not over. The fields are those of [`Job`], without what follows from them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "they are explained where they are used")]
pub struct SavedJob {
    pub id: JobId,
    pub spec: JobSpec,
    pub state: JobState,
    pub phase_since: Timestamp,
    pub revision: Revision,
    pub revision_heard: Revision,
    pub group: Allocation,
    pub target: Allocation,
    pub guest_of: Option<JobId>,
    pub guest: Option<JobId>,
    pub leaving: Vec<Leaving>,
    pub start_history: StartHistory,
    pub commanded: Timestamp,
    pub pending: bool,
    pub stranded: bool,
    pub machine_failures: u32,
    pub timer: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub waits_for: Vec<Dependency>,
    pub usage: JobUsage,
    pub size_change: Option<SizeChange>,
    pub reason: Option<Reason>,
    pub report: Option<ReceivedReport>,
    pub silent: bool,
    pub oracle: Option<Oracle>,
}

/// A node that is not lost. The fields are those of [`Node`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are explained where they are used")]
pub struct SavedNode {
    pub id: NodeId,
    pub gpus: u32,
    pub gpu_type: GpuTypeName,
    pub cpus: Option<u32>,
    pub memory: Option<u64>,
    pub draining: bool,
    pub end: Option<NodeEnd>,
    pub ending: bool,
    pub unreachable: bool,
    pub retired: bool,
    pub cooling_until: Option<Timestamp>,
    pub held: u32,
    pub crowding: u32,
    pub cpus_held: u32,
    pub memory_held: u64,
    pub waiting: BTreeSet<JobId>,
    pub failures: Vec<(JobId, Timestamp)>,
}

impl Job {
    pub(crate) fn saved(&self) -> SavedJob {
        let Self {
            id,
            spec,
            state,
            phase_since,
            revision,
            revision_heard,
            group,
            target,
            guest_of,
            guest,
            leaving,
            start_history,
            commanded,
            pending,
            stranded,
            machine_failures,
            timer,
            deadline,
            waits_for,
            usage,
            size_change,
            reason,
            report,
            silent,
            // They follow from the report.
            profiles: _,
            application_profiles: _,
            application_ended: _,
            remaining_samples: _,
            gpu_types: _,
            oracle,
        } = self.clone();
        SavedJob {
            id,
            spec,
            state,
            phase_since,
            revision,
            revision_heard,
            group,
            target,
            guest_of,
            guest,
            leaving,
            start_history,
            commanded,
            pending,
            stranded,
            machine_failures,
            timer,
            deadline,
            waits_for,
            usage,
            size_change,
            reason,
            report,
            silent,
            oracle,
        }
    }

    pub(crate) fn restored(saved: SavedJob, types: &GpuTypes, knowledge: &TypeKnowledge) -> Self {
        let mut job = Self {
            id: saved.id,
            spec: saved.spec,
            state: saved.state,
            phase_since: saved.phase_since,
            revision: saved.revision,
            revision_heard: saved.revision_heard,
            group: saved.group,
            target: saved.target,
            guest_of: saved.guest_of,
            guest: saved.guest,
            leaving: saved.leaving,
            start_history: saved.start_history,
            commanded: saved.commanded,
            pending: saved.pending,
            stranded: saved.stranded,
            machine_failures: saved.machine_failures,
            timer: saved.timer,
            deadline: saved.deadline,
            waits_for: saved.waits_for,
            usage: saved.usage,
            size_change: saved.size_change,
            reason: saved.reason,
            report: None,
            silent: saved.silent,
            profiles: Vec::new(),
            application_profiles: Vec::new(),
            application_ended: Vec::new(),
            remaining_samples: None,
            gpu_types: None,
            oracle: saved.oracle,
        };
        match saved.report {
            Some(ReceivedReport { at, report }) => job.learn(at, report, types, knowledge),
            None => job.learn_types(types, knowledge),
        }
        job
    }
}

impl Node {
    pub(crate) fn saved(&self, types: &GpuTypes) -> SavedNode {
        let gpu_type = types.name(self.gpu_type()).cloned().unwrap_or_default();
        let Self {
            id,
            gpus,
            gpu_type: _,
            cpus,
            memory,
            draining,
            end,
            ending,
            unreachable,
            retired,
            cooling_until,
            held,
            crowding,
            cpus_held,
            memory_held,
            waiting,
            failures,
        } = self.clone();
        SavedNode {
            id,
            gpus,
            gpu_type,
            cpus,
            memory,
            draining,
            end,
            ending,
            unreachable,
            retired,
            cooling_until,
            held,
            crowding,
            cpus_held,
            memory_held,
            waiting,
            failures,
        }
    }

    pub(crate) fn restored(saved: SavedNode, types: &mut GpuTypes) -> Self {
        let SavedNode {
            id,
            gpus,
            gpu_type,
            cpus,
            memory,
            draining,
            end,
            ending,
            unreachable,
            retired,
            cooling_until,
            held,
            crowding,
            cpus_held,
            memory_held,
            waiting,
            failures,
        } = saved;
        let gpu_type = types.intern(gpu_type);
        Self {
            id,
            gpus,
            gpu_type,
            cpus,
            memory,
            draining,
            end,
            ending,
            unreachable,
            retired,
            cooling_until,
            held,
            crowding,
            cpus_held,
            memory_held,
            waiting,
            failures,
        }
    }
}
