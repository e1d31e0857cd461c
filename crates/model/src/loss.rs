/// How a training loss falls with progress: `1/(a·k + b) + c` after `k` steps at the baseline batch (Optimus, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct LossCurve {
    /// `a`: how fast it falls; at least 0.
    pub slope: f64,
    /// `b`: above 0; the loss starts at `1/b + c`.
    pub offset: f64,
    /// `c`: what it never falls below; at least 0.
    pub floor: f64,
}

impl LossCurve {
    /// The loss after so many steps at the baseline batch.
    pub fn at(&self, baseline_steps: f64) -> f64 {
        1.0 / (self.slope * baseline_steps + self.offset) + self.floor
    }
}
