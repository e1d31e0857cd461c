use std::collections::BTreeSet;

use crate::free_gpus::FreeGpus;
use crate::gang::gang_size;
use crate::{Allocation, Assignment, Binding, ClusterView, JobId, JobView, NodeId, Plan, Reason};

/// A plan in the making, for policies that let jobs share: who has what so far, and the GPUs that are left. Jobs are told
/// by their index of the view.
#[derive(Clone, Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) view: &'a ClusterView<'a>,
    pub(crate) free: FreeGpus,
    shares: Vec<Option<Share>>,
    /// Who has a guest.
    hosts: BTreeSet<JobId>,
}

/// What a job gets.
#[derive(Clone, Debug)]
struct Share {
    allocation: Allocation,
    guest_of: Option<JobId>,
}

impl<'a> Draft<'a> {
    /// What cannot be changed is in it from the start.
    pub(crate) fn new(view: &'a ClusterView<'a>) -> Self {
        let mut draft =
            Self { view, free: FreeGpus::of(view), shares: vec![None; view.jobs.len()], hosts: BTreeSet::new() };
        for (idx, job) in view.jobs.iter().enumerate().filter(|(_, job)| job.is_pinned()) {
            match job.guest_of {
                Some(host) => draft.invite(idx, host, job.allocation.clone()),
                None => {
                    draft.free.pin_job(job);
                    draft.give(idx, job.allocation.clone());
                }
            }
        }
        draft
    }

    pub(crate) fn has(&self, idx: usize) -> bool {
        self.shares[idx].is_some()
    }

    /// What a job has that is nobody's guest.
    pub(crate) fn owned(&self, idx: usize) -> Option<&Allocation> {
        self.shares[idx].as_ref().filter(|share| share.guest_of.is_none()).map(|share| &share.allocation)
    }

    /// Whether a job stays where it is and can take a guest in.
    pub(crate) fn could_host(&self, idx: usize) -> bool {
        let job = &self.view.jobs[idx];
        self.owned(idx) == Some(job.allocation) && job.guest_of.is_none() && !self.hosts.contains(&job.id)
    }

    /// The part of what a host has that the gang of a guest would be on: a replica on the GPUs of one of the host, none
    /// on a node that drains or has no CPUs and memory for it. The host may be yet to be left where it is.
    pub(crate) fn room_beside(&self, host: usize, guest: &JobView<'_>) -> Option<Allocation> {
        let is_left = self.has(host);
        let host = &self.view.jobs[host];
        if host.per_replica().gpus != guest.per_replica().gpus {
            return None;
        }
        let nodes = self.view.nodes;
        let allowed = |id: NodeId| {
            let node = nodes.binary_search_by_key(&id, |node| node.id).map(|idx| &nodes[idx]);
            node.is_ok_and(|node| node.schedulable && guest.allows(node.gpu_type))
        };
        let replica = guest.per_replica().as_guest();
        let room = host.allocation.iter().filter(|&(node, _)| allowed(node));
        let room = room.map(|(node, replicas)| {
            let left = self.free.left_on(node).map(|mut left| {
                left.take(host.per_replica(), if is_left { 0 } else { replicas });
                left
            });
            (node, left.map_or(0, |left| replicas.min(left.fits(replica))))
        });
        let room = room.collect();
        part_of(&room, gang_size(guest))
    }

    /// Whether a job that runs could yet be left where it is.
    pub(crate) fn could_stay(&self, idx: usize) -> bool {
        let job = &self.view.jobs[idx];
        !self.has(idx)
            && job.guest_of.is_none()
            && !job.allocation.is_empty()
            && self.free.has(job.per_replica(), job.allocation)
    }

    /// What a job has, be it as a guest.
    pub(crate) fn share(&self, idx: usize) -> Option<&Allocation> {
        self.shares[idx].as_ref().map(|share| &share.allocation)
    }

    /// Gives a job GPUs that were taken from the free ones.
    pub(crate) fn give(&mut self, idx: usize, allocation: Allocation) {
        self.shares[idx] = Some(Share { allocation, guest_of: None });
    }

