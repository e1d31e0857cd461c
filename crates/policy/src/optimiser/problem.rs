use super::prices::Prices;
use crate::by_size::BySize;
use crate::{NodeResources, ReplicaResources};

/// Who may get what, and what that is worth.
#[derive(Debug)]
pub(crate) struct Problem {
    /// What is to be given away.
    pub(crate) nodes: Vec<ProblemNode>,
    pub(crate) jobs: Vec<JobOptions>,
    /// At most one multi-node job per node.
    pub(crate) one_multi_node_job_per_node: bool,
}

/// A node that may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProblemNode {
    pub(crate) resources: NodeResources,
    /// Whether a multi-node job that is none of ours is there already.
    pub(crate) hosts_multi: bool,
    /// Dense index of its kind of GPU.
    pub(crate) kind: usize,
}

/// What each option of a job is worth; a value of minus infinity is no option.
#[derive(Clone, Debug)]
pub(crate) struct JobOptions {
    /// What each replica takes of its node.
    pub(crate) replica: ReplicaResources,
    /// Worth of getting nothing.
    pub(crate) none: f64,
    /// Staying exactly where it is.
    pub(crate) keep: Option<Keep>,
    /// Worth of every size.
    pub(crate) sizes: BySize,
}

/// What a job holds and what keeping it is worth.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    pub(crate) value: f64,
    /// Node index and replicas.
    pub(crate) places: Vec<(usize, u32)>,
}

impl Problem {
    /// Kinds of GPU that there are.
    pub(super) fn kinds(&self) -> usize {
        self.nodes.iter().map(|node| node.kind + 1).max().unwrap_or(0)
    }
}

impl Keep {
    pub(crate) fn replicas(&self) -> u32 {
        self.places.iter().map(|&(_, replicas)| replicas).sum()
    }

    /// The kind of GPU that it is on.
    pub(super) fn kind(&self, nodes: &[ProblemNode]) -> usize {
        self.places.first().map_or(0, |&(node, _)| nodes[node].kind)
    }
}

impl JobOptions {
    /// The best any option could be worth after paying for its GPUs, if it fitted.
    pub(super) fn best_net(&self, nodes: &[ProblemNode], prices: Prices<'_>) -> f64 {
        let gpus = f64::from(self.replica.gpus);
        let mut best = self.none;
        for (kind, (single, multi)) in self.sizes.by_kind().enumerate() {
            let price = prices.of(kind);
            for values in [single, multi] {
                for (idx, value) in values.iter().enumerate() {
                    best = best.max(value - price * ((idx as f64 + 1.0) * gpus));
                }
            }
        }
        let keep = self.keep.iter().map(|keep| keep.value - prices.of(keep.kind(nodes)) * self.gpus(keep.replicas()));
        keep.fold(best, f64::max)
    }

    /// The fewest replicas that are an option.
    pub(crate) fn fewest(&self) -> u32 {
        let first = |values: &[f64]| values.iter().position(|value| *value > f64::NEG_INFINITY);
        let fewest = self.sizes.by_kind().flat_map(|(single, multi)| [first(single), first(multi)]).flatten().min();
        fewest.map_or(0, |idx| idx as u32 + 1)
    }

    /// GPUs of so many replicas.
    pub(crate) fn gpus(&self, replicas: u32) -> f64 {
        f64::from(self.replica.gpus_of(replicas))
    }
}
