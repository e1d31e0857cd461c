//! Rounds: what the policy sees, what it decides, and how that is carried out.

use std::collections::{BTreeMap, BTreeSet};

use pollux_policy::{Allocation, Assignment, ClusterView, JobId, JobView, Plan, Reason, Timestamp};

use crate::job::NOTHING;
use crate::leftovers::Leftovers;
use crate::{Command, Engine, Job, JobState, ResizeCause, StopReason};

/// A job that a plan gives other GPUs than the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanChange {
    /// Which.
    pub job: JobId,
    /// Its name, which is not to be forgotten with the job.
    pub name: String,
    /// Replicas planned before.
    pub from: u32,
    /// Replicas planned now; the same number if it moves.
    pub to: u32,
    /// Goodput there against before as its model tells, minus 1; nothing if it had none, gets none, or is unknown.
    pub goodput_change: Option<f64>,
}

impl Engine {
    /// Shows what a policy would see at `now`, for questions that are not to change anything.
    pub fn view<R>(&self, now: Timestamp, look: impl FnOnce(&ClusterView<'_>) -> R) -> R {
        self.view_with(now.max(self.now), false, look)
    }

    /// The same, perhaps with jobs that a policy does not see because they get only what it leaves.
    pub(crate) fn view_with<R>(&self, now: Timestamp, all: bool, look: impl FnOnce(&ClusterView<'_>) -> R) -> R {
        let nodes = self.nodes.views(now);
        let jobs = job_views(&self.jobs, now, all, self.settings.restart_cost_default_s);
        look(&ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &self.succeeded, gpu_types: self.gpu_types.names() })
    }

    /// What jobs learned is told to others of their application, and on types of GPU to those that never ran there.
    pub(crate) fn share_what_was_measured(&mut self) {
        let before = self.type_knowledge.version();
        for job in self.jobs.values() {
            if let Some(application) = &job.spec.application {
                let epoch_samples = job.report.as_ref().and_then(|received| received.report.epoch_samples);
                self.type_knowledge.learn(self.now, application, &job.profiles, epoch_samples);
            }
        }
        if self.gpu_types.names().len() > 1 {
            self.type_knowledge.compare(self.jobs.values().map(|job| job.profiles.as_slice()));
        }
        if self.type_knowledge.version() != before {
            self.jobs.values_mut().for_each(|job| job.learn_types(&self.gpu_types, &self.type_knowledge));
        }
    }

    pub(crate) fn round(&mut self, out: &mut Vec<Command>) {
        self.share_what_was_measured();
        let nodes = self.nodes.views(self.now);
        let jobs = job_views(&self.jobs, self.now, false, self.settings.restart_cost_default_s);
        let succeeded = std::mem::take(&mut self.succeeded);
        let view = ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &succeeded, gpu_types: self.gpu_types.names() };
        let mut plan = self.policy.plan(self.now, &view);
        let checked = plan.check(&view, self.policy.rules());
        self.rounds.ran(self.now);
        match checked {
            Ok(()) => {
                self.forgo_late_starts(&mut plan, &view);
                self.give_what_is_left(&mut plan);
                self.adopt(plan, out);
            }
            Err(error) => out.push(Command::PlanRejected { error }),
        }
    }

