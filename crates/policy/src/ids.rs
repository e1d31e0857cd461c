use std::fmt;

/// A node, numbered in the order of joining; a number is never used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A moment, in milliseconds since whenever the cluster's clock began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The moment `seconds` later; negative or absurd numbers count as none.
    pub fn after_s(self, seconds: f64) -> Self {
        Self(self.0.saturating_add((seconds * 1000.0).round() as u64))
    }

    /// Seconds since `earlier`, 0 if it is not earlier.
    pub fn since_s(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1000.0
    }

    /// Seconds since the clock began.
    pub fn as_s(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}
