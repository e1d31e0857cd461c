//! What happens to nodes, and to the jobs on them.

use pollux_model::GpuTypeName;
use pollux_policy::{Allocation, Flexibility, JobId, NodeId, NodeResources};

use crate::gpu_types::GpuTypes;
use crate::{Command, Engine, JobState, Refusal, ResizeCause, StopReason};

/// What becomes of those who had replicas on a node that is gone, or is about to be.
const LOST: (ResizeCause, StopReason) = (ResizeCause::NodeLoss, StopReason::NodeLost);

impl Engine {
    pub(crate) fn join(&mut self, node: NodeId, has: NodeResources, gpu_type: GpuTypeName) -> Result<(), Refusal> {
        let limit = GpuTypes::LIMIT;
        let found = self.gpu_types.number_or_next(&gpu_type);
        let (number, is_new) = found.ok_or(Refusal::TooManyGpuTypes { node, limit })?;
        self.nodes.join(node, has, number)?;
        if is_new {
            self.gpu_types.push(gpu_type);
            // Some may have been there before.
            self.jobs.values_mut().for_each(|job| job.learn_types(&self.gpu_types, &self.type_knowledge));
        }
        self.rounds.request(self.now);
        Ok(())
    }

    pub(crate) fn lose(&mut self, node: NodeId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        self.nodes.remove(node)?;
        for id in self.jobs_on(node) {
            let job = self.jobs.get_mut(&id).expect("it was just there");
            job.accrue(self.now);
            job.forget_leaving(node);
            self.withdraw(id, node, LOST, out);
            self.retire(id);
            self.launch_if_free(id, out);
        }
        self.note_stranded();
        self.rounds.request(self.now);
        Ok(())
    }

    /// Nothing is given away there before it is released.
    pub(crate) fn retire_node(&mut self, node: NodeId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        self.nodes.set_retired(node)?;
        for id in self.jobs_on(node) {
            self.withdraw(id, node, LOST, out);
            self.launch_if_free(id, out);
        }
        self.nodes.remove_emptied([node].into_iter());
        self.note_stranded();
        self.rounds.request(self.now);
        Ok(())
    }

    /// Jobs that have replicas on a node, or wait for it. Nodes go rarely: a scan is cheaper than an index that every
    /// release would have to keep.
    pub(crate) fn jobs_on(&self, node: NodeId) -> Vec<JobId> {
        let touched = self.jobs.values().filter(|job| job.replicas_on(node) > 0 || job.target.replicas_on(node) > 0);
        touched.map(|job| job.id).collect()
    }

    pub(crate) fn change_resources(
        &mut self,
        id: NodeId,
        cpus: Option<u32>,
        memory: Option<u64>,
        out: &mut Vec<Command>,
    ) -> Result<(), Refusal> {
        // Of a node where nobody counted it is not known what was given.
        let given = self.jobs.values().map(|job| (job.per_replica(), job.replicas_on(id))).fold(
            (0u32, 0u64),
            |(cpus, memory), (replica, replicas)| {
                (cpus + replica.cpus * replicas, memory + replica.memory_of(replicas))
            },
        );
        self.nodes.set_resources(id, cpus, memory, given)?;
        // What it waits for may never come.
        self.send_elsewhere(id, out)
    }

    /// Nothing is given away there: who holds its GPUs may run on.
    pub(crate) fn unreachable(&mut self, id: NodeId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        self.nodes.set_unreachable(id, true)?;
        self.note_stranded();
        self.send_elsewhere(id, out)
    }

    pub(crate) fn reachable(&mut self, id: NodeId) -> Result<(), Refusal> {
        self.nodes.set_unreachable(id, false)?;
        self.note_stranded();
        self.rounds.request(self.now);
        Ok(())
    }

    /// Nodes come and go rarely: a scan is cheaper than an index.
    fn note_stranded(&mut self) {
        for job in self.jobs.values_mut() {
            job.stranded = self.nodes.has_unreachable(&job.group);
        }
    }

    pub(crate) fn drain(&mut self, id: NodeId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        self.nodes.set_draining(id, true)?;
        self.send_elsewhere(id, out)
    }

    /// Whoever waits for GPUs of a node does without them.
    pub(crate) fn send_elsewhere(&mut self, id: NodeId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        let node = self.nodes.get(id).ok_or(Refusal::UnknownNode { node: id })?;
        for job in node.waiting().iter().copied().collect::<Vec<_>>() {
            // What one does without may be what another waited for.
            if self.nodes.get(id).is_some_and(|node| node.waiting().contains(&job)) {
                self.look_elsewhere(job, id, out);
            }
        }
        self.rounds.request(self.now);
        Ok(())
    }

    /// A job that waits for GPUs of a node which takes nothing any more does without them.
    fn look_elsewhere(&mut self, id: JobId, node: NodeId, out: &mut Vec<Command>) {
        let job = &self.jobs[&id];
        if matches!(job.state, JobState::Queued { .. }) {
            self.aim(id, Allocation::NONE, None);
            return;
        }
        let missing = job.target.minus(&job.group).replicas_on(node);
        let target = job.target.minus(&Allocation::on(node, missing));
        self.nodes.forget(id, &job.target);
        if target.replicas() >= job.spec.fewest() && !job.kept(&target).is_empty() {
            self.resize(id, target, ResizeCause::Plan, out);
            self.launch_if_free(id, out);
        } else {
            self.stop_group(id, JobState::QUEUED, StopReason::Preempted, out);
        }
    }

    pub(crate) fn undrain(&mut self, node: NodeId) -> Result<(), Refusal> {
        self.nodes.set_draining(node, false)?;
        self.rounds.request(self.now);
        Ok(())
    }

    /// A job that trains goes on with what remains of its group, if that is enough for it. Everything else starts
    /// anew from its last saved state, where the next plan puts it. Neither counts as a retry.
    pub(crate) fn withdraw(
        &mut self,
        id: JobId,
        node: NodeId,
        (cause, why): (ResizeCause, StopReason),
        out: &mut Vec<Command>,
    ) {
        let job = self.jobs.get_mut(&id).expect("the caller has seen it");
        if job.target.replicas_on(node) == 0 {
            return;
        }
        let additions_wait = job.group != job.target;
        let target = job.target.without(node);
        self.nodes.forget(id, &job.target);
        // Elsewhere they are told to leave.
        if self.nodes.get(node).is_none() {
            job.group = job.group.without(node);
        }
        let trains = match job.state {
            JobState::Running => true,
            // Until its additions are launched, a group trains as it did before.
            JobState::Resizing { .. } => additions_wait,
            JobState::Queued { .. }
            | JobState::Starting
            | JobState::Paused
            | JobState::Succeeded
            | JobState::Failed { .. }
            | JobState::Cancelled => false,
        };
        let enough = match job.spec.flexibility {
            Flexibility::Elastic | Flexibility::NonPreemptible => target.replicas() >= job.spec.replicas_min,
            Flexibility::Rigid => false,
        };
        if matches!(job.state, JobState::Queued { .. }) {
            self.aim(id, Allocation::NONE, None);
        } else if trains && enough && !job.kept(&target).is_empty() {
            self.resize(id, target, cause, out);
        } else {
            self.stop_group(id, JobState::QUEUED, why, out);
        }
    }
}
