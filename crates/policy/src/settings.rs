use crate::Policy;
use crate::fifo::Fifo;
use crate::pollux::{Pollux, PolluxSettings};
use crate::srtf::Srtf;
use crate::tiresias::{Tiresias, TiresiasSettings};

/// Which policy, with which settings. A new policy is one file and one arm here.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields))]
#[non_exhaustive]
pub enum PolicySettings {
    /// The paper's policy.
    Pollux(PolluxSettings),
    /// First come, first served.
    Fifo,
    /// Least attained service first.
    Tiresias(TiresiasSettings),
    /// Shortest remaining time first.
    Srtf,
}

impl PolicySettings {
    /// A policy that has planned nothing yet.
    pub fn build(&self) -> Box<dyn Policy + Send> {
        match self {
            Self::Pollux(settings) => Box::new(Pollux::new(*settings)),
            Self::Fifo => Box::new(Fifo),
            Self::Tiresias(settings) => Box::new(Tiresias::new(*settings)),
            Self::Srtf => Box::new(Srtf),
        }
    }
}
