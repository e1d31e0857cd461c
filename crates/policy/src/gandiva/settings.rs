/// Settings of [`PolicySettings::Gandiva`](crate::PolicySettings::Gandiva).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct GandivaSettings {
    /// Seconds that a job keeps its GPUs at least while others wait; shorter lets everybody on sooner and suspends more.
    pub quantum_s: f64,
    /// What two jobs on the same GPUs must do together, each against itself alone; above 2 packs nobody.
    pub packing_rate_min: f64,
    /// Jobs moved onto fewer nodes in a round.
    pub migrations_max: u32,
    /// Share by which a migration or more GPUs must make a job faster.
    pub gain_min: f64,
    /// Whether all jobs grow into idle GPUs; otherwise only those of priorities below 0.
    pub grow_all: bool,
}

impl Default for GandivaSettings {
    fn default() -> Self {
        Self { quantum_s: 60.0, packing_rate_min: 1.1, migrations_max: 1, gain_min: 0.05, grow_all: false }
    }
}
