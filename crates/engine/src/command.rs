use pollux_policy::{Allocation, JobId, PlanError};

use crate::{Refusal, Revision};

/// What to do, or what could not be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start these replicas; their GPUs are free. They are a whole group, or the additions of an announced resize.
    ///
    /// Those of a guest come to GPUs of its host, one on each, which has replicas enough on every node. A host that
    /// loses some of its replicas keeps those that a guest is beside; where all go, the guest has their GPUs for itself
    /// from then on, and goes on without a word.
    Launch {
        /// Which job.
        job: JobId,
        /// The group they belong to.
        revision: Revision,
        /// The replicas.
        allocation: Allocation,
        /// The job on whose GPUs; of its own if there is none.
        guest_of: Option<JobId>,
    },
    /// A new revision is coming. What is removed leaves at once; what is kept trains on, and joins the
    /// new group once the additions are there, which are launched by a command of their own when their GPUs are free.
    Resize {
        /// Which job.
        job: JobId,
        /// The new revision.
        revision: Revision,
        /// Replicas that stay; never empty.
        keep: Allocation,
        /// Replicas that leave.
        remove: Allocation,
        /// Replicas that will come.
        add: Allocation,
    },
    /// Stop these replicas, which are all that the job has, and tell when they are gone; also of those that ended by
    /// themselves or never started.
    Stop {
        /// Which job.
        job: JobId,
        /// The group they belong to.
        revision: Revision,
        /// The replicas.
        allocation: Allocation,
        /// What for.
        why: StopReason,
    },
    /// An event made no sense and changed nothing; only of a release the part that did make sense counts.
    Refused(Refusal),
    /// A policy made a plan that cannot be used; the cluster carries on as it was.
    PlanRejected {
        /// What is wrong with it.
        error: PlanError,
    },
}

/// What replicas are stopped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum StopReason {
    /// Others need the GPUs: save and wait.
    Preempted,
    /// The job goes on elsewhere: save.
    Moved,
    /// The job goes on without these replicas; only ever in [`crate::Engine::outstanding`].
    Resized,
    /// Its user wants it set aside: save.
    Paused,
    /// Its user ended it.
    Cancelled,
    /// It is done; what has not ended by itself is to end.
    Succeeded,
    /// It has held GPUs for as long as it may: save.
    TimeLimit,
    /// Another replica of the group failed, or the group did not train in time.
    Failed,
    /// The group lost a node and cannot go on without it.
    NodeLost,
    /// A node of the group ends, and it cannot go on without it: save.
    NodeEnds,
}
