use pollux_model::{BatchMode, Shape};

use crate::gang::{GangPlacement, Overtaking, gang_size, plan_gangs};
use crate::{ClusterView, JobView, PlacementRules, Plan, Policy, Timestamp};

/// Shortest remaining time first, preempting: jobs run as asked for, those soonest done before the others.
///
/// The remaining time is the declared work over the fitted goodput at the requested size and batch. Jobs that declared
/// nothing are taken to have as much left as they have had; jobs not measured yet go first, because a minute measures
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Srtf;

impl Policy for Srtf {
    fn name(&self) -> &'static str {
        "srtf"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let remaining: Vec<f64> = view.jobs.iter().map(remaining_s).collect();
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        order.sort_by(|&a, &b| remaining[a].total_cmp(&remaining[b]).then(a.cmp(&b)));
        plan_gangs(view, &order, GangPlacement::Consolidated, Overtaking::Allowed)
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}

fn remaining_s(job: &JobView<'_>) -> f64 {
    let Some(samples) = job.remaining_samples else { return job.executed_s };
    let gpus = gang_size(job);
    let speed = job.profiles.iter().filter_map(|profile| {
        let nodes = job.allocation.shape().map_or(1, Shape::nodes).min(gpus);
        let shape = Shape::new(nodes, gpus).ok()?;
        Some(profile.goodput.chosen(shape, BatchMode::Fixed { batch_size: job.batch_size })?.goodput)
    });
    speed.reduce(f64::max).map_or(0.0, |goodput| samples / goodput)
}
