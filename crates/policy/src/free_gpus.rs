use std::collections::{BTreeMap, BTreeSet};

use pollux_model::GpuType;

use crate::{Allocation, ClusterView, JobView, NodeId, NodeResources, ReplicaResources};

/// GPUs that are still to be given away, with the CPUs and the memory beside them.
#[derive(Clone, Debug)]
pub(crate) struct FreeGpus {
    nodes: Vec<FreeNode>,
}

#[derive(Clone, Copy, Debug)]
struct FreeNode {
    id: NodeId,
    left: NodeResources,
    gpu_type: GpuType,
}

impl FreeGpus {
    /// All GPUs that may be used.
    pub(crate) fn of(view: &ClusterView<'_>) -> Self {
        let schedulable = view.nodes.iter().filter(|node| node.schedulable);
        let free = schedulable.map(|node| FreeNode { id: node.id, left: node.resources(), gpu_type: node.gpu_type });
        Self { nodes: free.collect() }
    }

    /// Whether all of an allocation is free, on nodes that may be used.
    pub(crate) fn has(&self, replica: ReplicaResources, allocation: &Allocation) -> bool {
        let has =
            |(node, replicas)| self.position(node).is_some_and(|idx| self.nodes[idx].left.fits(replica) >= replicas);
        allocation.iter().all(has)
    }

    /// All that nobody keeps who cannot be moved. A guest is on GPUs that its host has.
    pub(crate) fn beside_pinned(view: &ClusterView<'_>) -> Self {
        let mut free = Self::of(view);
        for job in view.jobs.iter().filter(|job| job.is_pinned()) {
            free.pin_job(job);
        }
        free
    }

    /// What is left beside all that run and have been granted nothing yet: who could still stay where it is.
    pub(crate) fn beside_running(&self, view: &ClusterView<'_>, granted: &[Option<Allocation>]) -> Self {
        let mut idle = self.clone();
        for (job, _) in
            view.jobs.iter().zip(granted).filter(|(job, granted)| granted.is_none() && job.guest_of.is_none())
        {
            idle.pin_job(job);
        }
        idle
    }

    /// Takes what a job holds; false, and nothing taken, if a node is gone, draining or already full.
    pub(crate) fn keep(&mut self, replica: ReplicaResources, allocation: &Allocation) -> bool {
        let has = self.has(replica, allocation);
        if has {
            self.pin(replica, allocation);
        }
        has
    }

    /// Takes what a job holds wherever that still exists: for jobs that cannot be moved.
    pub(crate) fn pin(&mut self, replica: ReplicaResources, allocation: &Allocation) {
        for (node, replicas) in allocation.iter() {
            if let Some(idx) = self.position(node) {
                self.nodes[idx].left.take(replica, replicas);
            }
        }
    }

    /// Takes what a job holds now; a guest holds no GPUs of its own.
    pub(crate) fn pin_job(&mut self, job: &JobView<'_>) {
        let replica = job.per_replica();
        let taken = if job.guest_of.is_some() { replica.as_guest() } else { replica };
        self.pin(taken, job.allocation);
    }

    /// Takes an allocation back that was taken from here.
    pub(crate) fn give_back(&mut self, replica: ReplicaResources, allocation: &Allocation) {
        for (node, replicas) in allocation.iter() {
            if let Some(idx) = self.position(node) {
                self.nodes[idx].left.give_back(replica, replicas);
            }
        }
    }

    /// Free GPUs of every kind.
    pub(crate) fn by_kind(&self) -> BTreeMap<GpuType, u32> {
        let mut pools = BTreeMap::new();
        for node in &self.nodes {
            *pools.entry(node.gpu_type).or_default() += node.left.gpus;
        }
        pools
    }

    /// The same but for these nodes.
    pub(crate) fn without(&self, nodes: &BTreeSet<NodeId>) -> Self {
        Self { nodes: self.nodes.iter().filter(|node| !nodes.contains(&node.id)).copied().collect() }
    }

    /// Free GPUs of a node.
    pub(crate) fn on(&self, node: NodeId) -> u32 {
        self.position(node).map_or(0, |idx| self.nodes[idx].left.gpus)
    }

