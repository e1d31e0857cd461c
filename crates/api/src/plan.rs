use serde::{Deserialize, Serialize};

/// Response to `GET /v1/plan`: the last plan, and why it is as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanStatus {
    /// Who decides.
    pub policy: String,
    /// When it was made; nothing before the first.
    pub at_ms: Option<u64>,
    /// When the next one is made.
    pub next_round_ms: Option<u64>,
    /// How good it is by the policy's own measure, where it has one.
    pub objective: Option<f64>,
    /// What no plan can be above by that measure.
    pub upper_bound: Option<f64>,
    /// When a plan changed anything last.
    pub changed_ms: Option<u64>,
    /// What that one changed; the largest changes of many.
    pub changes: Vec<PlanChange>,
    /// Jobs that keep what they have, or wait, and why; the first of many.
    pub kept: Vec<PlanKept>,
}

/// A job that a plan gave other GPUs than the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanChange {
    /// Which.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// GPUs before.
    pub from: u32,
    /// GPUs since.
    pub to: u32,
    /// Its predicted goodput there against before, minus 1.
    pub goodput_change: Option<f64>,
    /// Why, in a few words.
    pub text: String,
}

/// A job that a plan left as it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanKept {
    /// Which.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// GPUs that it keeps.
    pub gpus: u32,
    /// What keeps it from having more, as one word.
    pub binding: String,
    /// The same in a few words.
    pub text: String,
}
