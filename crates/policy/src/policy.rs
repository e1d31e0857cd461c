use crate::{ClusterView, PlacementRules, Plan, Timestamp};

/// Decides who gets which GPUs.
pub trait Policy {
    /// As users write it.
    fn name(&self) -> &'static str;

    /// A plan for the jobs of the view. Jobs that it leaves out get nothing.
    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan;

    /// What its plans keep beside capacity and bounds.
    fn rules(&self) -> PlacementRules;

    /// Whether jobs choose their own batch under it; otherwise they run as their users asked.
    fn adapts_batches(&self) -> bool {
        false
    }

    /// Whether it wants to plan as soon as jobs or nodes come and go, beside its regular rounds.
    fn plans_on_events(&self) -> bool {
        false
    }

    /// Whether it needs to be told what only a simulator knows; a live cluster cannot run it.
    fn needs_oracle(&self) -> bool {
        false
    }
}
