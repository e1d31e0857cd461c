use std::ops::RangeInclusive;

use thiserror::Error;

use crate::antman::{AntMan, AntManSettings};
use crate::castor::{Castor, CastorSettings};
use crate::fifo::Fifo;
use crate::gandiva::{Gandiva, GandivaSettings};
use crate::gavel::{Gavel, GavelSettings};
use crate::optimus::{Optimus, OptimusOracle, OptimusSettings};
use crate::pollux::{Pollux, PolluxSettings};
use crate::sia::{Sia, SiaSettings};
use crate::slaq::{Slaq, SlaqSettings};
use crate::srtf::Srtf;
use crate::themis::{Themis, ThemisSettings};
use crate::tiresias::{Tiresias, TiresiasSettings};
use crate::{Policy, Priorities, Sharing};

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
    /// The best types and sizes for the sum of powers of all goodputs.
    Sia(SiaSettings),
    /// Shares of time on types of GPU, by a linear program.
    Gavel(GavelSettings),
    /// First come, first served.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "no_settings"))]
    Fifo,
    /// Least attained service first.
    Tiresias(TiresiasSettings),
    /// Shortest remaining time first.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "no_settings"))]
    Srtf,
    /// Finish-time fairness.
    Themis(ThemisSettings),
    /// Time slices, packing and migration.
    Gandiva(GandivaSettings),
    /// Guaranteed jobs, and opportunistic ones on what they leave.
    #[cfg_attr(feature = "serde", serde(rename = "antman"))]
    AntMan(AntManSettings),
    /// Marginal gains from fitted speeds and loss curves.
    Optimus(OptimusSettings),
    /// Marginal gains from true remaining work.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "no_settings"))]
    OptimusOracle,
    /// The most quality soonest.
    Slaq(SlaqSettings),
}

/// What a live cluster runs unless it is told otherwise, chosen by measurement (docs/policies.md).
impl Default for PolicySettings {
    fn default() -> Self {
        Self::Castor(CastorSettings::default())
    }
}

impl PolicySettings {
    /// A policy that has planned nothing yet.
    pub fn build(&self) -> Box<dyn Policy + Send> {
        match self {
            Self::Pollux(settings) => Box::new(Pollux::new(*settings)),
            Self::Castor(settings) => Box::new(Castor::new(*settings)),
            Self::Sia(settings) => Box::new(Sia::new(*settings)),
            Self::Gavel(settings) => Box::new(Gavel::new(settings.clone())),
            Self::Fifo => Box::new(Fifo),
            Self::Tiresias(settings) => Box::new(Tiresias::new(settings.clone())),
            Self::Srtf => Box::new(Srtf),
            Self::Themis(settings) => Box::new(Themis::new(*settings)),
            Self::Gandiva(settings) => Box::new(Gandiva::new(*settings)),
            Self::AntMan(settings) => Box::new(AntMan::new(*settings)),
            Self::Optimus(settings) => Box::new(Optimus::new(*settings)),
            Self::OptimusOracle => Box::new(OptimusOracle),
            Self::Slaq(settings) => Box::new(Slaq::new(*settings)),
        }
    }

