use std::fmt;

/// What stands for the value of a secret wherever people look.
const HIDDEN: &str = "***";

/// The value of a variable that nobody but the job is to see.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Secret(String);

impl Secret {
    /// A value to keep.
    pub const fn new(value: String) -> Self {
        Self(value)
    }

    /// What stands for a value wherever people look.
    pub fn hidden() -> Self {
        Self(HIDDEN.to_owned())
    }

    /// The value, for the job.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}
