use thiserror::Error;

use crate::Policy;
use crate::castor::{Castor, CastorSettings};
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
    /// The lowest average completion time.
    Castor(CastorSettings),
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
            Self::Castor(settings) => Box::new(Castor::new(*settings)),
            Self::Fifo => Box::new(Fifo),
            Self::Tiresias(settings) => Box::new(Tiresias::new(*settings)),
            Self::Srtf => Box::new(Srtf),
        }
    }

    /// The policy of that name with its default settings.
    pub fn named(name: &str) -> Result<Self, UnknownPolicy> {
        let known = [
            ("pollux", Self::Pollux(PolluxSettings::default())),
            ("castor", Self::Castor(CastorSettings::default())),
            ("fifo", Self::Fifo),
            ("srtf", Self::Srtf),
            ("tiresias", Self::Tiresias(TiresiasSettings::default())),
        ];
        let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = known.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, settings)| settings).ok_or_else(|| UnknownPolicy { name: name.to_owned(), accepted: names })
    }

    /// As users write it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pollux(_) => "pollux",
            Self::Castor(_) => "castor",
            Self::Fifo => "fifo",
            Self::Srtf => "srtf",
            Self::Tiresias(_) => "tiresias",
        }
    }

    /// Whether jobs choose their own batch under it, or run as their users asked.
    pub const fn adapts_batches(&self) -> bool {
        match self {
            Self::Pollux(_) | Self::Castor(_) => true,
            Self::Fifo | Self::Srtf | Self::Tiresias(_) => false,
        }
    }

    /// Whether it wants to plan as soon as jobs or nodes come and go, beside its regular rounds.
    pub const fn plans_on_events(&self) -> bool {
        match self {
            Self::Castor(_) => true,
            Self::Pollux(_) | Self::Fifo | Self::Srtf | Self::Tiresias(_) => false,
        }
    }
}

/// A policy that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown policy {name:?}: accepted are {accepted}")]
pub struct UnknownPolicy {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub accepted: String,
}
