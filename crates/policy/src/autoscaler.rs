use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use pollux_model::{BatchMode, GpuType, Shape};
use thiserror::Error;

use crate::{
    Allocation, ClusterView, Flexibility, JobView, NodeId, NodeResources, NodeView, Policy, PolicySettingError,
    PolicySettings, Timestamp,
};

const NODES_MAX: u32 = 100_000;
static NOTHING: Allocation = Allocation::NONE;

/// Settings of an [`Autoscaler`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct AutoscalerSettings {
    /// Utility below which nodes are given back: higher is cheaper and slower.
    pub utility_low: f64,
    /// Utility above which nodes are added; the middle of the two is aimed at, and nothing changes between them.
    pub utility_high: f64,
    /// Fewest nodes.
    pub nodes_min: u32,
    /// Most nodes.
    pub nodes_max: u32,
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self { utility_low: 0.35, utility_high: 0.65, nodes_min: 1, nodes_max: 16 }
    }
}

/// Settings that no cluster can be scaled with.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum AutoscalerSettingError {
    /// A value out of its range.
    #[error(transparent)]
    Value(#[from] PolicySettingError),
    /// A lower bound above its upper bound.
    #[error("{lower_name} {lower} is above {upper_name} {upper}")]
    Order {
        /// Name of the lower bound.
        lower_name: &'static str,
        /// Its value.
        lower: f64,
        /// Name of the upper bound.
        upper_name: &'static str,
        /// Its value.
        upper: f64,
    },
}

impl AutoscalerSettings {
    /// Refuses settings that no cluster can be scaled with.
    pub fn check(&self) -> Result<(), AutoscalerSettingError> {
        for (name, value) in [("utility_low", self.utility_low), ("utility_high", self.utility_high)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(PolicySettingError { name, value, accepted: "shares from 0 to 1" }.into());
            }
        }
        for (name, nodes) in [("nodes_min", self.nodes_min), ("nodes_max", self.nodes_max)] {
            if !(1..=NODES_MAX).contains(&nodes) {
                let accepted = "whole numbers from 1 to 100000";
                return Err(PolicySettingError { name, value: f64::from(nodes), accepted }.into());
            }
        }
        let (nodes_min, nodes_max) = (f64::from(self.nodes_min), f64::from(self.nodes_max));
        let pairs = [
            ("utility_low", self.utility_low, "utility_high", self.utility_high),
            ("nodes_min", nodes_min, "nodes_max", nodes_max),
        ];
        match pairs.into_iter().find(|(_, lower, _, upper)| lower > upper) {
            Some((lower_name, lower, upper_name, upper)) => {
                Err(AutoscalerSettingError::Order { lower_name, lower, upper_name, upper })
            }
            None => Ok(()),
        }
    }
}

/// The nodes that come and go, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePool {
    /// Nodes that are up and stay, and those on their way.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus: u32,
    /// Their kind.
    pub gpu_type: GpuType,
    /// CPUs of each; none if they are not counted.
    pub cpus: Option<u32>,
    /// Bytes of memory of each; none if they are not counted.
    pub memory: Option<u64>,
}

impl NodePool {
    const fn resources(&self) -> NodeResources {
        NodeResources { gpus: self.gpus, cpus: self.cpus, memory: self.memory }
    }
}

/// How many nodes a cluster should have, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice {
    /// Nodes to have.
    pub nodes: u32,
    /// Utility that is expected there.
    pub utility: f64,
    /// Utility that is expected with the nodes of now.
    pub utility_now: f64,
}

/// How many nodes are worth their price: the goodput-driven autoscaling of the Pollux paper (OSDI 2021, section 4.2.2).
///
/// The utility of a cluster is the sum of its jobs' speedups over one GPU, divided by its GPUs: 1 where every GPU is
/// worth as much as a job's only one, less where jobs scale badly or GPUs are idle. While it stays within a band nothing
/// changes; otherwise the number of nodes is sought that brings it closest to the middle, by bisection, because jobs
/// that share more GPUs gain less from each. What a cluster of some size would do is asked of a policy of its own; nodes
/// that it would leave empty, be it because a move would cost too much, are not wanted.
///
/// It gives advice and does nothing. All nodes are taken to be alike, and those that hold most are taken to stay.
pub struct Autoscaler {
    settings: AutoscalerSettings,
    policy: Box<dyn Policy + Send>,
}

