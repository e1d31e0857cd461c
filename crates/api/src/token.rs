use std::fmt;

use serde::{Deserialize, Serialize};

/// What a user may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at jobs and the cluster.
    Viewer,
    /// Submit jobs, too, and change those.
    #[default]
    Member,
    /// Everything: change jobs of others, nodes and tokens.
    Admin,
}

impl Role {
    /// As it is written everywhere.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }

    /// The role that is written so.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Viewer, Self::Member, Self::Admin].into_iter().find(|role| role.word() == word)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Body of `POST /v1/tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The user whom it is for; 1 to 64 letters, digits, `-`, `_` or `.`, and without a token so far.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9_.-]{1,64}$"))]
    pub label: String,
    /// What the user may do.
    #[serde(default)]
    pub role: Role,
    /// For how long it opens anything; without it until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// Response to `POST /v1/tokens`: the only time that the token is shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IssuedToken {
    /// The user whom it is for.
    pub label: String,
    /// What the user may do.
    pub role: Role,
    /// From when on it opens nothing, in milliseconds since 1970, if it ends.
    pub expires_ms: Option<u64>,
    /// Opens what the role may do.
    pub token: String,
}

// Whatever prints an answer must not show the token.
impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken").field("label", &self.label).field("role", &self.role).finish_non_exhaustive()
    }
}

/// Response to `GET /v1/tokens`: tokens of users, not of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenList {
    /// In order of their labels.
    pub tokens: Vec<Token>,
}

/// A user's token, which itself is not kept. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// The user whom it is for.
    pub label: String,
    /// What the user may do.
    pub role: Role,
    /// When it was made; not known of those of version 0.1.
    pub created_ms: Option<u64>,
    /// From when on it opens nothing, if it ends.
    pub expires_ms: Option<u64>,
    /// When it was used last, to the minute; nothing if it never was.
    pub last_used_ms: Option<u64>,
}
