//! Nodes that end: what is there leaves in time.

use std::cmp::Reverse;

use pollux_policy::{
    Allocation, Assignment, Binding, ClusterView, Flexibility, JobId, NodeEnd, NodeId, Plan, Reason, Timestamp,
};

use crate::{Command, Engine, JobState, Node, Refusal, ResizeCause, StopReason};

impl Engine {
    /// What is known of a node's end has changed. One that is to be empty by now begins to leave.
    pub(crate) fn set_end(&mut self, id: NodeId, end: Option<NodeEnd>, out: &mut Vec<Command>) -> Result<(), Refusal> {
        let now = self.now;
        let node = self.nodes.get_mut(id).ok_or(Refusal::UnknownNode { node: id })?;
        node.end = end;
        node.ending &= node.is_due(now);
        self.rounds.request(now);
        self.expire_nodes(out);
        Ok(())
    }

    /// When the next node is to be empty.
    pub(crate) fn next_end(&self) -> Option<Timestamp> {
        self.nodes.iter().filter(|node| !node.ending).filter_map(|node| Some(node.end?.drains_at)).min()
    }

    /// Empties the nodes whose time has come.
    pub(crate) fn expire_nodes(&mut self, out: &mut Vec<Command>) {
        if self.next_end().is_none_or(|due| due > self.now) {
            return;
        }
        let is_due = |node: &&Node| !node.ending && node.is_due(self.now);
        let due: Vec<NodeId> = self.nodes.iter().filter(is_due).map(Node::id).collect();
        // None of them is a place for those who leave another.
        for id in &due {
            self.nodes.get_mut(*id).expect("it was just there").ending = true;
        }
        for id in due {
            self.send_elsewhere(id, out).expect("it was just there");
            for job in self.jobs_on(id) {
                // Plans move the others. These they must leave where they are.
                if self.jobs[&job].spec.flexibility != Flexibility::Elastic {
                    self.withdraw(job, id, (ResizeCause::Plan, StopReason::NodeEnds), out);
                    self.launch_if_free(job, out);
                }
            }
        }
    }

    /// Takes out of a checked plan what starts on a node that is to be empty too soon for that. Who would come there does
    /// without those replicas, stays as it is, or waits: whatever gives it most and the policy's rules allow.
    pub(crate) fn forgo_late_starts(&self, plan: &mut Plan, view: &ClusterView<'_>) {
        if self.nodes.iter().all(|node| node.end.is_none()) {
            return;
        }
        for job in view.jobs {
            let Some(idx) = plan.assignments.iter().position(|assignment| assignment.job == job.id) else { continue };
            let planned = plan.assignments[idx].clone();
            let added = planned.allocation.minus(job.allocation);
            let is_late = |id| self.nodes.get(id).is_some_and(|node| !pays_off(node.end, self.now, job.restart_cost_s));
            let late: Allocation = added.iter().filter(|&(node, _)| is_late(node)).collect();
            if late.is_empty() {
                continue;
            }
            let reason = Reason { binding: Binding::RestartCost, ..planned.reason };
            let mut choices = [
                (planned.allocation.minus(&late), planned.guest_of),
                (job.allocation.clone(), job.guest_of),
                (Allocation::default(), None),
            ];
            choices.sort_by_key(|(allocation, _)| Reverse(allocation.replicas()));
            for (allocation, guest_of) in choices {
                plan.assignments[idx] = Assignment { job: job.id, allocation, guest_of, reason };
                if plan.check(view, self.policy.rules()).is_ok() {
                    break;
                }
                plan.assignments[idx] = planned.clone();
            }
        }
    }

    /// What a job is to have until the next plan that is to leave all of its nodes because they end: part of its replicas
    /// stay until others have joined them elsewhere, so that it need not stop. Nobody else wants the GPUs that they keep.
    pub(crate) fn bridge(&self, id: JobId, target: &Allocation) -> Option<Allocation> {
        let job = &self.jobs[&id];
        let is_free_to = job.state == JobState::Running
            && job.spec.flexibility == Flexibility::Elastic
            && job.guest_of.is_none()
            && job.guest.is_none();
        let ends = |id| self.nodes.get(id).is_some_and(|node| node.ending && !node.unreachable && !node.retired);
        let kind = |of: &Allocation| of.iter().next().and_then(|(id, _)| self.nodes.get(id)).map(Node::gpu_type);
        if !is_free_to
            || target.is_empty()
            || !job.group.iter().all(|(node, _)| ends(node))
            || kind(&job.group) != kind(target)
        {
            return None;
        }
        let most = job.spec.most();
        let staying = most.saturating_sub(target.replicas()).clamp(1, job.group.replicas());
        let coming = target.replicas().min(most - staying);
        let both = first(&job.group, staying).plus(&first(target, coming));
        // Where all replicas on a node come and go as one, none may be left that stays.
        (coming > 0 && !job.kept(&both).is_empty()).then_some(both)
    }

    /// A job that has come elsewhere may leave what ends.
    pub(crate) fn hurry_on(&mut self, id: JobId) {
        let is_ending = |(node, _)| self.nodes.get(node).is_some_and(|node: &Node| node.ending);
        if self.jobs.get(&id).is_some_and(|job| job.group.iter().any(is_ending)) {
            self.rounds.request(self.now);
        }
    }
}

/// One start that was slow, or waited for something, must not keep a job from all nodes that end.
const START_MAX_S: f64 = 300.0;

/// Whether a start that takes so long is worth it on a node: who comes is to train at least as long before it has to leave.
pub(crate) fn pays_off(end: Option<NodeEnd>, now: Timestamp, start_s: f64) -> bool {
    end.is_none_or(|end| end.drains_at.since_s(now) > 2.0 * start_s.min(START_MAX_S))
}

/// So many replicas of an allocation, from its first nodes.
fn first(allocation: &Allocation, replicas: u32) -> Allocation {
    let mut missing = replicas;
    let taken = allocation.iter().map(|(node, there)| {
        let share = there.min(missing);
        missing -= share;
        (node, share)
    });
    taken.collect()
}

impl Node {
    /// Whether it is to be empty by now.
    fn is_due(&self, now: Timestamp) -> bool {
        self.end.is_some_and(|end| end.drains_at <= now)
    }
}
