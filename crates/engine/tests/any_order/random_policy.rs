use std::collections::BTreeMap;

use pollux_policy::{
    Allocation, Assignment, ClusterView, Flexibility, JobId, JobView, NodeId, NodeResources, PlacementRules, Plan,
    Policy, Reason, ReplicaResources, Timestamp,
};

use crate::dice::Dice;

/// Makes plans at random: valid ones, and now and then a broken one.
pub(crate) struct RandomPolicy {
    pub(crate) dice: Dice,
}

impl Policy for RandomPolicy {
    fn name(&self) -> &'static str {
        "random"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let mut free: Free = view.nodes.iter().map(|node| (node.id, node.resources())).collect();
        let pinned = |job: &JobView<'_>| job.is_pinned();
        for job in view.jobs.iter().filter(|job| pinned(job)) {
            take(&mut free, taken(job, job.guest_of), job.allocation);
        }
        free.retain(|id, _| view.nodes.iter().any(|node| node.id == *id && node.schedulable));
        let mut assignments: Vec<Assignment> = Vec::new();
        for job in view.jobs {
            if !pinned(job) && self.dice.percent(25) {
                if let Some(guest) = self.guest(job, view, &assignments, &free) {
                    take(&mut free, taken(job, guest.guest_of), &guest.allocation);
                    assignments.push(guest);
                }
                continue;
            }
            let kept = job.allocation.iter().all(|(node, replicas)| fits(&free, node, job.per_replica()) >= replicas);
            let allocation = if pinned(job) {
                job.allocation.clone()
            } else {
                match self.dice.below(10) {
                    0 => Allocation::NONE,
                    1..=4 if kept => job.allocation.clone(),
                    5..=7 if kept => self.nudged(job, view, &free),
                    _ => self.somewhere(job, view, &free),
                }
            };
            if !pinned(job) {
                take(&mut free, job.per_replica(), &allocation);
            }
            let guest_of = job.pinned_to();
            assignments.push(Assignment { job: job.id, allocation, guest_of, reason: Reason::default() });
        }
        if self.dice.percent(5) {
            self.spoil(&mut assignments);
        }
        Plan { assignments, quality: None }
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}

impl RandomPolicy {
    /// On GPUs of a job that was planned before, or nowhere; half of the time where it is a guest already.
    fn guest(
        &mut self,
        job: &JobView<'_>,
        view: &ClusterView<'_>,
        planned: &[Assignment],
        free: &Free,
    ) -> Option<Assignment> {
        let gpus = |id: JobId| view.jobs.iter().find(|job| job.id == id).map(|job| job.gpus_per_replica);
        let pinned_to = |host: &Assignment| view.jobs.iter().any(|other| other.pinned_to() == Some(host.job));
        let is_host = |host: &&Assignment| {
            let other = |guest: &Assignment| guest.guest_of == Some(host.job);
            let alike = gpus(host.job) == Some(job.gpus_per_replica);
            alike && host.guest_of.is_none() && !planned.iter().any(other) && !pinned_to(host)
        };
        let hosts: Vec<&Assignment> = planned.iter().filter(is_host).collect();
        let stays = |host: &&&Assignment| Some(host.job) == job.guest_of && job.allocation.is_within(&host.allocation);
        if let Some(host) = hosts.iter().find(stays).filter(|_| self.dice.percent(50)) {
            let (allocation, reason) = (job.allocation.clone(), Reason::default());
            return Some(Assignment { job: job.id, allocation, guest_of: Some(host.job), reason });
        }
        let host = *self.dice.pick(&hosts)?;
        let usable = |node: &NodeId| view.nodes.iter().any(|other| other.id == *node && other.schedulable);
        let replica = job.per_replica().as_guest();
        let room = host.allocation.iter().filter(|(node, _)| usable(node)).map(|(node, replicas)| {
            let room = replicas.min(fits(free, node, replica));
            (node, NodeResources { gpus: job.gpus_per_replica * room, cpus: None, memory: None })
        });
        let allocation = self.somewhere(job, view, &room.collect());
        Some(Assignment { job: job.id, allocation, guest_of: Some(host.job), reason: Reason::default() })
    }

