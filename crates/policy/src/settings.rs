use crate::Policy;
use crate::fifo::Fifo;
use crate::srtf::Srtf;

/// Which policy, with which settings. A new policy is one file and one arm here.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields))]
#[non_exhaustive]
pub enum PolicySettings {
    /// First come, first served.
    Fifo,
    /// Shortest remaining time first.
    Srtf,
}

impl PolicySettings {
    /// A policy that has planned nothing yet.
    pub fn build(&self) -> Box<dyn Policy + Send> {
        match self {
            Self::Fifo => Box::new(Fifo),
            Self::Srtf => Box::new(Srtf),
        }
    }
}
