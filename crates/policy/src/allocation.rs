use pollux_model::Shape;

use crate::NodeId;

/// Replicas per node, ordered by node; empty means the job does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<(NodeId, u32)>"))]
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
        self.0.iter().fold(0, |sum, &(_, replicas)| sum.saturating_add(replicas))
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

    /// Whether `other` has at least as many, node by node.
    pub fn is_within(&self, other: &Self) -> bool {
        self.iter().all(|(node, replicas)| replicas <= other.replicas_on(node))
    }

    /// What both have, node by node.
    pub fn common(&self, other: &Self) -> Self {
        self.iter().map(|(node, replicas)| (node, replicas.min(other.replicas_on(node)))).collect()
    }

    /// What this has beyond `other`, node by node.
    pub fn minus(&self, other: &Self) -> Self {
        self.iter().map(|(node, replicas)| (node, replicas.saturating_sub(other.replicas_on(node)))).collect()
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// All but what is on `node`.
    pub fn without(&self, node: NodeId) -> Self {
        self.iter().filter(|&(other, _)| other != node).collect()
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
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        Self(sorted)
    }
}

#[cfg(feature = "serde")]
impl From<Vec<(NodeId, u32)>> for Allocation {
    fn from(entries: Vec<(NodeId, u32)>) -> Self {
        entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(entries: &[(u32, u32)]) -> Allocation {
        entries.iter().map(|&(node, replicas)| (NodeId(node), replicas)).collect()
    }

    #[test]
    fn allocations_are_compared_node_by_node() {
        let (before, after) = (allocation(&[(0, 2), (1, 1)]), allocation(&[(0, 1), (2, 3)]));
        assert_eq!(before.common(&after), allocation(&[(0, 1)]));
        assert_eq!(before.minus(&after), allocation(&[(0, 1), (1, 1)]));
        assert_eq!(after.minus(&before), allocation(&[(2, 3)]));
        assert_eq!(before.plus(&after), allocation(&[(0, 3), (1, 1), (2, 3)]));
        assert_eq!(before.without(NodeId(0)), allocation(&[(1, 1)]));
        assert_eq!([before.is_within(&before), before.is_within(&after)], [true, false]);
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let absurd = allocation(&[(0, u32::MAX), (1, u32::MAX), (0, 7)]);
        assert_eq!((absurd.replicas(), absurd.replicas_on(NodeId(0))), (u32::MAX, u32::MAX));
    }
}
