use crate::{ClusterView, PlacementRules, Plan, PolicyState, Priorities, Timestamp};

/// How a host and its guest divide a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Both alike.
    Equal,
    /// The guest uses what the host leaves idle.
    HostFirst,
}

/// Decides who gets which GPUs.
pub trait Policy {
    /// As users write it.
    fn name(&self) -> &'static str;

    /// A plan for the jobs of the view. Jobs that it leaves out get nothing.
    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan;

    /// What it remembers from plan to plan; nothing, and always nothing, if its plans follow from the view alone.
    fn save(&self) -> Option<PolicyState> {
        None
    }

    /// Carries on with what was saved. Returns whether it could: what another policy remembered is of no use.
    fn restore(&mut self, state: PolicyState) -> bool {
        drop(state);
        false
    }

    /// What its plans keep beside capacity and bounds.
    fn rules(&self) -> PlacementRules;

    /// Whether jobs choose their own batch under it; otherwise they run as their users asked.
    fn adapts_batches(&self) -> bool {
        false
    }

    /// Whether it chooses how many replicas jobs get; otherwise they get what they asked for.
    fn chooses_sizes(&self) -> bool {
        self.adapts_batches()
    }

    /// Whether it wants to plan as soon as jobs or nodes come and go, beside its regular rounds.
    fn plans_on_events(&self) -> bool {
        false
    }

    /// What it makes of priorities.
    fn priorities(&self) -> Priorities {
        Priorities::Ignored
    }

    /// How jobs divide the GPUs that its plans let them share.
    fn sharing(&self) -> Sharing {
        Sharing::Equal
    }

    /// Whether it needs to be told what only a simulator knows; a live cluster cannot run it.
    fn needs_oracle(&self) -> bool {
        false
    }

    /// Whether it plans by what others of a job's application measured, where the job itself was measured less.
    fn shares_measurements(&self) -> bool {
        false
    }

    /// Whether jobs are to be measured on one GPU of every type before they first start, which takes a few steps each.
    fn profiles_types(&self) -> bool {
        false
    }
}
