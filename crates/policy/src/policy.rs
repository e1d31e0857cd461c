use crate::{ClusterView, PlacementRules, Plan, Timestamp};

/// Decides who gets which GPUs.
pub trait Policy {
    /// A plan for the jobs of the view. Jobs that it leaves out get nothing.
    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan;

    /// What its plans keep beside capacity and bounds.
    fn rules(&self) -> PlacementRules;
}
