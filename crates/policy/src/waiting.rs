//! Nobody waits for ever, under policies that choose sizes by goodput: an objective over many jobs may leave the same one
//! out again and again. Who has waited too long is given GPUs before the objective is asked, and keeps them for a turn.

use std::collections::{BTreeMap, BTreeSet};

use pollux_model::GpuType;

use crate::draft::part_of;
use crate::free_gpus::FreeGpus;
use crate::priority::opportunistic;
use crate::{Allocation, ClusterView, Flexibility, JobView, NodeId, ReplicaResources, Timestamp};

/// Seconds for which who went first is not driven out by who came later.
pub(crate) const TURN_S: f64 = 600.0;

/// What a policy promises those who wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Seconds that a job may wait before it goes first, where every job could have its fewest GPUs at once. Where there
    /// are not enough for that it is as many times longer as all jobs need more than there is.
    pub(crate) patience_s: f64,
    pub(crate) one_multi_node_job_per_node: bool,
}

/// What is decided before the objective is asked.
pub(crate) struct Settled {
    /// What jobs get, by index of the view: those that cannot be moved, those whose turn it is, and newcomers that find
    /// free what they asked for.
    pub(crate) fixed: Vec<Option<Allocation>>,
    /// Jobs that may not start yet, because they could not be moved out of the way of one that waits for more GPUs.
    pub(crate) barred: Vec<bool>,
    /// GPUs that are kept free for such a job, by node.
    pub(crate) withheld: BTreeMap<NodeId, u32>,
}

/// Settles what a view leaves no choice about. `possible` tells whether a job, by its index, can run so many replicas on a
/// kind of GPU.
pub(crate) fn settle(
    now: Timestamp,
    view: &ClusterView<'_>,
    terms: &Terms,
    possible: &dyn Fn(usize, GpuType, u32) -> bool,
) -> Settled {
    let mut queue = Queue::new(now, view, terms, possible);
    queue.let_overdue_in();
    queue.keep_turns();
    queue.begin_as_asked();
    queue.settled
}

struct Queue<'a> {
    now: Timestamp,
    view: &'a ClusterView<'a>,
    possible: &'a dyn Fn(usize, GpuType, u32) -> bool,
    one_multi_node_job_per_node: bool,
    /// Jobs that only use what others leave.
    opportunistic: Vec<bool>,
    /// How many times more GPUs all jobs need than there are; at least 1.
    crowding: f64,
    /// Seconds after which a job has waited too long.
    patience_s: f64,
    /// Nodes of fixed jobs that span several.
    spanned: BTreeSet<NodeId>,
    /// GPUs that nobody has.
    idle: FreeGpus,
    /// GPUs that no fixed job has.
    unfixed: FreeGpus,
    settled: Settled,
}

impl<'a> Queue<'a> {
    fn new(
        now: Timestamp,
        view: &'a ClusterView<'a>,
        terms: &Terms,
        possible: &'a dyn Fn(usize, GpuType, u32) -> bool,
    ) -> Self {
        let needed: f64 = view.jobs.iter().map(|job| f64::from(job.per_replica().gpus_of(job.fewest()))).sum();
        let mut idle = FreeGpus::of(view);
        for job in view.jobs {
            idle.pin_job(job);
        }
        let crowding = (needed / f64::from(view.gpus().max(1))).max(1.0);
        let mut queue = Self {
            now,
            view,
            possible,
            one_multi_node_job_per_node: terms.one_multi_node_job_per_node,
            opportunistic: opportunistic(view),
            crowding,
            patience_s: terms.patience_s * crowding,
            spanned: BTreeSet::new(),
            idle,
            unfixed: FreeGpus::beside_pinned(view),
            settled: Settled {
                fixed: vec![None; view.jobs.len()],
                barred: vec![false; view.jobs.len()],
                withheld: BTreeMap::new(),
            },
        };
        for (idx, job) in view.jobs.iter().enumerate().filter(|(_, job)| job.is_pinned()) {
            queue.fix(idx, job.allocation.clone());
        }
        queue
    }

    /// Gives a job what was taken off the free GPUs before.
    fn fix(&mut self, idx: usize, allocation: Allocation) {
        if self.one_multi_node_job_per_node && allocation.is_multi_node() {
            self.spanned.extend(allocation.iter().map(|(node, _)| node));
        }
        self.settled.fixed[idx] = Some(allocation);
    }

