use std::collections::BTreeSet;

use pollux_model::GpuType;
use pollux_policy::{Allocation, NodeId, Plan, Timestamp};

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
    pub(crate) fn of(nodes: &Nodes, plan: &Plan, one_multi_node_job_per_node: bool, now: Timestamp) -> Self {
        let owned = || plan.assignments.iter().filter(|assignment| assignment.guest_of.is_none());
        let usable = nodes.iter().filter(|node| node.is_schedulable(now));
        let left = usable.map(|node| {
            let there = || owned().filter(|assignment| assignment.allocation.replicas_on(node.id()) > 0);
            let planned: u32 = there().map(|assignment| assignment.allocation.replicas_on(node.id())).sum();
            Leftover {
                node: node.id(),
                kind: node.gpu_type(),
                gpus: node.gpus().saturating_sub(node.gpus_held().max(planned)),
                spanned: there().any(|assignment| assignment.allocation.is_multi_node()),
            }
        });
        Self { nodes: left.collect(), one_multi_node_job_per_node }
    }

    /// Takes GPUs of one kind: on the node with the least room that suffices, otherwise on several.
    pub(crate) fn take(&mut self, size: u32) -> Option<Allocation> {
        let fitting = self.nodes.iter_mut().filter(|left| left.gpus >= size);
        if let Some(left) = fitting.min_by_key(|left| left.gpus) {
            left.gpus -= size;
            return Some(Allocation::on(left.node, size));
        }
        let rule = self.one_multi_node_job_per_node;
        let may_span = |left: &Leftover| !(rule && left.spanned);
        let kinds: BTreeSet<GpuType> = self.nodes.iter().map(|left| left.kind).collect();
        let enough = |kind: &GpuType| {
            let of_kind = self.nodes.iter().filter(|left| left.kind == *kind && may_span(left));
            of_kind.map(|left| left.gpus).sum::<u32>() >= size
        };
        let kind = kinds.into_iter().find(enough)?;
        let mut missing = size;
        let taken = self.nodes.iter_mut().filter(|left| left.kind == kind && may_span(left)).map(|left| {
            let share = missing.min(left.gpus);
            missing -= share;
            left.gpus -= share;
            left.spanned |= share > 0;
            (left.node, share)
        });
        Some(taken.collect())
    }
}