    /// Refuses settings that no plan can be made with.
    pub fn check(&self) -> Result<(), PolicySettingError> {
        let within = |name, value: f64, range: RangeInclusive<f64>, accepted| {
            if range.contains(&value) { Ok(()) } else { Err(PolicySettingError { name, value, accepted }) }
        };
        let profile_limit = |value| within("profile_limit", value, 1.0..=f64::INFINITY, "1 or more");
        match self {
            Self::Pollux(settings) => {
                within("fairness", settings.fairness, f64::NEG_INFINITY..=10.0, "numbers up to 10, -inf included")?;
                profile_limit(settings.profile_limit)
            }
            Self::Castor(settings) => {
                within("size_preference", settings.size_preference.unwrap_or(1.0), 1.0..=10.0, "1 to 10")?;
                within("age_preference", settings.age_preference, 1.0..=10.0, "1 to 10")?;
                within("uniform_weight", settings.uniform_weight, 0.0..=1.0, "a share from 0 to 1")?;
                within("hysteresis", settings.hysteresis, 0.0..=10.0, "0 to 10")?;
                profile_limit(settings.profile_limit)
            }
            Self::Sia(settings) => {
                within("fairness", settings.fairness, -10.0..=10.0, "numbers from -10 to 10 but 0")?;
                let magnitude = settings.fairness.abs();
                within("fairness", magnitude, 0.01..=10.0, "numbers from -10 to 10 but 0")?;
                within("waiting_penalty", settings.waiting_penalty, 1.0f64.next_up()..=1e3, "more than 1, up to 1000")?;
                profile_limit(settings.profile_limit)
            }
            Self::Tiresias(settings) => {
                let mut lowest = f64::MIN_POSITIVE;
                for &hours in &settings.queue_gpu_hours {
                    within("queue_gpu_hours", hours, lowest..=f64::MAX, "increasing numbers above 0")?;
                    lowest = hours.next_up();
                }
                for &hours in &settings.job_gpu_hours {
                    within("job_gpu_hours", hours, f64::MIN_POSITIVE..=f64::MAX, "numbers above 0")?;
                }
                let knob = settings.promote_knob.unwrap_or(1.0);
                within("promote_knob", knob, f64::MIN_POSITIVE..=f64::MAX, "numbers above 0")?;
                within("consolidate_margin", settings.consolidate_margin, 0.0..=f64::MAX, "0 or more")
            }
            Self::Themis(settings) => {
                within("fairness_knob", settings.fairness_knob, 0.0..=1.0, "0 to 1")?;
                within("lease_s", settings.lease_s, 0.0..=f64::MAX, "0 or more")
            }
            Self::Gandiva(settings) => {
                within("quantum_s", settings.quantum_s, 0.0..=f64::INFINITY, "0 or more")?;
                within("packing_rate_min", settings.packing_rate_min, 0.0..=f64::INFINITY, "0 or more")?;
                within("gain_min", settings.gain_min, 0.0..=10.0, "0 to 10")
            }
            Self::Gavel(settings) => {
                within("round_s", settings.round_s, 1.0..=86_400.0, "1 to 86400 seconds")?;
                for &cost in settings.gpu_costs.values() {
                    within("gpu_costs", cost, 1e-6..=1e6, "numbers from 1e-6 to 1e6")?;
                }
                for owner in settings.owners.values() {
                    within("owners.weight", owner.weight, 1e-3..=1e3, "numbers from 0.001 to 1000")?;
                }
                within("slowdown_max", settings.slowdown_max.unwrap_or(1.0), 1.0..=1e6, "1 to 1e6")
            }
            Self::AntMan(settings) => within("slowdown_max", settings.slowdown_max, 0.0..=1.0, "a share from 0 to 1"),
            Self::Optimus(settings) => {
                within("convergence_threshold", settings.convergence_threshold, 1e-6..=0.99, "1e-6 to 0.99")?;
                within("hysteresis", settings.hysteresis, 0.0..=10.0, "0 to 10")?;
                profile_limit(settings.profile_limit)
            }
            Self::Slaq(settings) => {
                within("horizon_s", settings.horizon_s, 1.0..=86_400.0, "1 to 86400 seconds")?;
                within("hysteresis", settings.hysteresis, 0.0..=10.0, "0 to 10")?;
                profile_limit(settings.profile_limit)
            }
            Self::Fifo | Self::Srtf | Self::OptimusOracle => Ok(()),
        }
    }

    /// Every policy with its default settings.
    pub fn all() -> [Self; 13] {
        [
            Self::Pollux(PolluxSettings::default()),
            Self::Castor(CastorSettings::default()),
            Self::Sia(SiaSettings::default()),
            Self::Gavel(GavelSettings::default()),
            Self::Optimus(OptimusSettings::default()),
            Self::OptimusOracle,
            Self::Tiresias(TiresiasSettings::default()),
            Self::Themis(ThemisSettings::default()),
            Self::Gandiva(GandivaSettings::default()),
            Self::AntMan(AntManSettings::default()),
            Self::Slaq(SlaqSettings::default()),
            Self::Srtf,
            Self::Fifo,
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

    /// See [`Policy::priorities`].
    pub fn priorities(&self) -> Priorities {
        self.build().priorities()
    }

    /// See [`Policy::sharing`].
    pub fn sharing(&self) -> Sharing {
        self.build().sharing()
    }

    /// See [`Policy::profiles_types`].
    pub fn profiles_types(&self) -> bool {
        self.build().profiles_types()
    }

    /// See [`Policy::needs_oracle`].
    pub fn needs_oracle(&self) -> bool {
        self.build().needs_oracle()
    }
}

/// Refuses settings of a policy that has none; by itself it would take any.
#[cfg(feature = "serde")]
fn no_settings<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NoSettings {}
    serde::Deserialize::deserialize(deserializer).map(|NoSettings {}| ())
}

/// A setting that no plan can be made with.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} {value}: expected {accepted}")]
pub struct PolicySettingError {
    /// Which setting.
    pub name: &'static str,
    /// What it said.
    pub value: f64,
    /// What would be accepted.
    pub accepted: &'static str,
}

/// A policy that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown policy {name:?}: expected {accepted}")]
pub struct UnknownPolicy {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub accepted: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_accepted_and_nonsense_is_named() {
        assert!(PolicySettings::all().iter().all(|settings| settings.check().is_ok()));
        let unfair = PolicySettings::Pollux(PolluxSettings { fairness: f64::NAN, ..PolluxSettings::default() });
        assert_eq!(unfair.check().unwrap_err().to_string(), "fairness NaN: expected numbers up to 10, -inf included");
        let timid = PolicySettings::Castor(CastorSettings { profile_limit: 0.5, ..CastorSettings::default() });
        assert_eq!(timid.check().unwrap_err().to_string(), "profile_limit 0.5: expected 1 or more");
        let hasty = PolicySettings::Gandiva(GandivaSettings { quantum_s: -1.0, ..GandivaSettings::default() });
        assert_eq!(hasty.check().unwrap_err().to_string(), "quantum_s -1: expected 0 or more");
        let harsh = PolicySettings::AntMan(AntManSettings { slowdown_max: f64::NAN, ..AntManSettings::default() });
        assert_eq!(harsh.check().unwrap_err().to_string(), "slowdown_max NaN: expected a share from 0 to 1");
    }
}
