use pollux_model::Shape;

use crate::NodeId;

/// Replicas per node, ordered by node; empty means the job does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Allocation(Vec<(NodeId, u32)>);

impl Allocation {
    /// No replica.
    pub const NONE: Self = Self(Vec::new());

    /// All replicas on one node.
    pub fn on(node: NodeId, replicas: u32) -> Self {
        std::iter::once((node, replicas)).collect()
    }

    /// Replicas in total.
    pub fn replicas(&self) -> u32 {
        self.0.iter().map(|&(_, replicas)| replicas).sum()
    }

    /// Whether nothing is allocated.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether replicas sit on more than one node.
    pub const fn is_multi_node(&self) -> bool {
        self.0.len() > 1
    }

    /// Nodes and replicas; `None` if nothing is allocated.
    pub fn shape(&self) -> Option<Shape> {
        Shape::new(u32::try_from(self.0.len()).ok()?, self.replicas()).ok()
    }

    /// Replicas on one node.
    pub fn replicas_on(&self, node: NodeId) -> u32 {
        self.0.binary_search_by_key(&node, |&(node, _)| node).map_or(0, |idx| self.0[idx].1)
    }

    /// Nodes with their replicas, ordered by node.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NodeId, u32)> + '_ {
        self.0.iter().copied()
    }
}

/// Collects nodes in any order; several entries of a node add up and empty ones vanish.
impl FromIterator<(NodeId, u32)> for Allocation {
    fn from_iter<T: IntoIterator<Item = (NodeId, u32)>>(entries: T) -> Self {
        let mut sorted: Vec<(NodeId, u32)> = entries.into_iter().filter(|&(_, replicas)| replicas > 0).collect();
        sorted.sort_unstable_by_key(|&(node, _)| node);
        sorted.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        Self(sorted)
    }
}