    /// The first kind that so many replicas of a job fit on.
    pub(crate) fn kind_for(&self, job: &JobView<'_>, replicas: u32) -> Option<GpuType> {
        let replica = job.per_replica();
        let mut pools: BTreeMap<GpuType, u32> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| job.allows(node.gpu_type)) {
            let pool = pools.entry(node.gpu_type).or_default();
            *pool = pool.saturating_add(node.left.fits(replica));
        }
        pools.into_iter().find(|&(_, most)| most >= replicas).map(|(kind, _)| kind)
    }

    /// Whether so many replicas of a job fit on nodes of one kind.
    pub(crate) fn has_room(&self, job: &JobView<'_>, replicas: u32) -> bool {
        let replica = job.per_replica();
        let mut pools: BTreeMap<GpuType, u32> = BTreeMap::new();
        self.nodes.iter().filter(|node| job.allows(node.gpu_type)).any(|node| {
            let pool = pools.entry(node.gpu_type).or_default();
            *pool = pool.saturating_add(node.left.fits(replica));
            *pool >= replicas
        })
    }

    /// The most replicas of a kind on one node.
    pub(crate) fn most_on_a_node(&self, kind: GpuType, replica: ReplicaResources) -> u32 {
        self.nodes.iter().filter(|node| node.gpu_type == kind).map(|node| node.left.fits(replica)).max().unwrap_or(0)
    }

    /// The most replicas of a kind on all nodes together.
    pub(crate) fn most(&self, kind: GpuType, replica: ReplicaResources) -> u32 {
        self.usable(kind, replica).fold(0, |sum, (_, fits)| sum.saturating_add(fits))
    }

    /// What is left of a node that may be used.
    pub(crate) fn left_on(&self, node: NodeId) -> Option<NodeResources> {
        self.position(node).map(|idx| self.nodes[idx].left)
    }

    /// Replicas that fit beside what is on a node.
    pub(crate) fn fits_on(&self, node: NodeId, replica: ReplicaResources) -> u32 {
        self.position(node).map_or(0, |idx| self.nodes[idx].left.fits(replica))
    }

    /// Whether a node that may be used has no room for so many replicas.
    pub(crate) fn lacks(&self, node: NodeId, replica: ReplicaResources, replicas: u32) -> bool {
        self.position(node).is_some_and(|idx| self.nodes[idx].left.fits(replica) < replicas)
    }

    /// Takes `replicas` of a kind on as few nodes as possible: the fullest node that has room for all, else the
    /// emptiest nodes first.
    pub(crate) fn take_consolidated(
        &mut self,
        kind: GpuType,
        replica: ReplicaResources,
        replicas: u32,
    ) -> Option<Allocation> {
        let fitting = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.gpu_type == kind && node.left.fits(replica) >= replicas);
        if let Some((idx, _)) = fitting.min_by_key(|&(idx, node)| (node.left.gpus, idx)) {
            self.nodes[idx].left.take(replica, replicas);
            return Some(Allocation::on(self.nodes[idx].id, replicas));
        }
        self.take_emptiest_first(kind, replica, replicas)
    }

    /// Takes up to `replicas` more for a job: first on the nodes that it is on, then on as few others as possible.
    pub(crate) fn take_beside(&mut self, job: &JobView<'_>, kind: GpuType, replicas: u32) -> Allocation {
        let replica = job.per_replica();
        let mut missing = replicas;
        let mut taken = Vec::new();
        for (node, _) in job.allocation.iter() {
            if let Some(idx) = self.position(node).filter(|&idx| self.nodes[idx].gpu_type == kind) {
                let share = self.nodes[idx].left.fits(replica).min(missing);
                self.nodes[idx].left.take(replica, share);
                missing -= share;
                taken.push((node, share));
            }
        }
        let left = self.usable(kind, replica).fold(0u32, |sum, (_, fits)| sum.saturating_add(fits));
        let others = self.take_consolidated(kind, replica, missing.min(left)).unwrap_or_default();
        others.plus(&taken.into_iter().collect())
    }

    /// Takes one replica of a kind for a job that has been given `given` so far: where it holds more than that, else
    /// where it was given some, else where `idle` says that nobody is, else on the emptiest node.
    pub(crate) fn take_one(
        &mut self,
        job: &JobView<'_>,
        kind: GpuType,
        given: &Allocation,
        idle: &Self,
    ) -> Option<NodeId> {
        let replica = job.per_replica();
        let best = self.usable(kind, replica).max_by_key(|&(idx, fits)| {
            let id = self.nodes[idx].id;
            let given = given.replicas_on(id);
            let is_idle = idle.fits_on(id, replica) > given;
            (job.allocation.replicas_on(id) > given, given > 0, is_idle, fits, std::cmp::Reverse(idx))
        });
        let (idx, _) = best?;
        self.nodes[idx].left.take(replica, 1);
        Some(self.nodes[idx].id)
    }

    /// Takes `replicas` of a kind from the nodes with the most room first; ties go to the lowest node.
    pub(crate) fn take_emptiest_first(
        &mut self,
        kind: GpuType,
        replica: ReplicaResources,
        replicas: u32,
    ) -> Option<Allocation> {
        let mut order: Vec<(usize, u32)> = self.usable(kind, replica).collect();
        if order.iter().fold(0u32, |sum, &(_, fits)| sum.saturating_add(fits)) < replicas {
            return None;
        }
        order.sort_by_key(|&(idx, fits)| (std::cmp::Reverse(fits), idx));
        let mut missing = replicas;
        let taken = order.into_iter().map(|(idx, fits)| {
            let share = fits.min(missing);
            self.nodes[idx].left.take(replica, share);
            missing -= share;
            (self.nodes[idx].id, share)
        });
        Some(taken.collect())
    }

    /// Takes `replicas` of a kind evenly from the fewest nodes that have room, those with the most room first; where
    /// no number of nodes has, as many as there are of each.
    pub(crate) fn take_evenly(
        &mut self,
        kind: GpuType,
        replica: ReplicaResources,
        replicas: u32,
    ) -> Option<Allocation> {
        let mut order: Vec<(usize, u32)> = self.usable(kind, replica).collect();
        order.sort_by_key(|&(idx, fits)| (std::cmp::Reverse(fits), idx));
        for count in 1..=order.len() as u32 {
            let shares = (0..count).map(|rank| replicas / count + u32::from(rank < replicas % count));
            let chosen: Vec<((usize, u32), u32)> = order.iter().copied().zip(shares).collect();
            if chosen.iter().all(|&((_, fits), share)| fits >= share) {
                let taken = chosen.into_iter().map(|((idx, _), share)| {
                    self.nodes[idx].left.take(replica, share);
                    (self.nodes[idx].id, share)
                });
                return Some(taken.collect());
            }
        }
        self.take_emptiest_first(kind, replica, replicas)
    }

    /// Nodes of a kind with room, as indices, and how many replicas each has room for.
    fn usable(&self, kind: GpuType, replica: ReplicaResources) -> impl Iterator<Item = (usize, u32)> + '_ {
        let of_kind = self.nodes.iter().enumerate().filter(move |(_, node)| node.gpu_type == kind);
        of_kind.map(move |(idx, node)| (idx, node.left.fits(replica))).filter(|&(_, fits)| fits > 0)
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |node| node.id).ok()
    }
}
