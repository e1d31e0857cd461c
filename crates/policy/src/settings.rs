use thiserror::Error;

use crate::Policy;
use crate::castor::{Castor, CastorSettings};
use crate::fifo::Fifo;
use crate::pollux::{Pollux, PolluxSettings};
use crate::srtf::Srtf;
use crate::tiresias::{Tiresias, TiresiasSettings};

/// Which policy, with which settings. A new policy is one file and one arm here, which the compiler then asks to be
/// built; `all` makes it known by name.
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

    /// Every policy with its default settings.
    pub fn all() -> [Self; 5] {
        [
            Self::Pollux(PolluxSettings::default()),
            Self::Castor(CastorSettings::default()),
            Self::Fifo,
            Self::Srtf,
            Self::Tiresias(TiresiasSettings::default()),
        ]
    }

    /// The policy of that name with its default settings.
    pub fn named(name: &str) -> Result<Self, UnknownPolicy> {
        let unknown =
            || UnknownPolicy { name: name.to_owned(), accepted: Self::all().each_ref().map(Self::name).join(", ") };
        Self::all().into_iter().find(|known| known.name() == name).ok_or_else(unknown)
    }

    /// See [`Policy::name`].
    pub fn name(&self) -> &'static str {
        self.build().name()
    }

    /// See [`Policy::adapts_batches`].
    pub fn adapts_batches(&self) -> bool {
        self.build().adapts_batches()
    }

    /// See [`Policy::plans_on_events`].
    pub fn plans_on_events(&self) -> bool {
        self.build().plans_on_events()
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
