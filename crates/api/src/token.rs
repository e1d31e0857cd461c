use serde::{Deserialize, Serialize};

/// Body of `POST /v1/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Who or what it is for; 1 to 64 letters, digits, `-`, `_` or `.`, and not in use.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9_.-]{1,64}$"))]
    pub label: String,
}

/// Response to `POST /v1/tokens`: the only time that the token is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedToken {
    /// Who or what it is for.
    pub label: String,
    /// Opens everything.
    pub token: String,
}

// Whatever prints an answer must not show the token.
impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("label", &self.label).finish_non_exhaustive()
    }
}

/// Response to `GET /v1/tokens`: tokens of users, not of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenList {
    /// Who or what they are for.
    pub labels: Vec<String>,
}
