use std::cmp::Reverse;

use crate::gang::{GangPlacement, Overtaking, plan_gangs};
use crate::{ClusterView, PlacementRules, Plan, Policy, Timestamp};

/// First come, first served, with higher priorities first: jobs run as asked for until they end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fifo;

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        // What runs goes first, so that a later job of higher priority waits rather than preempts.
        order.sort_by_key(|&idx| {
            let job = &view.jobs[idx];
            (job.allocation.is_empty(), Reverse(job.priority), idx)
        });
        plan_gangs(view, &order, GangPlacement::Consolidated, Overtaking::Forbidden)
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}
