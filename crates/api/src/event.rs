use serde::{Deserialize, Serialize};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Its number; later ones are larger.
    pub sequence: u64,
    /// When.
    pub at_ms: u64,
    /// The job that it happened to.
    pub job: Option<u64>,
    /// What, as one word.
    pub kind: String,
    /// What, as a sentence.
    pub text: String,
    /// What, as data: the fields differ by kind.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub detail: serde_json::Value,
}

/// Response to `GET /v1/events`, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventList {
    /// The events.
    pub events: Vec<Event>,
    /// What to give as `after` to read on.
    pub next_after: u64,
}
