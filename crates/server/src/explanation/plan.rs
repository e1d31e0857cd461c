use std::cmp::Reverse;

use pollux_api as api;
use pollux_engine::{Job, PlanChange};

use super::{binding, binding_word, percent};
use crate::Cluster;

/// More changes than anybody reads.
const CHANGES_MAX: usize = 100;
/// More jobs that were left alone than anybody reads.
const KEPT_MAX: usize = 50;

/// The last plan, and why it is as it is.
pub(crate) fn plan_status(cluster: &Cluster<'_>, policy: &str) -> api::PlanStatus {
    let engine = cluster.engine();
    let (last, changed) = (engine.last_plan(), engine.last_changes());
    let quality = last.and_then(|(_, plan)| plan.quality);
    let mut changes: Vec<&PlanChange> = changed.map_or(&[][..], |(_, changes)| changes).iter().collect();
    changes.sort_by_key(|change| Reverse(change.from.abs_diff(change.to)));
    let is_new = changed.is_some_and(|(at, _)| last.is_some_and(|(last, _)| last == at));
    let has_changed = |job: &&Job| is_new && changes.iter().any(|change| change.job == job.id());
    let is_planned = |job: &&Job| job.is_plannable() && job.reason().is_some();
    let kept_jobs = engine.jobs().filter(|job| is_planned(job) && !has_changed(job)).take(KEPT_MAX);
    let kept = kept_jobs.filter_map(|job| kept(cluster, job));
    api::PlanStatus {
        policy: policy.to_owned(),
        at_ms: engine.last_round().map(|at| at.0),
        next_round_ms: engine.next_round().map(|at| at.0),
        objective: quality.map(|quality| quality.objective),
        upper_bound: quality.map(|quality| quality.upper_bound),
        changed_ms: changed.map(|(at, _)| at.0),
        kept: kept.collect(),
        changes: changes.into_iter().take(CHANGES_MAX).map(change).collect(),
    }
}

fn change(change: &PlanChange) -> api::PlanChange {
    let PlanChange { job, ref name, from, to, goodput_change } = *change;
    let text = match (from, to, goodput_change) {
        (0, _, _) => "starts".to_owned(),
        (_, 0, _) => "gives way to jobs that make better use of its GPUs".to_owned(),
        (from, to, _) if from == to => "moves to other GPUs".to_owned(),
        (_, _, None) => "is tried at a size that nobody has measured".to_owned(),
        (_, _, Some(gain)) if gain >= 0.0 => format!("+{} goodput", percent(gain)),
        (_, _, Some(loss)) => format!("−{} goodput, which others gain more by", percent(-loss)),
    };
    api::PlanChange { id: job.0, name: name.clone(), from, to, goodput_change, text }
}

fn kept(cluster: &Cluster<'_>, job: &Job) -> Option<api::PlanKept> {
    let reason = job.reason()?;
    Some(api::PlanKept {
        id: job.id().0,
        name: job.spec().name.clone(),
        gpus: job.per_replica().gpus_of(job.target().replicas()),
        binding: binding_word(reason.binding).to_owned(),
        text: binding(cluster, job, reason.binding),
    })
}