    fn is_overdue(&self, idx: usize) -> bool {
        let job = &self.view.jobs[idx];
        let waited_s = self.now.since_s(job.queued_since);
        job.allocation.is_empty() && !self.opportunistic[idx] && waited_s > self.patience_s
    }

    /// Whether a job has had its GPUs for less than a turn.
    fn is_in_turn(&self, job: &JobView<'_>) -> bool {
        job.running_since.is_some_and(|since| self.now.since_s(since) < TURN_S)
    }

    /// Who waits too long gets its fewest replicas, in the order of the queue. It drives out those who have had their
    /// turn, or came to the queue after it. Of a job that is ahead of it only what it does not need can be had.
    fn let_overdue_in(&mut self) {
        let place = |idx: usize| (self.view.jobs[idx].queued_since, idx);
        let mut overdue: Vec<usize> = (0..self.view.jobs.len()).filter(|&idx| self.is_overdue(idx)).collect();
        if overdue.is_empty() {
            return;
        }
        overdue.sort_by_key(|&idx| place(idx));
        let safe = |&idx: &usize| {
            let job = &self.view.jobs[idx];
            !job.is_pinned() && !self.opportunistic[idx] && self.is_in_turn(job)
        };
        let mut ahead: Vec<usize> = (0..self.view.jobs.len()).filter(safe).collect();
        ahead.sort_by_key(|&idx| place(idx));
        let mut ahead = ahead.into_iter().peekable();
        let mut claimable = self.unfixed.clone();
        let empty = FreeGpus::of(self.view);
        let mut blocked = false;
        for idx in overdue {
            while let Some(safe) = ahead.next_if(|&safe| place(safe) < place(idx)) {
                let job = &self.view.jobs[safe];
                let kept = part_of(job.allocation, job.fewest()).unwrap_or_else(|| job.allocation.clone());
                claimable.pin(job.per_replica(), &kept);
            }
            let job = &self.view.jobs[idx];
            if !empty.has_room(job, job.fewest()) || (blocked && job.flexibility != Flexibility::Elastic) {
                continue;
            }
            match self.place(idx, &mut claimable) {
                Some(allocation) => {
                    self.unfixed.pin(job.per_replica(), &allocation);
                    self.idle.pin(job.per_replica(), &allocation);
                    self.fix(idx, allocation);
                }
                None if !blocked => {
                    blocked = true;
                    self.make_way(idx, &mut claimable);
                }
                None => {}
            }
        }
    }

    /// Takes the fewest replicas of a job: where GPUs are idle, otherwise on as few nodes as possible.
    fn place(&self, idx: usize, claimable: &mut FreeGpus) -> Option<Allocation> {
        let job = &self.view.jobs[idx];
        let (size, replica) = (job.fewest(), job.per_replica());
        let kinds: Vec<GpuType> = claimable.by_kind().into_keys().filter(|&kind| self.may_run(idx, kind)).collect();
        let found = kinds.iter().find(|&&kind| self.idle.most_on_a_node(kind, replica) >= size);
        if let Some(&kind) = found {
            let allocation = self.idle.clone().take_consolidated(kind, replica, size)?;
            claimable.pin(replica, &allocation);
            return Some(allocation);
        }
        kinds.into_iter().find_map(|kind| {
            if claimable.most_on_a_node(kind, replica) >= size {
                return claimable.take_consolidated(kind, replica, size);
            }
            let allocation = claimable.without(&self.spanned).take_emptiest_first(kind, replica, size)?;
            claimable.pin(replica, &allocation);
            Some(allocation)
        })
    }

    /// Whether a job can run its fewest replicas on a kind of GPU.
    fn may_run(&self, idx: usize, kind: GpuType) -> bool {
        let job = &self.view.jobs[idx];
        job.allows(kind) && (self.possible)(idx, kind, job.fewest())
    }

