/// What a node has, or has left. What is not counted there limits nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeResources {
    /// GPUs.
    pub gpus: u32,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// What one replica takes of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaResources {
    /// GPUs, at least one.
    pub gpus: u32,
    /// CPUs; 0 if it does not say.
    pub cpus: u32,
    /// Bytes of memory; 0 if it does not say.
    pub memory: u64,
}

impl ReplicaResources {
    /// One GPU and nothing else.
    pub const ONE_GPU: Self = Self { gpus: 1, cpus: 0, memory: 0 };

    /// Whether it fits wherever a GPU is free.
    pub fn fits_any_gpu(&self) -> bool {
        *self == Self::ONE_GPU
    }

    /// GPUs of so many replicas.
    pub const fn gpus_of(&self, replicas: u32) -> u32 {
        self.gpus.saturating_mul(replicas)
    }

    /// CPUs of so many replicas.
    pub fn cpus_of(&self, replicas: u32) -> u64 {
        u64::from(self.cpus) * u64::from(replicas)
    }

    /// Memory of so many replicas.
    pub fn memory_of(&self, replicas: u32) -> u64 {
        self.memory.saturating_mul(u64::from(replicas))
    }

    /// The same beside a host, which has the GPUs already.
    pub const fn as_guest(self) -> Self {
        Self { gpus: 0, ..self }
    }
}

impl NodeResources {
    /// How many replicas fit.
    pub fn fits(&self, replica: ReplicaResources) -> u32 {
        let by_gpus = self.gpus.checked_div(replica.gpus).unwrap_or(u32::MAX);
        let by_cpus = self.cpus.and_then(|cpus| cpus.checked_div(replica.cpus)).unwrap_or(u32::MAX);
        let by_memory = self.memory.and_then(|memory| memory.checked_div(replica.memory));
        let by_memory = by_memory.map_or(u32::MAX, |replicas| u32::try_from(replicas).unwrap_or(u32::MAX));
        by_gpus.min(by_cpus).min(by_memory)
    }

    /// Whether so many replicas fit, without the divisions of [`Self::fits`].
    pub fn has_room(&self, replica: ReplicaResources, replicas: u32) -> bool {
        self.gpus >= replica.gpus_of(replicas)
            && (replica.cpus == 0 || self.cpus.is_none_or(|cpus| u64::from(cpus) >= replica.cpus_of(replicas)))
            && (replica.memory == 0 || self.memory.is_none_or(|memory| memory >= replica.memory_of(replicas)))
    }

    /// Takes what so many replicas need, as far as it is there.
    pub fn take(&mut self, replica: ReplicaResources, replicas: u32) {
        self.gpus = self.gpus.saturating_sub(replica.gpus_of(replicas));
        if replica.cpus > 0
            && let Some(left) = &mut self.cpus
        {
            *left = left.saturating_sub(u32::try_from(replica.cpus_of(replicas)).unwrap_or(u32::MAX));
        }
        if replica.memory > 0
            && let Some(left) = &mut self.memory
        {
            *left = left.saturating_sub(replica.memory_of(replicas));
        }
    }

    /// Takes back what was taken for so many replicas.
    pub fn give_back(&mut self, replica: ReplicaResources, replicas: u32) {
        self.gpus = self.gpus.saturating_add(replica.gpus_of(replicas));
        if replica.cpus > 0
            && let Some(left) = &mut self.cpus
        {
            *left = left.saturating_add(u32::try_from(replica.cpus_of(replicas)).unwrap_or(u32::MAX));
        }
        if replica.memory > 0
            && let Some(left) = &mut self.memory
        {
            *left = left.saturating_add(replica.memory_of(replicas));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_replicas_fit_as_the_scarcest_resource_allows() {
        let node = NodeResources { gpus: 8, cpus: Some(10), memory: Some(1_000) };
        let fits = |gpus, cpus, memory| node.fits(ReplicaResources { gpus, cpus, memory });
        assert_eq!([fits(1, 0, 0), fits(2, 0, 0), fits(3, 0, 0), fits(9, 0, 0)], [8, 4, 2, 0]);
        assert_eq!([fits(1, 3, 0), fits(1, 0, 300), fits(2, 1, 1_001), fits(1, u32::MAX, u64::MAX)], [3, 3, 0, 0]);
        let uncounted = NodeResources { gpus: 8, cpus: None, memory: None };
        assert_eq!(uncounted.fits(ReplicaResources { gpus: 4, cpus: u32::MAX, memory: u64::MAX }), 2);
        for (gpus, cpus, memory) in
            [(1, 0, 0), (3, 0, 0), (0, 3, 0), (1, 3, 300), (2, 1, 1_001), (9, u32::MAX, u64::MAX)]
        {
            let replica = ReplicaResources { gpus, cpus, memory };
            for node in [node, uncounted] {
                let has_room: Vec<bool> = (1..10).map(|replicas| node.has_room(replica, replicas)).collect();
                let fits: Vec<bool> = (1..10).map(|replicas| node.fits(replica) >= replicas).collect();
                assert_eq!(has_room, fits, "{replica:?} on {node:?}");
            }
        }
    }

    #[test]
    fn a_guest_takes_everything_but_gpus() {
        let mut node = NodeResources { gpus: 0, cpus: Some(10), memory: None };
        let guest = ReplicaResources { gpus: 4, cpus: 3, memory: 7 }.as_guest();
        assert_eq!(node.fits(guest), 3);
        node.take(guest, 2);
        assert_eq!((node.gpus, node.cpus, node.fits(guest)), (0, Some(4), 1));
        node.give_back(guest, 2);
        assert_eq!(node, NodeResources { gpus: 0, cpus: Some(10), memory: None });
    }
}
