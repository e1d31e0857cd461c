use super::problem::ProblemNode;

const WORD: usize = 64;

/// Sets of nodes by kind, free GPUs and whether a multi-node job is there.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    pub(super) gpus_max: u32,
    words: usize,
    bits: Vec<u64>,
    /// For each word of `bits` whether it has any: most sets are empty or nearly so.
    summary_words: usize,
    summary: Vec<u64>,
}

impl Buckets {
    pub(super) fn new(nodes: &[ProblemNode], kinds: usize) -> Self {
        let gpus_max = nodes.iter().map(|node| node.resources.gpus).max().unwrap_or(0);
        let sets = kinds * 2 * (gpus_max as usize + 1);
        let words = nodes.len().div_ceil(WORD);
        let summary_words = words.div_ceil(WORD);
        let (bits, summary) = (vec![0; sets * words], vec![0; sets * summary_words]);
        let mut buckets = Self { gpus_max, words, bits, summary_words, summary };
        for (idx, node) in nodes.iter().enumerate() {
            buckets.insert(idx, node.kind, (node.resources.gpus, node.hosts_multi));
        }
        buckets
    }

    fn set(&self, kind: usize, (free, multi): (u32, bool)) -> usize {
        (kind * 2 + usize::from(multi)) * (self.gpus_max as usize + 1) + free as usize
    }

    pub(super) fn insert(&mut self, node: usize, kind: usize, state: (u32, bool)) {
        let (set, word) = (self.set(kind, state), node / WORD);
        self.bits[set * self.words + word] |= 1 << (node % WORD);
        self.summary[set * self.summary_words + word / WORD] |= 1 << (word % WORD);
    }

    pub(super) fn remove(&mut self, node: usize, kind: usize, state: (u32, bool)) {
        let (set, word) = (self.set(kind, state), node / WORD);
        let bits = &mut self.bits[set * self.words + word];
        *bits &= !(1 << (node % WORD));
        if *bits == 0 {
            self.summary[set * self.summary_words + word / WORD] &= !(1 << (word % WORD));
        }
    }

    fn has_any(&self, kind: usize, free: u32, multi: bool) -> bool {
        self.summary_of(self.set(kind, (free, multi))).iter().any(|&words| words != 0)
    }

    fn first(&self, kind: usize, free: u32, multi: bool) -> Option<usize> {
        self.iter(kind, free, multi).next()
    }

    /// Lowest first.
    pub(super) fn iter(&self, kind: usize, free: u32, multi: bool) -> impl Iterator<Item = usize> + '_ {
        let set = self.set(kind, (free, multi));
        let bits = &self.bits[set * self.words..(set + 1) * self.words];
        ones(self.summary_of(set)).flat_map(|word| ones(&bits[word..=word]).map(move |bit| word * WORD + bit))
    }

    fn summary_of(&self, set: usize) -> &[u64] {
        &self.summary[set * self.summary_words..(set + 1) * self.summary_words]
    }

    pub(super) fn largest_free(&self, kind: usize) -> u32 {
        let occupied = |free: &u32| [true, false].iter().any(|&multi| self.has_any(kind, *free, multi));
        (1..=self.gpus_max).rev().find(occupied).unwrap_or(0)
    }

    pub(super) fn largest_free_without_multi(&self, kind: usize) -> u32 {
        (1..=self.gpus_max).rev().find(|&free| self.has_any(kind, free, false)).unwrap_or(0)
    }

    /// The node with the least room that suffices, one that hosts a multi-node job before one that could still take it.
    pub(super) fn best_fit(&self, kind: usize, replicas: u32) -> usize {
        (replicas..=self.gpus_max)
            .find_map(|free| self.first(kind, free, true).or_else(|| self.first(kind, free, false)))
            .expect("an offer is only made where a node has room")
    }

    /// A node without a multi-node job that has room for `replicas` but less than `below`, and is not taken yet.
    pub(super) fn tightest(&self, kind: usize, replicas: u32, below: u32, taken: &[(usize, u32)]) -> Option<usize> {
        (replicas..below)
            .find_map(|free| self.iter(kind, free, false).find(|node| taken.iter().all(|(other, _)| other != node)))
    }
}

/// Indices of the bits that are set, lowest first.
fn ones(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(word, &bits)| {
        let mut rest = bits;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(word * WORD + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeResources;

    #[test]
    fn sets_are_told_apart_and_walked_in_order() {
        let resources = NodeResources { gpus: 2, cpus: None, memory: None };
        let node = |idx: usize| ProblemNode { resources, hosts_multi: idx == 7, kind: idx % 2 };
        let nodes: Vec<ProblemNode> = (0..10_000).map(node).collect();
        let mut buckets = Buckets::new(&nodes, 2);
        assert!(buckets.iter(1, 2, false).eq((0..10_000).filter(|idx| idx % 2 == 1 && *idx != 7)));
        assert_eq!((buckets.first(1, 2, true), buckets.largest_free(0)), (Some(7), 2));
        for idx in (0..10_000).step_by(2) {
            buckets.remove(idx, 0, (2, false));
        }
        assert_eq!((buckets.largest_free(0), buckets.first(0, 2, false)), (0, None));
        for idx in [9_998, 64, 4_160] {
            buckets.insert(idx, 0, (1, idx == 64));
        }
        assert_eq!((buckets.largest_free(0), buckets.largest_free_without_multi(0)), (1, 1));
        assert!(buckets.iter(0, 1, false).eq([4_160, 9_998]));
        assert_eq!((buckets.best_fit(0, 1), buckets.tightest(0, 1, 2, &[(4_160, 1)])), (64, Some(9_998)));
        buckets.remove(64, 0, (1, true));
        assert_eq!((buckets.best_fit(0, 1), buckets.has_any(0, 1, true)), (4_160, false));
    }
}
