use std::collections::{BTreeMap, BTreeSet};

use pollux_model::GpuType;

use crate::{Allocation, ClusterView, NodeId};

/// GPUs that are still to be given away.
#[derive(Clone, Debug)]
pub(crate) struct FreeGpus {
    nodes: Vec<FreeNode>,
}

#[derive(Clone, Copy, Debug)]
struct FreeNode {
    id: NodeId,
    gpus: u32,
    gpu_type: GpuType,
}

impl FreeGpus {
    /// All GPUs that may be used.
    pub(crate) fn of(view: &ClusterView<'_>) -> Self {
        let schedulable = view.nodes.iter().filter(|node| node.schedulable);
        Self {
            nodes: schedulable.map(|node| FreeNode { id: node.id, gpus: node.gpus, gpu_type: node.gpu_type }).collect(),
        }
    }

    /// Whether all of an allocation is free, on nodes that may be used.
    pub(crate) fn has(&self, allocation: &Allocation) -> bool {
        let has = |(node, replicas)| self.position(node).is_some_and(|idx| self.nodes[idx].gpus >= replicas);
        allocation.iter().all(has)
    }

    /// All that nobody keeps who cannot be moved. A guest is on GPUs that its host has.
    pub(crate) fn beside_pinned(view: &ClusterView<'_>) -> Self {
        let mut free = Self::of(view);
        for job in view.jobs.iter().filter(|job| job.is_pinned() && job.guest_of.is_none()) {
            free.pin(job.allocation);
        }
        free
    }

    /// Takes what a job holds; false, and nothing taken, if a node is gone, draining or already full.
    pub(crate) fn keep(&mut self, allocation: &Allocation) -> bool {
        if !self.has(allocation) {
            return false;
        }
        for (node, replicas) in allocation.iter() {
            if let Some(idx) = self.position(node) {
                self.nodes[idx].gpus -= replicas;
            }
        }
        true
    }

    /// Takes what a job holds wherever that still exists: for jobs that cannot be moved.
    pub(crate) fn pin(&mut self, allocation: &Allocation) {
        for (node, replicas) in allocation.iter() {
            if let Some(idx) = self.position(node) {
                self.nodes[idx].gpus = self.nodes[idx].gpus.saturating_sub(replicas);
            }
        }
    }

    /// Takes an allocation back that was taken from here.
    pub(crate) fn give_back(&mut self, allocation: &Allocation) {
        for (node, replicas) in allocation.iter() {
            if let Some(idx) = self.position(node) {
                self.nodes[idx].gpus += replicas;
            }
        }
    }

    /// Free GPUs of every kind.
    pub(crate) fn by_kind(&self) -> BTreeMap<GpuType, u32> {
        let mut pools = BTreeMap::new();
        for node in &self.nodes {
            *pools.entry(node.gpu_type).or_default() += node.gpus;
        }
        pools
    }

    /// Free GPUs of a node.
    pub(crate) fn on(&self, node: NodeId) -> u32 {
        self.position(node).map_or(0, |idx| self.nodes[idx].gpus)
    }

    /// The same but for these nodes.
    pub(crate) fn without(&self, nodes: &BTreeSet<NodeId>) -> Self {
        Self { nodes: self.nodes.iter().filter(|node| !nodes.contains(&node.id)).copied().collect() }
    }

    /// The most free GPUs of a kind on one node.
    pub(crate) fn most_on_a_node(&self, kind: GpuType) -> u32 {
        self.nodes.iter().filter(|node| node.gpu_type == kind).map(|node| node.gpus).max().unwrap_or(0)
    }

    /// Takes `replicas` of a kind on as few nodes as possible: the fullest node that has room for all, else the
    /// emptiest nodes first.
    pub(crate) fn take_consolidated(&mut self, kind: GpuType, replicas: u32) -> Option<Allocation> {
        let fitting = self.nodes.iter().enumerate().filter(|(_, node)| node.gpu_type == kind && node.gpus >= replicas);
        if let Some((idx, _)) = fitting.min_by_key(|&(idx, node)| (node.gpus, idx)) {
            self.nodes[idx].gpus -= replicas;
            return Some(Allocation::on(self.nodes[idx].id, replicas));
        }
        self.take_emptiest_first(kind, replicas)
    }

    /// Takes up to `replicas` more for a job: first on the nodes that it is on, then on as few others as possible.
    pub(crate) fn take_beside(&mut self, allocation: &Allocation, kind: GpuType, replicas: u32) -> Allocation {
        let mut missing = replicas;
        let mut taken = Vec::new();
        for (node, _) in allocation.iter() {
            if let Some(idx) = self.position(node).filter(|&idx| self.nodes[idx].gpu_type == kind) {
                let share = self.nodes[idx].gpus.min(missing);
                self.nodes[idx].gpus -= share;
                missing -= share;
                taken.push((node, share));
            }
        }
        let left = self.by_kind().get(&kind).copied().unwrap_or(0);
        let others = self.take_consolidated(kind, missing.min(left)).unwrap_or_default();
        others.plus(&taken.into_iter().collect())
    }

    /// Takes `replicas` of a kind from the nodes with the most free GPUs first; ties go to the lowest node.
    pub(crate) fn take_emptiest_first(&mut self, kind: GpuType, replicas: u32) -> Option<Allocation> {
        let usable = |idx: &usize| self.nodes[*idx].gpu_type == kind && self.nodes[*idx].gpus > 0;
        let mut order: Vec<usize> = (0..self.nodes.len()).filter(usable).collect();
        if order.iter().map(|&idx| self.nodes[idx].gpus).sum::<u32>() < replicas {
            return None;
        }
        order.sort_by_key(|&idx| (std::cmp::Reverse(self.nodes[idx].gpus), idx));
        let mut missing = replicas;
        let taken = order.into_iter().map(|idx| {
            let node = &mut self.nodes[idx];
            let share = node.gpus.min(missing);
            node.gpus -= share;
            missing -= share;
            (node.id, share)
        });
        Some(taken.collect())
    }

    /// Takes `replicas` of a kind evenly from the fewest nodes that have room, those with the most free GPUs first; where
    /// no number of nodes has, as many as there are of each.
    pub(crate) fn take_evenly(&mut self, kind: GpuType, replicas: u32) -> Option<Allocation> {
        let usable = |idx: &usize| self.nodes[*idx].gpu_type == kind && self.nodes[*idx].gpus > 0;
        let mut order: Vec<usize> = (0..self.nodes.len()).filter(usable).collect();
        order.sort_by_key(|&idx| (std::cmp::Reverse(self.nodes[idx].gpus), idx));
        for count in 1..=order.len() as u32 {
            let shares = (0..count).map(|rank| replicas / count + u32::from(rank < replicas % count));
            let chosen: Vec<(usize, u32)> = order.iter().copied().zip(shares).collect();
            if chosen.iter().all(|&(idx, share)| self.nodes[idx].gpus >= share) {
                let taken = chosen.into_iter().map(|(idx, share)| {
                    self.nodes[idx].gpus -= share;
                    (self.nodes[idx].id, share)
                });
                return Some(taken.collect());
            }
        }
        self.take_emptiest_first(kind, replicas)
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |node| node.id).ok()
    }
}
