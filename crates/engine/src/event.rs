use pollux_agent::AgentReport;
use pollux_job::{JobId, JobSpec};
use pollux_model::GpuTypeName;
use pollux_policy::{Allocation, NodeEnd, NodeId, Oracle};

use crate::Revision;

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A user submitted a job. Numbers grow and are never used again.
    JobSubmitted {
        /// Its number, given by the driver so that a journal can be replayed.
        job: JobId,
        /// What is asked for.
        spec: JobSpec,
    },
    /// An agent told what it has learned.
    Report {
        /// Which job.
        job: JobId,
        /// The group it spoke for.
        revision: Revision,
        /// What it said.
        report: AgentReport,
    },
    /// A simulator tells the truth about a job, for a policy that needs it; a live cluster never can.
    OracleSet {
        /// Which job.
        job: JobId,
        /// The truth.
        oracle: Oracle,
    },
    /// Every replica of a revision trains.
    GroupReady {
        /// Which job.
        job: JobId,
        /// Which revision.
        revision: Revision,
        /// Seconds the training stood still for the change, where the group measured them; otherwise the time since
        /// the command is taken, in which survivors may have trained on.
        pause_s: Option<f64>,
    },
    /// Every replica of a revision runs, and none says anything: perhaps a program that knows nothing of schedulers.
    /// It is left alone until it reports.
    GroupSilent {
        /// Which job.
        job: JobId,
        /// Which revision.
        revision: Revision,
    },
    /// Replicas of a revision were accepted and cannot run yet, for reasons outside of the cluster: an image is pulled,
    /// another scheduler has a queue. Their time to train has not begun.
    GroupPending {
        /// Which job.
        job: JobId,
        /// Which revision.
        revision: Revision,
    },
    /// No replica of a revision waits for anything outside of the cluster any more.
    GroupPlaced {
        /// Which job.
        job: JobId,
        /// Which revision.
        revision: Revision,
    },
    /// Processes of replicas that were told to leave are gone: their GPUs are free.
    ReplicasReleased {
        /// Which job.
        job: JobId,
        /// The revision of the command that told them to leave.
        revision: Revision,
        /// The replicas, each told once.
        allocation: Allocation,
    },
    /// A job has trained to its end.
    JobSucceeded {
        /// Which job.
        job: JobId,
        /// The group that got there.
        revision: Revision,
    },
    /// A replica that was not told to leave ended, or broke.
    ReplicaFailed {
        /// Which job.
        job: JobId,
        /// The newest group that it was told to belong to.
        revision: Revision,
        /// Where it ran.
        node: NodeId,
        /// Whether another attempt makes sense.
        kind: FailureKind,
    },
    /// A replica could not be started.
    LaunchFailed {
        /// Which job.
        job: JobId,
        /// The group it would have belonged to.
        revision: Revision,
        /// Where it should have run.
        node: NodeId,
        /// Whether another attempt makes sense.
        kind: FailureKind,
    },
    /// A node came up, with nothing of ours on it. Numbers grow and are never used again.
    NodeJoined {
        /// Its number.
        node: NodeId,
        /// GPUs it has.
        gpus: u32,
        /// Their type.
        gpu_type: GpuTypeName,
        /// CPUs it has; nothing if they are not counted there.
        cpus: Option<u32>,
        /// Bytes of memory it has; nothing if they are not counted there.
        memory: Option<u64>,
    },
    /// What a node has besides its GPUs is not what it was. Nobody is stopped for it: a node that has less than its
    /// replicas were given takes nothing new until enough of them are gone.
    NodeResources {
        /// Which node.
        node: NodeId,
        /// CPUs it has; nothing if they are not counted there.
        cpus: Option<u32>,
        /// Bytes of memory it has; nothing if they are not counted there.
        memory: Option<u64>,
    },
    /// A node is gone, and every replica on it.
    NodeLost {
        /// Which node.
        node: NodeId,
    },
    /// A node will never take anything again, because its machine has become another. What is there is told to leave,
    /// and keeps what it has until it is gone, as does the node.
    NodeRetired {
        /// Which node.
        node: NodeId,
    },
    /// A node does not answer. It takes nothing new, and what is there is kept as it is: it may run on.
    NodeUnreachable {
        /// Which node.
        node: NodeId,
    },
    /// A node answers again. Nothing of it was given away.
    NodeReachable {
        /// Which node.
        node: NodeId,
    },
    /// It is known when a node ends, or that it does not. In time before it nothing new comes there, and what is there
    /// leaves in good order.
    NodeEnds {
        /// Which node.
        node: NodeId,
        /// When; nothing if it stays.
        end: Option<NodeEnd>,
    },
    /// A node is to be emptied and to take nothing new.
    NodeDrain {
        /// Which node.
        node: NodeId,
    },
    /// A node takes replicas again.
    NodeUndrain {
        /// Which node.
        node: NodeId,
    },
    /// A user ends a job.
    Cancel {
        /// Which job.
        job: JobId,
    },
    /// A user sets a job aside: it saves its state and gives up its GPUs.
    Pause {
        /// Which job.
        job: JobId,
    },
    /// A user wants a paused job to go on.
    Resume {
        /// Which job.
        job: JobId,
    },
    /// Time has passed.
    Tick,
}

/// Whether another attempt makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It may work the next time, perhaps elsewhere.
    Retryable,
    /// It will fail again.
    Permanent,
    /// The machine could not do its part. That costs the job no retry, and it waits longer each time; after
    /// [`EngineSettings::machine_failures_max`] in a row it is given up.
    ///
    /// [`EngineSettings::machine_failures_max`]: crate::EngineSettings::machine_failures_max
    Machine,
}
