use serde::{Deserialize, Serialize};

/// Body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    /// What went wrong.
    pub error: FailureDetail,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureDetail {
    /// One word for programs, such as `unknown_job`.
    pub code: String,
    /// One line for people: what was read, and what would be accepted.
    pub message: String,
}