    /// Jobs that failed to start are not worth driving anybody out for, whatever the policy: they get what it leaves.
    fn give_what_is_left(&self, plan: &mut Plan) {
        let yields = |job: &&Job| job.is_plannable() && job.yields(self.now);
        let yielding: Vec<&Job> = self.jobs.values().filter(yields).collect();
        if yielding.is_empty() {
            return;
        }
        let rule = self.policy.rules().one_multi_node_job_per_node;
        let mut left = Leftovers::of(&self.nodes, &self.jobs, plan, self.now, rule);
        for job in yielding {
            let asked = job.spec.replicas;
            // A job that was never measured begins with what it asked for, as far as that is there.
            let sizes = match (self.policy.chooses_sizes(), job.profiles.is_empty()) {
                (true, true) => job.spec.fewest()..=asked.min(job.spec.most()),
                (true, false) => job.spec.fewest()..=job.spec.fewest(),
                (false, _) => asked..=asked,
            };
            let view = job.view(None, self.now, self.settings.restart_cost_default_s);
            let allocation = left.take(&view, sizes).unwrap_or_default();
            plan.assignments.push(Assignment { job: job.id, allocation, guest_of: None, reason: Reason::default() });
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
        let nodes = self.nodes.all_views();
        let everything = ClusterView { nodes: &nodes, jobs: &[], succeeded: &[], gpu_types: self.gpu_types.names() };
        let mut changed: Vec<(JobId, Allocation, Option<JobId>)> = Vec::new();
        for job in self.jobs.values_mut().filter(|job| job.is_plannable()) {
            let (target, guest_of, mut reason) = match assignments.next_if(|assignment| assignment.job == job.id) {
                Some(assignment) => (&assignment.allocation, assignment.guest_of, assignment.reason),
                None => (&NOTHING, None, Reason::default()),
            };
            let guest_of = guest_of.filter(|_| !target.is_empty());
            if target.is_empty() {
                let obstacle = everything.obstacle(&job.view(None, self.now, 0.0), job.spec.fewest());
                reason.binding = obstacle.unwrap_or(reason.binding);
            }
            job.reason = Some(reason);
            if job.target != *target || job.guest_of != guest_of {
                changed.push((job.id, target.clone(), guest_of));
            }
        }
        assert!(assignments.next().is_none(), "a plan was carried out for a job that it must not mention");
        if !changed.is_empty() {
            let changes = changed.iter().map(|(id, target, _)| self.change(&self.jobs[id], target)).collect();
            self.last_changes = Some((self.now, changes));
        }
        let ids: Vec<JobId> = changed.iter().map(|&(id, ..)| id).collect();
        // Hosts before their guests: those that go leave them their GPUs, those that come are there to come to.
        changed.sort_by_key(|&(id, _, guest_of)| (guest_of.is_some(), self.jobs[&id].guest_of.is_some()));
        let hosts: BTreeSet<JobId> = plan.assignments.iter().filter_map(|assignment| assignment.guest_of).collect();
        for (id, target, guest_of) in changed {
            // Guests are to come to where their host was planned.
            let is_alone = guest_of.is_none() && !hosts.contains(&id);
            let target = self.bridge(id, &target).filter(|_| is_alone).unwrap_or(target);
            self.retarget(id, target, guest_of, out);
        }
        for id in ids {
            self.launch_if_free(id, out);
        }
    }

    /// What another target means for a job.
    pub(crate) fn change(&self, job: &Job, target: &Allocation) -> PlanChange {
        let mode = job.batch_mode(self.policy.adapts_batches());
        let expected = |allocation: &Allocation| {
            let kind = allocation.iter().next().and_then(|(node, _)| self.node(node))?.gpu_type();
            let profile = job.profiles.iter().find(|profile| profile.gpu_type == kind)?;
            Some(profile.goodput.chosen(allocation.shape()?, mode)?.goodput)
        };
        let goodput_change = expected(&job.target).zip(expected(target)).map(|(before, after)| after / before - 1.0);
        PlanChange {
            job: job.id,
            name: job.spec.name.clone(),
            from: job.target.replicas(),
            to: target.replicas(),
            goodput_change: goodput_change.filter(|change| change.is_finite()),
        }
    }

    fn retarget(&mut self, id: JobId, target: Allocation, guest_of: Option<JobId>, out: &mut Vec<Command>) {
        let job = &self.jobs[&id];
        let host = job.guest_of.and_then(|host| self.jobs.get(&host));
        match job.state {
            JobState::Queued { .. } => self.aim(id, target, guest_of),
            JobState::Running if target.is_empty() => self.stop_group(id, JobState::QUEUED, StopReason::Preempted, out),
            JobState::Running if job.target == target && job.guest_of == guest_of => {} // Its host went and left it there.
            JobState::Running
                if job.target == target
                    && guest_of.is_none()
                    && host.is_some_and(|host| host.target.common(&target).is_empty()) =>
            {
                self.promote(id);
            }
            JobState::Running if job.guest_of != guest_of || job.kept(&target).is_empty() => {
                self.stop_group(id, JobState::QUEUED, StopReason::Moved, out);
                self.aim(id, target, guest_of);
            }
            JobState::Running => self.resize(id, target, ResizeCause::Plan, out),
            JobState::Starting
            | JobState::Resizing { .. }
            | JobState::Paused
            | JobState::Succeeded
            | JobState::Failed { .. }
            | JobState::Cancelled => {
                unreachable!("{id} is {}: the view pins it or leaves it out, and the plan was checked", job.state)
            }
        }
    }
}

pub(crate) fn job_views(
    jobs: &BTreeMap<JobId, Job>,
    now: Timestamp,
    all: bool,
    restart_cost_default_s: f64,
) -> Vec<JobView<'_>> {
    let plannable = jobs.values().filter(|job| job.is_plannable() && (all || !job.yields(now)));
    let guest = |job: &Job| job.guest.and_then(|guest| jobs.get(&guest));
    plannable.map(|job| job.view(guest(job), now, restart_cost_default_s)).collect()
}
