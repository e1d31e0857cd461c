use serde::{Deserialize, Serialize};

/// Something that a replica wrote, as a message of `GET /v1/jobs/{id}/logs/stream`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogPiece {
    /// Which.
    pub replica: u64,
    /// What, with whatever ends its lines.
    pub text: String,
    /// Where its log goes on, for a stream that does.
    pub position: String,
    /// Bytes before this piece that are not kept any more, and were never told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}
