use pollux_policy::PolicySettingError;
use thiserror::Error;

/// How a cluster is run. The policy has settings of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct EngineSettings {
    /// Seconds between rounds; they fall on multiples of it. Shorter follows reports sooner and restarts jobs more.
    pub round_interval_s: f64,
    /// Fewest seconds between two rounds, whatever happens: it bounds how often a job is resized.
    pub round_gap_min_s: f64,
    /// Whether arrivals, departures and changes of nodes bring the next round forward, also under a policy that does
    /// not ask for it.
    pub replans_on_events: bool,
    /// Seconds that a change of allocation is taken to cost before it was measured on the job itself.
    pub restart_cost_default_s: f64,
    /// Seconds within which a commanded group must train; longer where images are pulled over slow links.
    pub settle_timeout_s: f64,
    /// Seconds within which a commanded group must run at all, while it waits for something outside of the cluster.
    pub pending_timeout_s: f64,
    /// Times in a row that a job may fail because of machines before it is given up.
    pub machine_failures_max: u32,
    /// Seconds before the first retry of a failed job; each further one waits twice as long.
    pub backoff_first_s: f64,
    /// Longest wait before a retry.
    pub backoff_max_s: f64,
    /// Jobs that may wait or run at once.
    pub live_jobs_max: usize,
    /// Ended jobs that are remembered until they are taken; beyond, the one that ended first is forgotten.
    pub ended_jobs_max: usize,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            round_interval_s: 60.0,
            round_gap_min_s: 10.0,
            replans_on_events: false,
            restart_cost_default_s: 30.0,
            settle_timeout_s: 1800.0,
            pending_timeout_s: 86_400.0,
            machine_failures_max: 20,
            backoff_first_s: 10.0,
            backoff_max_s: 600.0,
            live_jobs_max: 100_000,
            ended_jobs_max: 10_000,
        }
    }
}

/// Settings that no cluster can be run with.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A setting of the policy.
    #[error(transparent)]
    Policy(#[from] PolicySettingError),
    /// Too short, too long or not a number.
    #[error("{name} {value}: expected {min} to {max} seconds")]
    Seconds {
        /// Which setting.
        name: &'static str,
        /// The value given.
        value: f64,
        /// Shortest accepted.
        min: f64,
        /// Longest accepted.
        max: f64,
    },
    /// A lower bound above its upper bound.
    #[error("{lower_name} {lower} is above {upper_name} {upper}")]
    Order {
        /// Name of the lower bound.
        lower_name: &'static str,
        /// Its value.
        lower: f64,
        /// Name of the upper bound.
        upper_name: &'static str,
        /// Its value.
        upper: f64,
    },
}

impl EngineSettings {
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        const YEAR_S: f64 = 31_536_000.0;
        let seconds = [
            ("round_interval_s", self.round_interval_s, 0.1),
            ("round_gap_min_s", self.round_gap_min_s, 0.0),
            ("restart_cost_default_s", self.restart_cost_default_s, 0.0),
            ("settle_timeout_s", self.settle_timeout_s, 1.0),
            ("pending_timeout_s", self.pending_timeout_s, 1.0),
            ("backoff_first_s", self.backoff_first_s, 0.1),
            ("backoff_max_s", self.backoff_max_s, 0.1),
        ];
        for (name, value, min) in seconds {
            if !(min..=YEAR_S).contains(&value) {
                return Err(SettingsError::Seconds { name, value, min, max: YEAR_S });
            }
        }
        let pairs = [
            ("round_gap_min_s", self.round_gap_min_s, "round_interval_s", self.round_interval_s),
            ("backoff_first_s", self.backoff_first_s, "backoff_max_s", self.backoff_max_s),
        ];
        for (lower_name, lower, upper_name, upper) in pairs {
            if lower > upper {
                return Err(SettingsError::Order { lower_name, lower, upper_name, upper });
            }
        }
        Ok(())
    }

    /// Seconds to wait before retry number `retry`, counted from 1.
    pub(crate) fn backoff_s(&self, retry: u32) -> f64 {
        // Jitter would spread retries that fail together; here they are spread by the rounds that place them.
        let doublings = i32::try_from(retry.saturating_sub(1)).unwrap_or(i32::MAX);
        (self.backoff_first_s * 2f64.powi(doublings)).min(self.backoff_max_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        let settings = EngineSettings::default();
        let waits: Vec<f64> = [1, 2, 3, 7, 8, u32::MAX].map(|retry| settings.backoff_s(retry)).to_vec();
        assert_eq!(waits, [10.0, 20.0, 40.0, 600.0, 600.0, 600.0]);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_their_values() {
        let default = EngineSettings::default();
        let message = |settings: EngineSettings| settings.check().unwrap_err().to_string();
        assert_eq!(
            message(EngineSettings { round_interval_s: f64::NAN, ..default }),
            "round_interval_s NaN: expected 0.1 to 31536000 seconds"
        );
        assert_eq!(
            message(EngineSettings { round_gap_min_s: 61.0, ..default }),
            "round_gap_min_s 61 is above round_interval_s 60"
        );
        assert_eq!(default.check(), Ok(()));
    }
}