    /// Gives a job the GPUs named, if they are all free.
    pub(crate) fn keep(&mut self, idx: usize, allocation: &Allocation) -> bool {
        let replica = self.view.jobs[idx].per_replica();
        let kept = !allocation.is_empty() && self.free.keep(replica, allocation);
        if kept {
            self.give(idx, allocation.clone());
        }
        kept
    }

    /// Gives a job its gang on as few nodes as possible.
    pub(crate) fn place(&mut self, idx: usize) -> bool {
        let placed = take_gang(&mut self.free, &self.view.jobs[idx]);
        placed.map(|allocation| self.give(idx, allocation)).is_some()
    }

    pub(crate) fn invite(&mut self, idx: usize, host: JobId, allocation: Allocation) {
        self.free.pin(self.view.jobs[idx].per_replica().as_guest(), &allocation);
        self.hosts.insert(host);
        self.shares[idx] = Some(Share { allocation, guest_of: Some(host) });
    }

    /// Leaves a guest where it is, if its host stays there, too.
    pub(crate) fn stay(&mut self, idx: usize) -> bool {
        let job = &self.view.jobs[idx];
        let host = job.guest_of.and_then(|host| self.view.jobs.iter().position(|other| other.id == host));
        let Some(host) = host.filter(|&host| self.could_host(host)) else { return false };
        // A node that drains keeps what it has, but not for longer than its owner stays.
        let replica = job.per_replica().as_guest();
        if job.allocation.iter().any(|(node, replicas)| self.free.lacks(node, replica, replicas)) {
            return false;
        }
        self.invite(idx, self.view.jobs[host].id, job.allocation.clone());
        true
    }

    pub(crate) fn plan(self) -> Plan {
        let view = self.view;
        let assignments = self.view.jobs.iter().zip(self.shares).map(|(job, share)| {
            let binding = match &share {
                Some(_) => Binding::Request,
                None => view.obstacle(job, gang_size(job)).unwrap_or(Binding::Contention),
            };
            let (allocation, guest_of) = share.map(|share| (share.allocation, share.guest_of)).unwrap_or_default();
            Assignment { job: job.id, allocation, guest_of, reason: Reason { binding, ..Reason::default() } }
        });
        Plan { assignments: assignments.collect(), quality: None }
    }
}

/// Takes a gang of whatever kind there is enough of, on as few nodes as possible.
pub(crate) fn take_gang(free: &mut FreeGpus, job: &JobView<'_>) -> Option<Allocation> {
    let size = gang_size(job);
    let kind = free.kind_for(job, size).filter(|_| size > 0)?;
    free.take_consolidated(kind, job.per_replica(), size)
}

/// The part of an allocation that has so many replicas, on as few nodes as possible.
pub(crate) fn part_of(allocation: &Allocation, size: u32) -> Option<Allocation> {
    let mut nodes: Vec<_> = allocation.iter().collect();
    nodes.sort_by_key(|&(node, replicas)| (std::cmp::Reverse(replicas), node));
    let enough = nodes.iter().rev().copied().find(|&(_, replicas)| replicas >= size);
    let mut missing = size;
    let taken = enough.into_iter().chain(nodes).map(|(node, replicas)| {
        let share = replicas.min(missing);
        missing -= share;
        (node, share)
    });
    let part: Allocation = taken.collect();
    (size > 0 && part.replicas() == size).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_on_as_few_nodes_as_possible() {
        let allocation: Allocation = [(NodeId(0), 1), (NodeId(1), 3), (NodeId(2), 2)].into_iter().collect();
        let part =
            |size| part_of(&allocation, size).map(|part| part.iter().map(|(node, gpus)| (node.0, gpus)).collect());
        assert_eq!([part(0), part(7)], [None, None]);
        assert_eq!([part(1), part(2), part(3)], [vec![(0, 1)], vec![(2, 2)], vec![(1, 3)]].map(Some));
        assert_eq!([part(4), part(6)], [vec![(1, 3), (2, 1)], vec![(0, 1), (1, 3), (2, 2)]].map(Some));
    }
}
