use std::collections::{BTreeMap, BTreeSet};

use pollux_model::GpuType;
use pollux_policy::{Allocation, JobId, JobView, NodeId, Plan, Timestamp};

use crate::Job;
use crate::node::Nodes;

/// GPUs that nobody has and a plan gives to nobody.
pub(crate) struct Leftovers {
    nodes: Vec<Leftover>,
    one_multi_node_job_per_node: bool,
}

struct Leftover {
    node: NodeId,
    kind: GpuType,
    gpus: u32,
    /// Whether a job that spans several nodes is there.
    spanned: bool,
}

impl Leftovers {
    pub(crate) fn of(nodes: &Nodes, jobs: &BTreeMap<JobId, Job>, plan: &Plan, now: Timestamp, rule: bool) -> Self {
        let mut planned: BTreeMap<NodeId, (u32, bool)> = BTreeMap::new();
        for assignment in plan.assignments.iter().filter(|assignment| assignment.guest_of.is_none()) {
            let gpus_per_replica = jobs.get(&assignment.job).map_or(1, |job| job.spec().gpus_per_replica);
            for (node, replicas) in assignment.allocation.iter() {
                let (gpus, spanned) = planned.entry(node).or_default();
                *gpus = gpus.saturating_add(replicas.saturating_mul(gpus_per_replica));
                *spanned |= assignment.allocation.is_multi_node();
            }
        }
        let usable = nodes.iter().filter(|node| node.is_schedulable(now));
        let left = usable.map(|node| {
            let (planned, spanned) = planned.get(&node.id()).copied().unwrap_or_default();
            let gpus = node.gpus().saturating_sub(node.gpus_held().max(planned));
            Leftover { node: node.id(), kind: node.gpu_type(), gpus, spanned }
        });
        Self { nodes: left.collect(), one_multi_node_job_per_node: rule }
    }

    /// Takes replicas of a job on GPUs of one kind: on the node with the least room that suffices, otherwise on several.
    pub(crate) fn take(&mut self, job: &JobView<'_>, replicas: u32) -> Option<Allocation> {
        let each = job.per_replica().gpus.max(1);
        let fits = |left: &Leftover| if job.allows(left.kind) { left.gpus / each } else { 0 };
        let fitting = self.nodes.iter_mut().filter(|left| fits(left) >= replicas);
        if let Some(left) = fitting.min_by_key(|left| left.gpus) {
            left.gpus -= replicas * each;
            return Some(Allocation::on(left.node, replicas));
        }
        let rule = self.one_multi_node_job_per_node;
        let may_span = |left: &Leftover| !(rule && left.spanned);
        let kinds: BTreeSet<GpuType> = self.nodes.iter().map(|left| left.kind).collect();
        let enough = |kind: &GpuType| {
            let of_kind = self.nodes.iter().filter(|left| left.kind == *kind && may_span(left));
            of_kind.map(fits).sum::<u32>() >= replicas
        };
        let kind = kinds.into_iter().find(enough)?;
        let mut missing = replicas;
        let taken = self.nodes.iter_mut().filter(|left| left.kind == kind && may_span(left)).map(|left| {
            let share = missing.min(fits(left));
            missing -= share;
            left.gpus -= share * each;
            left.spanned |= share > 0;
            (left.node, share)
        });
        Some(taken.collect())
    }
}