/// What a policy would make of a number of nodes.
#[derive(Clone, Copy)]
struct Outlook {
    utility: f64,
    nodes_used: u32,
}

impl Autoscaler {
    /// For a cluster under the given policy; refuses settings that make no sense.
    pub fn new(settings: AutoscalerSettings, policy: &PolicySettings) -> Result<Self, AutoscalerSettingError> {
        settings.check()?;
        policy.check()?;
        Ok(Self { settings, policy: policy.build() })
    }

    /// How many nodes of the pool the jobs of the view are worth.
    pub fn advise(&mut self, now: Timestamp, view: &ClusterView<'_>, pool: NodePool) -> Advice {
        let AutoscalerSettings { utility_low, utility_high, nodes_max, .. } = self.settings;
        let fewest = self.fewest(view, pool);
        let mut outlooks: BTreeMap<u32, Outlook> = BTreeMap::new();
        let mut at = |nodes| *outlooks.entry(nodes).or_insert_with(|| self.look(now, view, pool, nodes));
        let utility_now = at(pool.nodes).utility;
        let allowed = (fewest..=nodes_max).contains(&pool.nodes);
        if allowed && (utility_low..=utility_high).contains(&utility_now) {
            return Advice { nodes: pool.nodes, utility: utility_now, utility_now };
        }
        let target = f64::midpoint(utility_low, utility_high);
        let (mut nodes, mut most) = (fewest, nodes_max);
        while nodes < most {
            let middle = nodes + (most - nodes).div_ceil(2);
            if at(middle).utility >= target {
                nodes = middle;
            } else {
                most = middle - 1;
            }
        }
        // One more is just below the target, and may be the closer.
        if nodes < nodes_max {
            let (here, there) = (at(nodes).utility, at(nodes + 1).utility);
            if there >= utility_low && target - there < here - target {
                nodes += 1;
            }
        }
        let nodes = at(nodes).nodes_used.clamp(fewest, nodes);
        Advice { nodes, utility: at(nodes).utility, utility_now }
    }

    /// Fewest nodes that can run every job, one by one: a gang that never fits would wait for ever.
    fn fewest(&self, view: &ClusterView<'_>, pool: NodePool) -> u32 {
        let sizes_itself = self.policy.chooses_sizes();
        let fewest = |job: &JobView<'_>| match job.flexibility {
            Flexibility::Elastic | Flexibility::NonPreemptible if sizes_itself => job.replicas_min,
            Flexibility::Elastic | Flexibility::NonPreemptible | Flexibility::Rigid => job.replicas_requested,
        };
        let nodes = |job: &JobView<'_>| {
            let on_a_node = pool.resources().fits(job.per_replica());
            // More nodes would not help a job that fits none of them.
            if on_a_node > 0 && job.allows(pool.gpu_type) { fewest(job).div_ceil(on_a_node) } else { 0 }
        };
        view.jobs.iter().map(nodes).max().unwrap_or(0).clamp(self.settings.nodes_min, self.settings.nodes_max)
    }

    fn look(&mut self, now: Timestamp, view: &ClusterView<'_>, pool: NodePool, nodes: u32) -> Outlook {
        let imagined = imagined_nodes(view, pool, nodes);
        let jobs: Vec<JobView<'_>> = view.jobs.iter().map(|job| imagined_job(job, &imagined)).collect();
        let plan = self.policy.plan(now, &ClusterView { nodes: &imagined, jobs: &jobs, ..*view });
        let mut speedups = 0.0;
        let mut used = BTreeSet::new();
        let adapts = self.policy.adapts_batches();
        // A guest is on GPUs that count for its host.
        for assignment in plan.assignments.iter().filter(|assignment| assignment.guest_of.is_none()) {
            if let Some(job) = jobs.iter().find(|job| job.id == assignment.job) {
                speedups += speedup(job, &assignment.allocation, pool.gpu_type, adapts);
            }
            used.extend(assignment.allocation.iter().map(|(node, _)| node));
        }
        let gpus = f64::from(pool.gpus) * f64::from(nodes);
        Outlook { utility: if gpus > 0.0 { speedups / gpus } else { 0.0 }, nodes_used: used.len() as u32 }
    }
}