    /// Keeps idle GPUs for a job that cannot be placed yet, on the nodes that are nearest to having enough, and lets
    /// nobody behind it start who could not be moved again.
    fn make_way(&mut self, idx: usize, claimable: &mut FreeGpus) {
        let job = &self.view.jobs[idx];
        let (size, replica) = (job.fewest(), job.per_replica());
        let mut nodes: Vec<_> = self.view.nodes.iter().filter(|node| node.schedulable).collect();
        nodes.sort_by_key(|node| (std::cmp::Reverse(claimable.on(node.id)), node.id));
        let kind = nodes.iter().map(|node| node.gpu_type).find(|&kind| {
            let rooms = nodes.iter().filter(|node| node.gpu_type == kind).map(|node| node.resources().fits(replica));
            rooms.fold(0, u32::saturating_add) >= size && self.may_run(idx, kind)
        });
        let mut found = 0u32;
        for node in nodes.into_iter().filter(|node| Some(node.gpu_type) == kind) {
            let room = node.resources().fits(replica);
            if found >= size || room == 0 {
                continue;
            }
            found = found.saturating_add(room);
            let idle = self.idle.on(node.id);
            self.settled.withheld.insert(node.id, idle);
            for free in [&mut self.idle, &mut self.unfixed, &mut *claimable] {
                free.pin(ReplicaResources::ONE_GPU, &Allocation::on(node.id, idle));
            }
        }
        for (other, barred) in self.view.jobs.iter().zip(&mut self.settled.barred) {
            *barred = other.queued_since > job.queued_since
                && other.flexibility != Flexibility::Elastic
                && other.allocation.is_empty();
        }
    }

    /// Who was let in because it had waited too long keeps what it needs until its turn is over.
    fn keep_turns(&mut self) {
        if self.crowding <= 1.0 {
            return;
        }
        for (idx, job) in self.view.jobs.iter().enumerate() {
            let waited_s = job.running_since.map_or(0.0, |since| since.since_s(job.queued_since));
            let is_fewest = job.allocation.replicas() == job.fewest();
            let was_overdue = is_fewest && waited_s > self.patience_s && !self.opportunistic[idx];
            let keeps = was_overdue && !job.is_pinned() && self.is_in_turn(job);
            if keeps && self.unfixed.keep(job.per_replica(), job.allocation) {
                self.fix(idx, job.allocation.clone());
            }
        }
    }

    /// A job that was never measured begins with what it asked for, if that is idle and nobody else waits for it;
    /// otherwise with as much of it as there is. It takes nothing from others for that.
    fn begin_as_asked(&mut self) {
        let waits = |idx: &usize| self.view.jobs[*idx].allocation.is_empty() && self.settled.fixed[*idx].is_none();
        let waiting: Vec<usize> = (0..self.view.jobs.len()).filter(waits).collect();
        let gpus_of = |job: &JobView<'_>| job.per_replica().gpus_of(job.fewest());
        let mut needed = waiting.iter().map(|&idx| gpus_of(&self.view.jobs[idx])).fold(0, u32::saturating_add);
        for idx in waiting {
            let job = &self.view.jobs[idx];
            let (fewest, asked) = (job.fewest(), job.replicas_requested.min(job.replicas_max));
            let is_new = job.profiles.is_empty() && job.executed_s == 0.0 && !self.settled.barred[idx];
            if !is_new || asked <= fewest {
                continue;
            }
            let by_others = needed.saturating_sub(gpus_of(job));
            let replica = job.per_replica();
            let kinds = self.idle.by_kind().into_iter().filter(|&(kind, _)| self.may_run(idx, kind));
            let sizes = kinds.map(|(kind, gpus)| {
                let most = asked.min(gpus.saturating_sub(by_others) / replica.gpus.max(1));
                let spread = if self.spanned_by_any() { 0 } else { most.min(self.idle.most(kind, replica)) };
                (kind, most.min(self.idle.most_on_a_node(kind, replica)).max(spread))
            });
            let best = sizes.max_by_key(|&(kind, size)| (size, std::cmp::Reverse(kind)));
            let Some((kind, size)) = best.filter(|&(_, size)| size > fewest) else { continue };
            if let Some(allocation) = self.idle.take_consolidated(kind, replica, size) {
                self.unfixed.pin(replica, &allocation);
                needed = by_others;
                self.fix(idx, allocation);
            }
        }
    }

    /// Whether a job that runs spans several nodes, beside which another one that does may not be.
    fn spanned_by_any(&self) -> bool {
        self.one_multi_node_job_per_node
            && (!self.spanned.is_empty() || self.view.jobs.iter().any(|job| job.allocation.is_multi_node()))
    }
}
