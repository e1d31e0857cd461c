use std::collections::BTreeMap;

use pollux_model::{Goodput, GpuType, GpuTypeName, LossCurve};

use crate::{Allocation, Binding, Flexibility, JobId, NodeId, NodeResources, ReplicaResources, Timestamp};

/// What a policy may know: the cluster's records and what agents reported, never what a job really does.
#[derive(Clone, Debug)]
pub struct ClusterView<'a> {
    /// Ordered by id.
    pub nodes: &'a [NodeView],
    /// Jobs that run or wait, ordered by submission, then id.
    pub jobs: &'a [JobView<'a>],
    /// Jobs that succeeded since the last round, in that order.
    pub succeeded: &'a [SucceededJob],
    /// Names of kinds of GPU, by their numbers; empty where nobody named them.
    pub gpu_types: &'a [GpuTypeName],
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

/// How long a job trained that succeeded.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct EndedJob {
    /// Samples, each counted at full efficiency.
    pub samples: f64,
    /// The same as its user had declared it, if it was declared.
    pub samples_declared: Option<f64>,
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
    /// CPUs it has; none if they are not counted there.
    pub cpus: Option<u32>,
    /// Bytes of memory it has; none if they are not counted there.
    pub memory: Option<u64>,
    /// Whether replicas may be placed there; a draining node keeps what it has until a plan moves it.
    pub schedulable: bool,
}

/// When a node is to be empty, because its machine is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEnd {
    /// From here on nothing is placed there, and what is there leaves.
    pub drains_at: Timestamp,
    /// When its machine is gone, where that is known.
    pub ends_at: Option<Timestamp>,
}

/// A job that runs or waits.
#[derive(Clone, Debug)]
pub struct JobView<'a> {
    /// Which one.
    pub id: JobId,
    /// Since when it could have run: its submission, or the end of the last job that it waited for.
    pub eligible_since: Timestamp,
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
    /// Maximum number of replicas.
    pub replicas_max: u32,
    /// GPUs of each replica, all on one node; at least 1.
    pub gpus_per_replica: u32,
    /// CPUs of each replica; 0 if the user did not say.
    pub cpus: u32,
    /// Bytes of memory of each replica; 0 if the user did not say.
    pub memory: u64,
    /// Kinds of GPU it may run on; none means any.
    pub gpu_types: Option<&'a [GpuType]>,
    /// How it may be moved and resized.
    pub flexibility: Flexibility,
    /// Total batch the user fixed, for policies that leave it to users; otherwise the baseline.
    pub batch_size: Option<u32>,
    /// Whose it is; empty where nobody said so.
    pub owner: &'a str,
    /// Higher goes first, where a policy knows priorities. A job below 0 is opportunistic: it uses what others leave.
    pub priority: i32,
    /// What the training is of, if its user said so: jobs of one application train alike.
    pub application: Option<&'a str>,
    /// What its agent learned, one per kind of GPU, ordered by kind; empty before the first report. From then on every kind
    /// that it may run on is there: one that it never ran on as an estimate.
    pub profiles: &'a [TypeProfile],
    /// What others of its application learned, likewise; empty where nobody has.
    pub application_profiles: &'a [TypeProfile],
    /// Jobs of its application that succeeded, the last ones in that order; empty where nobody asks for them.
    pub application_ended: &'a [EndedJob],
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
    /// The same on kinds of GPU where it is another.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub by_type: Vec<(GpuType, Vec<f64>)>,
}

impl Oracle {
    /// The truth where all kinds of GPU are alike.
    pub const fn alike(remaining_steps: f64, step_s: Vec<f64>) -> Self {
        Self { remaining_steps, step_s, by_type: Vec::new() }
    }

    /// Seconds of a step on so many replicas of a kind; none if they are more than can share the batch.
    pub fn step_s(&self, kind: GpuType, replicas: u32) -> Option<f64> {
        let typed = self.by_type.iter().find(|(gpu_type, _)| *gpu_type == kind).map(|(_, step_s)| step_s);
        typed.unwrap_or(&self.step_s).get((replicas as usize).checked_sub(1)?).copied()
    }
}