/// The nodes of the pool that hold most, and new ones where there are too few.
fn imagined_nodes(view: &ClusterView<'_>, pool: NodePool, count: u32) -> Vec<NodeView> {
    let NodePool { gpus, gpu_type, cpus, memory, .. } = pool;
    let held = |node: NodeId| -> u32 {
        view.jobs.iter().map(|job| job.per_replica().gpus_of(job.allocation.replicas_on(node))).sum()
    };
    let alike =
        |node: &&NodeView| node.schedulable && node.gpu_type == gpu_type && node.resources() == pool.resources();
    let mut nodes: Vec<NodeView> = view.nodes.iter().filter(alike).copied().collect();
    nodes.sort_by_cached_key(|node| (Reverse(held(node.id)), node.id));
    nodes.truncate(count as usize);
    nodes.sort_by_key(|node| node.id);
    let first = view.nodes.last().map_or(0, |node| node.id.0.saturating_add(1));
    let missing = count - nodes.len() as u32;
    nodes.extend((0..missing).map(|idx| NodeView {
        id: NodeId(first.saturating_add(idx)),
        gpus,
        gpu_type,
        cpus,
        memory,
        schedulable: true,
    }));
    nodes
}

/// A job that could stay where it is does so or moves, as the policy likes; any other is to be placed anew.
fn imagined_job<'a>(job: &JobView<'a>, nodes: &[NodeView]) -> JobView<'a> {
    let there = |id| nodes.binary_search_by_key(&id, |node: &NodeView| node.id).is_ok();
    let stays = !job.is_pinned() && job.guest_of.is_none() && job.allocation.iter().all(|(node, _)| there(node));
    JobView { allocation: if stays { job.allocation } else { &NOTHING }, guest_of: None, ..job.clone() }
}

/// Goodput against that on one GPU, of which a replica may have several: these count in full. Where nothing was measured, every GPU is taken to count in full, so that a cluster
/// grows to find out.
fn speedup(job: &JobView<'_>, allocation: &Allocation, gpu_type: GpuType, adapts_batch: bool) -> f64 {
    let Some(shape) = allocation.shape() else { return 0.0 };
    let profile = job.profiles.iter().find(|profile| profile.gpu_type == gpu_type);
    let goodput = |shape| {
        let choice = profile?.goodput.chosen(shape, BatchMode::of(adapts_batch, job.batch_size))?;
        (choice.goodput > 0.0).then_some(choice.goodput)
    };
    let in_replicas = match (goodput(shape), goodput(Shape::single())) {
        (Some(here), Some(single)) => here / single,
        (None, _) | (_, None) => f64::from(shape.replicas()),
    };
    in_replicas * f64::from(job.per_replica().gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused_with_their_values() {
        let default = AutoscalerSettings::default();
        assert_eq!(default.check(), Ok(()));
        let message = |settings: AutoscalerSettings| settings.check().unwrap_err().to_string();
        assert_eq!(
            message(AutoscalerSettings { utility_low: f64::NAN, ..default }),
            "utility_low NaN: expected shares from 0 to 1"
        );
        assert_eq!(
            message(AutoscalerSettings { utility_low: 0.7, ..default }),
            "utility_low 0.7 is above utility_high 0.65"
        );
        assert_eq!(
            message(AutoscalerSettings { nodes_min: 0, ..default }),
            "nodes_min 0: expected whole numbers from 1 to 100000"
        );
        assert_eq!(message(AutoscalerSettings { nodes_min: 17, ..default }), "nodes_min 17 is above nodes_max 16");
    }
}
