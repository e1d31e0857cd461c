use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use pollux_model::GpuType;
use pollux_policy::{Allocation, JobId, JobView, NodeEnd, NodeId, NodeResources, Plan, Timestamp};

use crate::Job;
use crate::node::{Node, Nodes};
use crate::node_end::pays_off;

/// What nobody has and a plan gives to nobody.
pub(crate) struct Leftovers {
    now: Timestamp,
    nodes: Vec<Leftover>,
    one_multi_node_job_per_node: bool,
}

struct Leftover {
    node: NodeId,
    kind: GpuType,
    left: NodeResources,
    end: Option<NodeEnd>,
    /// Jobs that failed there lately.
    failed: Vec<JobId>,
    /// Whether a job that spans several nodes is there.
    spanned: bool,
}

impl Leftovers {
    pub(crate) fn of(nodes: &Nodes, jobs: &BTreeMap<JobId, Job>, plan: &Plan, now: Timestamp, rule: bool) -> Self {
        let leftover = |node: &Node| Leftover {
            node: node.id(),
            kind: node.gpu_type(),
            left: node.resources(),
            end: node.end(),
            failed: node.failed_lately(now).collect(),
            spanned: false,
        };
        let mut left: BTreeMap<NodeId, Leftover> = nodes.iter().map(|node| (node.id(), leftover(node))).collect();
        for assignment in &plan.assignments {
            let Some(replica) = jobs.get(&assignment.job).map(Job::per_replica) else { continue };
            let is_guest = assignment.guest_of.is_some();
            let replica = if is_guest { replica.as_guest() } else { replica };
            for (node, replicas) in assignment.allocation.iter() {
                let Some(leftover) = left.get_mut(&node) else { continue };
                leftover.left.take(replica, replicas);
                leftover.spanned |= !is_guest && assignment.allocation.is_multi_node();
            }
        }
        let usable = nodes.iter().filter(|node| node.is_schedulable(now));
        let usable = usable.filter_map(|node| {
            let leftover = left.remove(&node.id())?;
            Some(Leftover { left: both(leftover.left, node.free()), ..leftover })
        });
        Self { now, nodes: usable.collect(), one_multi_node_job_per_node: rule }
    }

    /// Takes the most replicas of a job that there is room for, within bounds, on GPUs of one kind: on the node with the
    /// least room that suffices, otherwise on several. Where it failed lately it is put only if there is no room elsewhere.
    pub(crate) fn take(&mut self, job: &JobView<'_>, sizes: RangeInclusive<u32>) -> Option<Allocation> {
        let elsewhere = self.take_where(job, sizes.clone(), |node| !node.failed.contains(&job.id));
        elsewhere.or_else(|| self.take_where(job, sizes, |_| true))
    }

    fn take_where(
        &mut self,
        job: &JobView<'_>,
        sizes: RangeInclusive<u32>,
        may_try: impl Fn(&Leftover) -> bool,
    ) -> Option<Allocation> {
        let (replica, now) = (job.per_replica(), self.now);
        let may = |it: &Leftover| job.allows(it.kind) && may_try(it) && pays_off(it.end, now, job.restart_cost_s);
        let fits = |it: &Leftover| if may(it) { it.left.fits(replica) } else { 0 };
        let rule = self.one_multi_node_job_per_node;
        let may_span = |left: &Leftover| !(rule && left.spanned);
        let mut rooms: BTreeMap<GpuType, u32> = BTreeMap::new();
        for it in self.nodes.iter().filter(|it| may_span(it)) {
            let room = rooms.entry(it.kind).or_default();
            *room = room.saturating_add(fits(it));
        }
        let most = rooms.values().copied().chain(self.nodes.iter().map(fits)).max().unwrap_or(0);
        let replicas = most.min(*sizes.end());
        if replicas < *sizes.start() {
            return None;
        }
        let fitting = self.nodes.iter_mut().filter(|it| fits(it) >= replicas);
        if let Some(it) = fitting.min_by_key(|it| it.left.gpus) {
            it.left.take(replica, replicas);
            return Some(Allocation::on(it.node, replicas));
        }
        let (kind, _) = rooms.into_iter().find(|&(_, room)| room >= replicas)?;
        let mut missing = replicas;
        let taken = self.nodes.iter_mut().filter(|left| left.kind == kind && may_span(left)).map(|left| {
            let share = missing.min(fits(left));
            missing -= share;
            left.left.take(replica, share);
            left.spanned |= share > 0;
            (left.node, share)
        });
        Some(taken.collect())
    }
}

/// What is left by two accounts of the same node.
fn both(a: NodeResources, b: NodeResources) -> NodeResources {
    NodeResources {
        gpus: a.gpus.min(b.gpus),
        cpus: a.cpus.zip(b.cpus).map(|(a, b)| a.min(b)),
        memory: a.memory.zip(b.memory).map(|(a, b)| a.min(b)),
    }
}
