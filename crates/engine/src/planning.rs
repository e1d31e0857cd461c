//! Rounds: what the policy sees, what it decides, and how that is carried out.

use std::collections::BTreeMap;

use pollux_policy::{
    Allocation, Assignment, Binding, ClusterView, JobId, JobView, PlacementRules, Plan, Reason, Timestamp,
};

use crate::job::NOTHING;
use crate::{Command, Engine, Job, Phase, PlanRefusal, ResizeCause, StopReason};

impl Engine {
    /// Shows what a policy would see at `now`, for questions that are not to change anything.
    pub fn view<R>(&self, now: Timestamp, look: impl FnOnce(&ClusterView<'_>) -> R) -> R {
        let now = now.max(self.now);
        let nodes = self.nodes.views(now);
        let jobs = job_views(&self.jobs, now, self.settings.restart_cost_default_s);
        look(&ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &self.succeeded })
    }

    pub(crate) fn round(&mut self, out: &mut Vec<Command>) {
        let nodes = self.nodes.views(self.now);
        let jobs = job_views(&self.jobs, self.now, self.settings.restart_cost_default_s);
        let succeeded = std::mem::take(&mut self.succeeded);
        let view = ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &succeeded };
        let plan = self.policy.plan(self.now, &view);
        let checked = check(&plan, &view, self.policy.rules());
        self.rounds.ran(self.now);
        match checked {
            Ok(()) => self.adopt(plan, out),
            Err(error) => out.push(Command::PlanRejected { error }),
        }
    }

    /// Carries a checked plan out.
    pub(crate) fn adopt(&mut self, plan: Plan, out: &mut Vec<Command>) {
        self.carry_out(&plan, out);
        self.last_plan = Some((self.now, plan));
    }

    /// First everything that frees GPUs, then whatever can be launched already.
    fn carry_out(&mut self, plan: &Plan, out: &mut Vec<Command>) {
        let mut assignments: Vec<&Assignment> = plan.assignments.iter().collect();
        assignments.sort_unstable_by_key(|assignment| assignment.job);
        let mut assignments = assignments.into_iter().peekable();
        let largest_pool = self.nodes.largest_pool();
        let mut changed: Vec<(JobId, Allocation)> = Vec::new();
        for job in self.jobs.values_mut().filter(|job| job.phase.is_plannable()) {
            let (target, mut reason) = match assignments.next_if(|assignment| assignment.job == job.id) {
                Some(assignment) => (&assignment.allocation, assignment.reason),
                None => (&NOTHING, Reason::default()),
            };
            if target.is_empty() && job.spec.fewest() > largest_pool {
                reason.binding = Binding::Impossible;
            }
            job.reason = Some(reason);
            if job.target != *target {
                changed.push((job.id, target.clone()));
            }
        }
        assert!(assignments.next().is_none(), "a plan was carried out for a job that it must not mention");
        let ids: Vec<JobId> = changed.iter().map(|&(id, _)| id).collect();
        for (id, target) in changed {
            self.retarget(id, target, out);
        }
        for id in ids {
            self.launch_if_free(id, out);
        }
    }

    fn retarget(&mut self, id: JobId, target: Allocation, out: &mut Vec<Command>) {
        let job = &self.jobs[&id];
        match job.phase {
            Phase::Queued { .. } => self.aim(id, target),
            Phase::Running if target.is_empty() => self.stop_group(id, Phase::QUEUED, StopReason::Preempted, out),
            Phase::Running if job.group.common(&target).is_empty() => {
                self.stop_group(id, Phase::QUEUED, StopReason::Moved, out);
                self.aim(id, target);
            }
            Phase::Running => self.resize(id, target, ResizeCause::Plan, out),
            Phase::Starting
            | Phase::Resizing { .. }
            | Phase::Paused
            | Phase::Succeeded
            | Phase::Failed { .. }
            | Phase::Cancelled => {
                unreachable!("{id} is {}: the view pins it or leaves it out, and the plan was checked", job.phase)
            }
        }
    }
}

fn job_views(jobs: &BTreeMap<JobId, Job>, now: Timestamp, restart_cost_default_s: f64) -> Vec<JobView<'_>> {
    let plannable = jobs.values().filter(|job| job.phase.is_plannable());
    plannable.map(|job| job.view(now, restart_cost_default_s)).collect()
}

fn check(plan: &Plan, view: &ClusterView<'_>, rules: PlacementRules) -> Result<(), PlanRefusal> {
    let shared = plan.assignments.iter().find_map(|assignment| Some((assignment.job, assignment.guest_of?)));
    if let Some((job, host)) = shared {
        return Err(PlanRefusal::Shared { job, host });
    }
    Ok(plan.check(view, rules)?)
}
