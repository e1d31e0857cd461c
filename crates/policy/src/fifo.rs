use std::cmp::Reverse;

use crate::gang::{GangPlacement, Overtaking, plan_gangs};
use crate::{ClusterView, PlacementRules, Plan, Policy, Priorities, Timestamp};

/// First come, first served, with higher priorities first: jobs run as asked for until they end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        let drains =
            |id| view.nodes.binary_search_by_key(&id, |node| node.id).is_ok_and(|idx| !view.nodes[idx].schedulable);
        // What runs and can stay goes first, so that nobody who comes later, or from a node that drains, preempts it.
        order.sort_by_key(|&idx| {
            let job = &view.jobs[idx];
            let moves = job.allocation.iter().any(|(node, _)| drains(node));
            (job.allocation.is_empty(), moves, Reverse(job.priority), idx)
        });
        plan_gangs(view, &order, GangPlacement::Consolidated, Overtaking::Forbidden)
    }

    fn priorities(&self) -> Priorities {
        Priorities::Ordered
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}
