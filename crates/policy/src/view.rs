use pollux_model::{Goodput, GpuType, LossCurve};

use crate::{Allocation, JobId, NodeId, Timestamp};

/// What a policy may know: the cluster's books and what agents reported, never what a job really does.
#[derive(Clone, Debug)]
pub struct ClusterView<'a> {
    /// Ordered by id.
    pub nodes: &'a [NodeView],
    /// Jobs that run or wait, ordered by submission, then id.
    pub jobs: &'a [JobView<'a>],
    /// Jobs that succeeded since the last round, in that order.
    pub succeeded: &'a [SucceededJob],
}

/// A job that trained to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct SucceededJob {
    /// Which one.
    pub id: JobId,
    /// GPU-seconds it has had.
    pub attained_gpu_s: f64,
    /// Seconds it has held GPUs.
    pub executed_s: f64,
}

/// A node that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Which one.
    pub id: NodeId,
    /// GPUs it has.
    pub gpus: u32,
    /// Their kind.
    pub gpu_type: GpuType,
    /// Whether replicas may be placed there; a draining node keeps what it has until a plan moves it.
    pub schedulable: bool,
}

/// A job that runs or waits.
#[derive(Clone, Debug)]
pub struct JobView<'a> {
    /// Which one.
    pub id: JobId,
    /// When it was submitted.
    pub submitted: Timestamp,
    /// When it last began to wait for GPUs; of a job that has some, before it got them.
    pub queued_since: Timestamp,
    /// Since when it has had GPUs without a break; none while it waits.
    pub running_since: Option<Timestamp>,
    /// GPU-seconds it has had.
    pub attained_gpu_s: f64,
    /// Seconds it has held GPUs.
    pub executed_s: f64,
    /// How often its allocation was changed while it ran.
    pub restarts: u32,
    /// Seconds a change of its allocation costs it, as measured on itself where that was possible.
    pub restart_cost_s: f64,
    /// What it holds now.
    pub allocation: &'a Allocation,
    /// The job whose GPUs it uses as a guest; ordinarily none.
    pub guest_of: Option<JobId>,
    /// Replicas the user asked for.
    pub replicas_requested: u32,
    /// Fewest replicas it can run with.
    pub replicas_min: u32,
    /// Most replicas it may have.
    pub replicas_max: u32,
    /// How it may be moved and resized.
    pub flexibility: Flexibility,
    /// Total batch the user fixed, for policies that leave it to users; otherwise the baseline.
    pub batch_size: Option<u32>,
    /// Higher goes first, where a policy knows priorities. A job below 0 is opportunistic: it uses what others leave.
    pub priority: i32,
    /// What its agent learned, one per kind of GPU, ordered by kind; empty before the first report.
    pub profiles: &'a [TypeProfile],
    /// Samples still to be worked off at full efficiency, where the user declared how long to train.
    pub remaining_samples: Option<f64>,
    /// Progress so far, in steps at the baseline batch.
    pub baseline_steps: f64,
    /// Steps at the baseline batch of an epoch, where there are epochs.
    pub epoch_steps: Option<f64>,
    /// Samples per second lately, whoever else used its GPUs.
    pub samples_per_s: Option<f64>,
    /// How its loss falls, where the training tells it.
    pub loss: Option<LossCurve>,
    /// What nobody can know of a live job: for policies that the literature defines with an oracle, and no others.
    pub oracle: Option<&'a Oracle>,
}

/// The truth about a job's future, which only a simulator has.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Oracle {
    /// Steps until it is done, at the total batch its user fixed.
    pub remaining_steps: f64,
    /// Seconds of such a step; at index `r - 1` on `r` replicas, on as few nodes as possible.
    pub step_s: Vec<f64>,
}

/// What a policy may change about a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Flexibility {
    /// Everything: it may grow, shrink, move and wait.
    #[default]
    Elastic,
    /// Its size may be chosen, but once started it keeps its GPUs.
    NonPreemptible,
    /// It gets exactly what it asked for, as a gang, and keeps it.
    Rigid,
}

/// What an agent learned on one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeProfile {
    /// The kind.
    pub gpu_type: GpuType,
    /// Goodput on any shape.
    pub goodput: Goodput,
    /// The most replicas it was measured on.
    pub replicas_profiled: u32,
}

impl JobView<'_> {
    /// Seconds since submission.
    pub fn age_s(&self, now: Timestamp) -> f64 {
        now.since_s(self.submitted)
    }

    /// Fewest replicas a plan may give it.
    pub fn fewest(&self) -> u32 {
        match self.flexibility {
            Flexibility::Rigid => self.replicas_requested,
            Flexibility::Elastic | Flexibility::NonPreemptible => self.replicas_min.max(1),
        }
    }

    /// Whether its allocation may not be touched any more. The host of a guest that is pinned is so, too.
    pub fn is_pinned(&self) -> bool {
        match self.flexibility {
            Flexibility::Elastic => false,
            Flexibility::NonPreemptible | Flexibility::Rigid => !self.allocation.is_empty(),
        }
    }

    /// The host of a guest that is pinned, for policies that let nobody else share.
    pub fn pinned_to(&self) -> Option<JobId> {
        self.guest_of.filter(|_| self.is_pinned())
    }
}

impl ClusterView<'_> {
    /// GPUs that may be used.
    pub fn gpus(&self) -> u32 {
        self.nodes.iter().filter(|node| node.schedulable).map(|node| node.gpus).sum()
    }
}
