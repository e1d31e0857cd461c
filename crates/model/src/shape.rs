use crate::ModelError;

/// How many replicas a job has and over how many nodes they spread: all that a throughput model tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawShape"))]
pub struct Shape {
    nodes: u32,
    replicas: u32,
}

impl Shape {
    /// `nodes` must be at least 1 and at most `replicas`.
    pub fn new(nodes: u32, replicas: u32) -> Result<Self, ModelError> {
        if nodes == 0 || nodes > replicas {
            return Err(ModelError::Shape { nodes, replicas });
        }
        Ok(Self { nodes, replicas })
    }

    /// One replica on one node.
    pub const fn single() -> Self {
        Self { nodes: 1, replicas: 1 }
    }

    /// The nodes the replicas spread over.
    pub const fn nodes(self) -> u32 {
        self.nodes
    }

    /// The replicas in total.
    pub const fn replicas(self) -> u32 {
        self.replicas
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawShape {
    nodes: u32,
    replicas: u32,
}

#[cfg(feature = "serde")]
impl TryFrom<RawShape> for Shape {
    type Error = ModelError;

    fn try_from(raw: RawShape) -> Result<Self, ModelError> {
        Self::new(raw.nodes, raw.replicas)
    }
}