    fn somewhere(&mut self, job: &JobView<'_>, view: &ClusterView<'_>, free: &Free) -> Allocation {
        let wanted = match job.flexibility {
            Flexibility::Rigid => job.replicas_requested,
            Flexibility::Elastic | Flexibility::NonPreemptible => {
                (job.replicas_min + self.dice.below(4)).min(job.replicas_max)
            }
        };
        let Some(first) = self.dice.pick(view.nodes) else { return Allocation::NONE };
        let mut missing = wanted;
        let mut taken = Vec::new();
        let skip = self.dice.below(4) as usize;
        for node in view.nodes.iter().cycle().skip(skip).take(view.nodes.len()) {
            let left = fits(free, node.id, job.per_replica());
            if node.gpu_type == first.gpu_type && job.allows(node.gpu_type) {
                let share = left.min(missing).min(1 + self.dice.below(4));
                taken.push((node.id, share));
                missing -= share;
            }
        }
        if missing > 0 { Allocation::NONE } else { taken.into_iter().collect() }
    }

    /// What it has, with one replica fewer or a few more.
    fn nudged(&mut self, job: &JobView<'_>, view: &ClusterView<'_>, free: &Free) -> Allocation {
        let kind = |id: NodeId| view.nodes.iter().find(|node| node.id == id).map(|node| node.gpu_type);
        let held: Vec<NodeId> = job.allocation.iter().map(|(node, _)| node).collect();
        let Some(&from) = self.dice.pick(&held) else { return self.somewhere(job, view, free) };
        let fewer =
            if self.dice.percent(60) { job.allocation.minus(&Allocation::on(from, 1)) } else { job.allocation.clone() };
        let room = |node: NodeId| fits(free, node, job.per_replica()).saturating_sub(fewer.replicas_on(node));
        let others: Vec<NodeId> =
            free.keys().copied().filter(|&node| kind(node) == kind(from) && room(node) > 0).collect();
        let more = match self.dice.pick(&others) {
            Some(&node) => Allocation::on(node, room(node).min(self.dice.below(3))),
            None => Allocation::NONE,
        };
        let nudged = fewer.plus(&more);
        let allowed = (job.replicas_min..=job.replicas_max).contains(&nudged.replicas());
        if allowed { nudged } else { job.allocation.clone() }
    }

    fn spoil(&mut self, assignments: &mut Vec<Assignment>) {
        let Some(idx) = (!assignments.is_empty()).then(|| self.dice.roll() as usize % assignments.len()) else {
            return;
        };
        match self.dice.below(4) {
            0 => assignments[idx].allocation = Allocation::on(NodeId(self.dice.below(9)), u32::MAX),
            1 => assignments[idx].guest_of = Some(assignments[0].job),
            2 => assignments.push(assignments[idx].clone()),
            _ => drop(assignments.remove(idx)),
        }
    }
}

/// What is left of the nodes that take replicas.
type Free = BTreeMap<NodeId, NodeResources>;

/// What a replica takes of what is free: a guest is on GPUs of its host.
fn taken(job: &JobView<'_>, guest_of: Option<JobId>) -> ReplicaResources {
    if guest_of.is_some() { job.per_replica().as_guest() } else { job.per_replica() }
}

fn fits(free: &Free, node: NodeId, replica: ReplicaResources) -> u32 {
    free.get(&node).map_or(0, |left| left.fits(replica))
}

fn take(free: &mut Free, replica: ReplicaResources, allocation: &Allocation) {
    for (node, replicas) in allocation.iter() {
        if let Some(left) = free.get_mut(&node) {
            left.take(replica, replicas);
        }
    }
}
