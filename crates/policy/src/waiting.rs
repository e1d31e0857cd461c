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
pub(crate) struct WaitLimits {
    /// Seconds that a job may wait before it goes first, where every job could have its fewest GPUs at once. Where there
    /// are not enough for that it is as many times longer as all jobs need more than there is. Jobs that could not run
    /// if they were alone do not count, nor do those that need other kinds of GPU.
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
    limits: &WaitLimits,
    possible: &dyn Fn(usize, GpuType, u32) -> bool,
) -> Settled {
    let mut queue = Queue::new(now, view, limits, possible);
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
    /// Kinds of GPU on which each job could run if it were alone.
    kinds: KindsByJob,
    /// How many times more of them all jobs need than there are; at least 1.
    crowding: Vec<f64>,
    /// Seconds after which a job has waited too long that is not crowded out.
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
        limits: &WaitLimits,
        possible: &'a dyn Fn(usize, GpuType, u32) -> bool,
    ) -> Self {
        let everything = FreeGpus::of(view);
        let kinds = kinds_with_room(view, &everything, possible);
        let mut idle = FreeGpus::of(view);
        for job in view.jobs {
            idle.pin_job(job);
        }
        let mut queue = Self {
            now,
            view,
            possible,
            one_multi_node_job_per_node: limits.one_multi_node_job_per_node,
            opportunistic: opportunistic(view),
            crowding: crowding(view, &everything.by_kind(), &kinds),
            kinds,
            patience_s: limits.patience_s,
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
        let waits = job.allocation.is_empty() && !self.kinds.of(idx).is_empty() && !self.opportunistic[idx];
        waits && self.is_too_long(idx, self.now.since_s(job.queued_since))
    }

    /// Whether a job should not have waited for so many seconds.
    fn is_too_long(&self, idx: usize, waited_s: f64) -> bool {
        waited_s > self.patience_s * self.crowding[idx]
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
        let mut blocked = false;
        for idx in overdue {
            while let Some(safe) = ahead.next_if(|&safe| place(safe) < place(idx)) {
                let job = &self.view.jobs[safe];
                let kept = part_of(job.allocation, job.fewest()).unwrap_or_else(|| job.allocation.clone());
                claimable.pin(job.per_replica(), &kept);
            }
            let job = &self.view.jobs[idx];
            if blocked && job.flexibility != Flexibility::Elastic {
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
        let kinds = self.kinds.of(idx);
        let found = kinds.iter().find(|&&kind| self.idle.most_on_a_node(kind, replica) >= size);
        if let Some(&kind) = found {
            let allocation = self.idle.clone().take_consolidated(kind, replica, size)?;
            claimable.pin(replica, &allocation);
            return Some(allocation);
        }
        kinds.iter().find_map(|&kind| {
            if claimable.most_on_a_node(kind, replica) >= size {
                return claimable.take_consolidated(kind, replica, size);
            }
            let allocation = claimable.without(&self.spanned).take_emptiest_first(kind, replica, size)?;
            claimable.pin(replica, &allocation);
            Some(allocation)
        })
    }

    /// Keeps idle GPUs for a job that cannot be placed yet, on the nodes that are nearest to having enough, and lets
    /// nobody behind it start who could not be moved again.
    fn make_way(&mut self, idx: usize, claimable: &mut FreeGpus) {
        let job = &self.view.jobs[idx];
        let (size, replica) = (job.fewest(), job.per_replica());
        let mut nodes: Vec<_> = self.view.nodes.iter().filter(|node| node.schedulable).collect();
        nodes.sort_by_key(|node| (std::cmp::Reverse(claimable.on(node.id)), node.id));
        let kind = nodes.iter().map(|node| node.gpu_type).find(|kind| self.kinds.of(idx).contains(kind));
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
        for (idx, job) in self.view.jobs.iter().enumerate() {
            let waited_s = job.running_since.map_or(0.0, |since| since.since_s(job.queued_since));
            let is_fewest = job.allocation.replicas() == job.fewest();
            let is_crowded = self.crowding[idx] > 1.0 && !self.opportunistic[idx];
            let was_overdue = is_fewest && is_crowded && self.is_too_long(idx, waited_s);
            let keeps = was_overdue && !job.is_pinned() && self.is_in_turn(job);
            if keeps && self.unfixed.keep(job.per_replica(), job.allocation) {
                self.fix(idx, job.allocation.clone());
            }
        }
    }

    /// A job that was never measured begins with what it asked for, if that is idle and nobody else waits for it who could
    /// start there; otherwise with as much of it as there is. It takes nothing from others for that.
    fn begin_as_asked(&mut self) {
        let waits = |&idx: &usize| {
            self.view.jobs[idx].allocation.is_empty() && self.settled.fixed[idx].is_none() && !self.settled.barred[idx]
        };
        let waiting: Vec<usize> = (0..self.view.jobs.len()).filter(waits).collect();
        let asks = |&idx: &usize| self.view.jobs[idx].first_size().is_some();
        if !waiting.iter().any(asks) {
            return;
        }
        let startable = kinds_with_room(self.view, &self.idle, self.possible);
        let gpus_of = |job: &JobView<'_>| job.per_replica().gpus_of(job.fewest());
        let mut needed: BTreeMap<GpuType, u32> = BTreeMap::new();
        for &idx in &waiting {
            for &kind in startable.of(idx) {
                let needed = needed.entry(kind).or_default();
                *needed = needed.saturating_add(gpus_of(&self.view.jobs[idx]));
            }
        }
        for idx in waiting {
            let job = &self.view.jobs[idx];
            let Some(asked) = job.first_size() else { continue };
            let (replica, own) = (job.per_replica(), gpus_of(job));
            let idle = self.idle.by_kind();
            let apart = self.idle.without(&self.nodes_spanned());
            let sizes = startable.of(idx).iter().map(|&kind| {
                let by_others = needed[&kind].saturating_sub(own);
                let most = asked.min(idle[&kind].saturating_sub(by_others) / replica.gpus);
                let on_a_node = self.idle.most_on_a_node(kind, replica);
                (kind, most.min(on_a_node.max(apart.most(kind, replica))))
            });
            let best = sizes.max_by_key(|&(kind, size)| (size, std::cmp::Reverse(kind)));
            let Some((kind, size)) = best.filter(|&(_, size)| size > job.fewest()) else { continue };
            let on_a_node = self.idle.most_on_a_node(kind, replica) >= size;
            let mut from = if on_a_node { self.idle.clone() } else { apart };
            if let Some(allocation) = from.take_consolidated(kind, replica, size) {
                self.idle.pin(replica, &allocation);
                self.unfixed.pin(replica, &allocation);
                for kind in startable.of(idx) {
                    needed.entry(*kind).and_modify(|gpus| *gpus = gpus.saturating_sub(own));
                }
                self.fix(idx, allocation);
            }
        }
    }

    /// Nodes of jobs that span several, where another one that does may not be.
    fn nodes_spanned(&self) -> BTreeSet<NodeId> {
        if !self.one_multi_node_job_per_node {
            return BTreeSet::new();
        }
        let running = self.view.jobs.iter().map(|job| job.allocation).filter(|allocation| allocation.is_multi_node());
        let nodes = running.flat_map(|allocation| allocation.iter().map(|(node, _)| node));
        nodes.chain(self.spanned.iter().copied()).collect()
    }
}

/// Kinds of GPU for each job; all are in one block of memory, since jobs are many.
struct KindsByJob {
    kinds: Vec<GpuType>,
    /// Where those of a job end.
    ends: Vec<usize>,
}

impl KindsByJob {
    fn of(&self, idx: usize) -> &[GpuType] {
        let start = idx.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.kinds[start..self.ends[idx]]
    }
}

/// Kinds of GPU with room for the fewest replicas of each job, alone on what is free.
fn kinds_with_room(
    view: &ClusterView<'_>,
    free: &FreeGpus,
    possible: &dyn Fn(usize, GpuType, u32) -> bool,
) -> KindsByJob {
    let mut rooms: BTreeMap<ReplicaResources, Vec<(GpuType, u32)>> = BTreeMap::new();
    let mut found = KindsByJob { kinds: Vec::new(), ends: Vec::with_capacity(view.jobs.len()) };
    for (idx, job) in view.jobs.iter().enumerate() {
        let (size, replica) = (job.fewest(), job.per_replica());
        let room = |kind| (kind, free.most(kind, replica));
        let rooms = rooms.entry(replica).or_insert_with(|| free.by_kind().into_keys().map(room).collect());
        let fits = |&&(kind, room): &&(GpuType, u32)| room >= size && job.allows(kind) && possible(idx, kind, size);
        found.kinds.extend(rooms.iter().filter(fits).map(|&(kind, _)| kind));
        found.ends.push(found.kinds.len());
    }
    found
}

/// How many times more GPUs are needed than there are, of the kinds of each job. What a job needs that may run on several
/// kinds is divided over them like their GPUs.
fn crowding(view: &ClusterView<'_>, gpus: &BTreeMap<GpuType, u32>, kinds: &KindsByJob) -> Vec<f64> {
    let mut needed: BTreeMap<GpuType, f64> = BTreeMap::new();
    for (idx, job) in view.jobs.iter().enumerate() {
        let kinds = kinds.of(idx);
        let there: u32 = kinds.iter().map(|kind| gpus[kind]).sum();
        for &kind in kinds {
            *needed.entry(kind).or_default() += f64::from(job.per_replica().gpus_of(job.fewest())) / f64::from(there);
        }
    }
    let least = |idx| kinds.of(idx).iter().map(|kind| needed[kind]).reduce(f64::min).unwrap_or(0.0);
    (0..view.jobs.len()).map(|idx| least(idx).max(1.0)).collect()
}
