use pollux_job::{JobId, Phase, SpecError};
use pollux_model::GpuTypeName;
use pollux_policy::{Allocation, NodeId};
use thiserror::Error;

use crate::Revision;

/// Why an event or a job is refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
#[non_exhaustive]
pub enum Refusal {
    /// A job that no cluster could ever run.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// It waits for a job that is unknown, is forgotten, or did not end as it had to.
    #[error("{job} depends on {dependency}, which is unknown: expected a job that is not over")]
    Dependency {
        /// Which job.
        job: JobId,
        /// The job it waits for.
        dependency: JobId,
    },
    /// The cluster has as many jobs as it may.
    #[error("{limit} jobs wait or run already: expected {limit}")]
    TooManyJobs {
        /// How many there may be.
        limit: usize,
    },
    /// A number that does not grow.
    #[error("{job} was submitted after {last}: expected higher numbers")]
    JobIdUsed {
        /// The number given.
        job: JobId,
        /// The highest before.
        last: JobId,
    },
    /// Nobody submitted it.
    #[error("{job} is unknown")]
    UnknownJob {
        /// Which job.
        job: JobId,
    },
    /// Nothing can happen to it any more.
    #[error("{job} has ended")]
    EndedJob {
        /// Which job.
        job: JobId,
    },
    /// A group that has been replaced, or that never was.
    #[error("{revision} of {job} is not listened to: the current one is {current}")]
    StaleRevision {
        /// Which job.
        job: JobId,
        /// The revision that spoke.
        revision: Revision,
        /// The newest one.
        current: Revision,
    },
    /// An event that cannot happen in this phase.
    #[error("{job} is {phase}: this cannot be done now")]
    WrongPhase {
        /// Which job.
        job: JobId,
        /// Its phase.
        phase: Phase,
    },
    /// A failure where the group has no replica.
    #[error("{job} has no replica on {node} that could fail")]
    NoReplica {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
    },
    /// Releases of replicas that were not told to leave, have been released before, or went with their node. What
    /// else the event released is free.
    #[error("{} replicas released by {revision} of {job} were not on their way out", .allocation.replicas())]
    NotLeaving {
        /// Which job.
        job: JobId,
        /// The revision given.
        revision: Revision,
        /// The replicas in question.
        allocation: Allocation,
    },
    /// A pause that no group can have measured.
    #[error("{job} says that it paused for {value} s: expected 0 to 1e6")]
    Pause {
        /// Which job.
        job: JobId,
        /// The value given.
        value: f64,
    },
    /// A report with a value that no agent would send.
    #[error("report of {job}: {fault}")]
    Report {
        /// Which job.
        job: JobId,
        /// What is wrong.
        fault: ReportFault,
    },
    /// A number that does not grow.
    #[error("{node} joined after {last}: expected higher numbers")]
    NodeIdUsed {
        /// The number given.
        node: NodeId,
        /// The highest before.
        last: NodeId,
    },
    /// It never joined, or is lost.
    #[error("{node} is unknown")]
    UnknownNode {
        /// Which node.
        node: NodeId,
    },
    /// A node without GPUs or with too many.
    #[error("{node} has {gpus} GPUs: expected 1 to {limit}")]
    NodeGpus {
        /// Which node.
        node: NodeId,
        /// GPUs given.
        gpus: u32,
        /// Most accepted.
        limit: u32,
    },
    /// The cluster has as many nodes as it may.
    #[error("{node} is one too many: expected {limit}")]
    TooManyNodes {
        /// Which node.
        node: NodeId,
        /// How many there may be.
        limit: usize,
    },
    /// The cluster has seen as many types of GPU as it may.
    #[error("{node} brings a type of GPU too many: expected {limit}")]
    TooManyGpuTypes {
        /// Which node.
        node: NodeId,
        /// How many there may be.
        limit: usize,
    },
}

/// What is wrong with a report.
#[derive(Clone, Debug, PartialEq, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case", deny_unknown_fields))]
#[non_exhaustive]
pub enum ReportFault {
    /// Progress that no training can have made.
    #[error("{baseline_steps} baseline steps: expected 0 to 1e15")]
    Progress {
        /// The value given.
        baseline_steps: f64,
    },
    /// A rate that no training can have.
    #[error("{samples_per_s} samples per second: expected numbers above 0, up to 1e12")]
    Rate {
        /// The value given.
        samples_per_s: f64,
    },
    /// A factor that no rule returns.
    #[error("learning-rate factor {factor}: expected finite numbers from 0")]
    LearningRate {
        /// The value given.
        factor: f64,
    },
    /// A batch that no training can have.
    #[error(
        "a tuning of {local_batch} samples and {accumulation_steps} accumulation steps: expected 1 to 4294967295 \
         samples of a replica in a step"
    )]
    Tuning {
        /// Samples of a micro-batch.
        local_batch: u32,
        /// Micro-batches before the last.
        accumulation_steps: u32,
    },
    /// Types of GPU out of order, twice, or too many.
    #[error("{kinds} types of GPU: expected {limit} or fewer, in order of their names")]
    Kinds {
        /// How many there are.
        kinds: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A model with parameters outside of its bounds.
    #[error("the model of GPU type {gpu_type} has parameters outside of its bounds")]
    Model {
        /// The type of GPU.
        gpu_type: GpuTypeName,
    },
    /// Memory that the smallest micro-batch does not fit.
    #[error(
        "local_batch_max {local_batch_max} on GPU type {gpu_type}: expected {local_batch_min} or more, the smallest"
    )]
    Memory {
        /// The type of GPU.
        gpu_type: GpuTypeName,
        /// The largest micro-batch there.
        local_batch_max: u32,
        /// The smallest anywhere.
        local_batch_min: u32,
    },
}