/// What an agent learned on one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeProfile {
    /// The kind.
    pub gpu_type: GpuType,
    /// Goodput on any shape.
    pub goodput: Goodput,
    /// The most replicas it was measured on; 0 if it never was.
    pub replicas_profiled: u32,
    /// Whether it never ran there, so that what is known of other kinds and other jobs stands for it.
    pub is_estimated: bool,
}

impl JobView<'_> {
    /// Seconds since it could have run.
    pub fn age_s(&self, now: Timestamp) -> f64 {
        now.since_s(self.eligible_since)
    }

    /// Fewest replicas a plan may give it.
    pub fn fewest(&self) -> u32 {
        match self.flexibility {
            Flexibility::Rigid => self.replicas_requested,
            Flexibility::Elastic | Flexibility::NonPreemptible => self.replicas_min.max(1),
        }
    }

    /// Replicas that it is to begin with, if so many are idle: what its user asked for, until it was measured. None if
    /// these are the fewest.
    pub(crate) fn first_size(&self) -> Option<u32> {
        let asked = self.replicas_requested.min(self.replicas_max);
        (self.profiles.is_empty() && asked > self.fewest()).then_some(asked)
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

impl JobView<'_> {
    /// What one of its replicas takes of its node.
    pub const fn per_replica(&self) -> ReplicaResources {
        let gpus = if self.gpus_per_replica == 0 { 1 } else { self.gpus_per_replica };
        ReplicaResources { gpus, cpus: self.cpus, memory: self.memory }
    }

    /// Whether it may run on a kind of GPU.
    pub fn allows(&self, kind: GpuType) -> bool {
        self.gpu_types.is_none_or(|kinds| kinds.contains(&kind))
    }

    /// GPUs that it holds now.
    pub fn gpus_held(&self) -> u32 {
        self.per_replica().gpus_of(self.allocation.replicas())
    }
}

impl NodeView {
    /// What it has.
    pub const fn resources(&self) -> NodeResources {
        NodeResources { gpus: self.gpus, cpus: self.cpus, memory: self.memory }
    }
}

impl ClusterView<'_> {
    /// GPUs that may be used.
    pub fn gpus(&self) -> u32 {
        self.nodes.iter().filter(|node| node.schedulable).map(|node| node.gpus).sum()
    }

    /// What keeps so many replicas of a job from ever running on the nodes that may be used, were they all empty; nothing
    /// if they would fit.
    pub fn obstacle(&self, job: &JobView<'_>, replicas: u32) -> Option<Binding> {
        let replica = job.per_replica();
        if self.has_room(job, replicas) {
            return None;
        }
        let usable = || self.nodes.iter().filter(|node| node.schedulable && job.allows(node.gpu_type));
        let has = |enough: &dyn Fn(&NodeView) -> bool| usable().any(enough);
        let gpus = |node: &NodeView| node.gpus >= replica.gpus;
        let cpus = |node: &NodeView| node.cpus.is_none_or(|cpus| cpus >= replica.cpus);
        Some(if self.gpus() == 0 {
            Binding::Impossible
        } else if usable().next().is_none() {
            Binding::NoSuchType
        } else if !has(&gpus) {
            Binding::TooLargeForANode
        } else if !has(&|node| gpus(node) && cpus(node)) {
            Binding::NotEnoughCpus
        } else if !has(&|node| node.resources().fits(replica) > 0) {
            Binding::NotEnoughMemory
        } else {
            Binding::Impossible
        })
    }

    /// Whether so many replicas of a job fit on the nodes of one kind that may be used, were they all empty.
    fn has_room(&self, job: &JobView<'_>, replicas: u32) -> bool {
        let mut pools: BTreeMap<GpuType, u32> = BTreeMap::new();
        self.nodes.iter().filter(|node| node.schedulable && job.allows(node.gpu_type)).any(|node| {
            let pool = pools.entry(node.gpu_type).or_default();
            *pool = pool.saturating_add(node.resources().fits(job.per_replica()));
            *pool >= replicas
        })
    }
}
