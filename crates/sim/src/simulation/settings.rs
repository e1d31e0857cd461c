use pollux_policy::PolicySettings;
use thiserror::Error;

use crate::ClusterSpec;

/// What is simulated, beside the workload and the physics.
#[derive(Clone, Debug)]
pub struct SimulationSettings {
    /// Who decides.
    pub policy: PolicySettings,
    /// What reports call it: two settings of one policy are told apart by it.
    pub label: String,
    /// Where jobs run.
    pub cluster: ClusterSpec,
    /// Seconds between rounds.
    pub interval_s: f64,
    /// Seconds a job stands still when its allocation changes.
    pub restart_delay_s: f64,
    /// Seconds a preempted job stands still when it goes on exactly where it was, as it does where suspended jobs stay in
    /// the memory of their machines; otherwise that is a restart like any other.
    pub resume_delay_s: Option<f64>,
    /// Share of its speed that a multi-node job loses on a node that hosts another one.
    pub interference: f64,
    /// Whether users say how many epochs their jobs train.
    pub declare_epochs: bool,
    /// How nodes fail.
    pub failures: Failures,
    /// Whether to keep what every job had at every moment, for plots.
    pub record_series: bool,
}

/// How nodes fail: each at random moments, to come back after a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failures {
    /// Failures per node and day; 0 for none.
    pub per_node_day: f64,
    /// Seconds until a failed node is back.
    pub repair_s: f64,
    /// Seed of the moments.
    pub seed: u64,
}

impl Failures {
    /// Nothing fails.
    pub const NONE: Self = Self { per_node_day: 0.0, repair_s: 600.0, seed: 0 };
}

/// A setting that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} {value}; accepted: {accepted}")]
pub struct SettingError {
    /// Which.
    pub name: &'static str,
    /// What it said.
    pub value: f64,
    /// What would be accepted.
    pub accepted: &'static str,
}

impl SimulationSettings {
    /// The published setting: 60 s rounds, 30 s per change, no interference, no failures.
    pub fn new(policy: PolicySettings, cluster: ClusterSpec) -> Self {
        Self {
            label: policy.name().to_owned(),
            policy,
            cluster,
            interval_s: 60.0,
            restart_delay_s: 30.0,
            resume_delay_s: None,
            interference: 0.0,
            declare_epochs: true,
            failures: Failures::NONE,
            record_series: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), SettingError> {
        let within = |name, value: f64, range: std::ops::RangeInclusive<f64>, accepted| {
            if range.contains(&value) { Ok(()) } else { Err(SettingError { name, value, accepted }) }
        };
        within("interval", self.interval_s, 1.0..=86_400.0, "1 to 86400 seconds")?;
        within("restart delay", self.restart_delay_s, 0.0..=86_400.0, "0 to 86400 seconds")?;
        within("resume delay", self.resume_delay_s.unwrap_or(0.0), 0.0..=86_400.0, "0 to 86400 seconds")?;
        within("interference", self.interference, 0.0..=0.99, "a share from 0 to 0.99")?;
        within("failures per node and day", self.failures.per_node_day, 0.0..=1000.0, "0 to 1000")?;
        within("repair time", self.failures.repair_s, 1.0..=1e7, "1 to 1e7 seconds")
    }
}
