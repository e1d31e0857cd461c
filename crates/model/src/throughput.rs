//! Seconds per step as a function of shape and batch.
//!
//! A new kind of parallelism is one arm of [`Parallelism`] and of [`ThroughputModel`]; nothing outside this crate
//! matches on them.

use std::fmt;

use crate::{ModelError, Shape};

/// The smallest value an overhead or a slope may take, in seconds.
pub(crate) const PARAM_MIN_S: f64 = 1e-8;
/// The largest value a parameter of a given model may take: a step of thirty years is a mistake.
pub(crate) const PARAM_MAX_S: f64 = 1e9;
pub(crate) const GAMMA_MIN: f64 = 1.0;
pub(crate) const GAMMA_MAX: f64 = 10.0;

/// How a job spreads over its GPUs, which decides what its steps cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Parallelism {
    /// Replicated parameters: gradients are reduced once per step and accumulation steps stay local.
    #[default]
    DataParallel,
    /// Sharded parameters (FSDP, `ZeRO`-3): every micro-batch communicates, so accumulation hides nothing.
    Sharded,
}

impl Parallelism {
    /// The model of this kind with the given parameters.
    pub fn model(self, params: StepParams) -> Result<ThroughputModel, ModelError> {
        params.check()?;
        Ok(match self {
            Self::DataParallel => ThroughputModel::DataParallel(params),
            Self::Sharded => ThroughputModel::Sharded(params),
        })
    }
}

impl fmt::Display for Parallelism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DataParallel => "data-parallel",
            Self::Sharded => "sharded",
        })
    }
}

/// A fitted throughput model: plain data that travels in reports and checkpoints.
///
/// The search for the best batch is exact because every arm keeps two promises: both step times are positive,
/// non-decreasing and convex in the local batch, and cutting the same samples into more micro-batches, be they a fraction
/// more, is never faster.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "parallelism", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ThroughputModel {
    /// See [`Parallelism::DataParallel`].
    DataParallel(StepParams),
    /// See [`Parallelism::Sharded`].
    Sharded(StepParams),
}

impl ThroughputModel {
    /// What to assume before a single step was measured: that fewer samples take less time.
    pub const UNMEASURED: Self = Self::DataParallel(StepParams::from_array([1.0; 7]));

    /// Seconds of a micro-batch that only accumulates gradients.
    pub fn micro_step_s(&self, shape: Shape, local_batch: f64) -> f64 {
        match self {
            Self::DataParallel(params) => params.compute_s(local_batch),
            Self::Sharded(params) => params.overlapped_s(shape, local_batch),
        }
    }

    /// Seconds of the micro-batch that ends a step: its compute, the synchronisation, and their overlap.
    pub fn final_step_s(&self, shape: Shape, local_batch: f64) -> f64 {
        match self {
            Self::DataParallel(params) | Self::Sharded(params) => params.overlapped_s(shape, local_batch),
        }
    }

    /// Seconds of a whole optimiser step, the paper's `T_iter` (equation 11).
    pub fn step_s(&self, shape: Shape, local_batch: f64, accumulation_steps: f64) -> f64 {
        let micro_s = if accumulation_steps > 0.0 { self.micro_step_s(shape, local_batch) } else { 0.0 };
        accumulation_steps * micro_s + self.final_step_s(shape, local_batch)
    }

    /// The kind of parallelism it is a model of.
    pub const fn parallelism(&self) -> Parallelism {
        match self {
            Self::DataParallel(_) => Parallelism::DataParallel,
            Self::Sharded(_) => Parallelism::Sharded,
        }
    }

    /// The fitted parameters.
    pub fn params(&self) -> &StepParams {
        match self {
            Self::DataParallel(params) | Self::Sharded(params) => params,
        }
    }
}

/// Seven numbers that say what a micro-batch costs: `α` an overhead in seconds, `β` a slope, `γ` the overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawParams"))]
pub struct StepParams {
    /// `α_c`: seconds of compute that any micro-batch costs.
    pub alpha_compute: f64,
    /// `β_c`: seconds of compute per sample.
    pub beta_compute: f64,
    /// `α_n`: seconds to synchronise two replicas across nodes.
    pub alpha_internode: f64,
    /// `β_n`: seconds per further replica across nodes.
    pub beta_internode: f64,
    /// `α_r`: seconds to synchronise two replicas within a node.
    pub alpha_intranode: f64,
    /// `β_r`: seconds per further replica within a node.
    pub beta_intranode: f64,
    /// `γ`: 1 when compute and synchronisation follow each other, large when the longer hides the shorter.
    pub gamma: f64,
}

impl StepParams {
    /// In the order `α_c, β_c, α_n, β_n, α_r, β_r, γ`.
    pub const fn to_array(self) -> [f64; 7] {
        [
            self.alpha_compute,
            self.beta_compute,
            self.alpha_internode,
            self.beta_internode,
            self.alpha_intranode,
            self.beta_intranode,
            self.gamma,
        ]
    }

    /// From the order `α_c, β_c, α_n, β_n, α_r, β_r, γ`.
    pub const fn from_array(values: [f64; 7]) -> Self {
        let [alpha_compute, beta_compute, alpha_internode, beta_internode, alpha_intranode, beta_intranode, gamma] =
            values;
        Self { alpha_compute, beta_compute, alpha_internode, beta_internode, alpha_intranode, beta_intranode, gamma }
    }

    /// The nearest that a fit could return: overheads and slopes that became too small or too large are at their bounds.
    #[must_use]
    pub fn within_bounds(self) -> Self {
        let [alpha_compute, beta_compute, alpha_internode, beta_internode, alpha_intranode, beta_intranode, gamma] =
            self.to_array();
        let bounded = |value: f64| value.clamp(PARAM_MIN_S, PARAM_MAX_S);
        Self {
            alpha_compute: bounded(alpha_compute),
            beta_compute: bounded(beta_compute),
            alpha_internode: bounded(alpha_internode),
            beta_internode: bounded(beta_internode),
            alpha_intranode: bounded(alpha_intranode),
            beta_intranode: bounded(beta_intranode),
            gamma: gamma.clamp(GAMMA_MIN, GAMMA_MAX),
        }
    }

    /// Refuses parameters that no fit would return.
    pub fn check(&self) -> Result<(), ModelError> {
        let names =
            ["alpha_compute", "beta_compute", "alpha_internode", "beta_internode", "alpha_intranode", "beta_intranode"];
        for (name, value) in names.into_iter().zip(self.to_array()) {
            if !(PARAM_MIN_S..=PARAM_MAX_S).contains(&value) {
                return Err(ModelError::Parameter { name, value, accepted: "1e-8 to 1e9 seconds" });
            }
        }
        if !(GAMMA_MIN..=GAMMA_MAX).contains(&self.gamma) {
            return Err(ModelError::Parameter { name: "gamma", value: self.gamma, accepted: "1 to 10" });
        }
        Ok(())
    }

    /// `T_grad` (equation 9).
    pub fn compute_s(&self, local_batch: f64) -> f64 {
        self.alpha_compute + self.beta_compute * local_batch
    }

    /// `T_sync` (equation 10).
    pub fn sync_s(&self, shape: Shape) -> f64 {
        let further_replicas = f64::from(shape.replicas().saturating_sub(2));
        if shape.replicas() == 1 {
            0.0
        } else if shape.nodes() == 1 {
            self.alpha_intranode + self.beta_intranode * further_replicas
        } else {
            self.alpha_internode + self.beta_internode * further_replicas
        }
    }

    /// Compute and synchronisation of one micro-batch, partly hidden behind each other.
    pub fn overlapped_s(&self, shape: Shape, local_batch: f64) -> f64 {
        norm_gamma(self.compute_s(local_batch), self.sync_s(shape), self.gamma)
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawParams {
    alpha_compute: f64,
    beta_compute: f64,
    alpha_internode: f64,
    beta_internode: f64,
    alpha_intranode: f64,
    beta_intranode: f64,
    gamma: f64,
}

#[cfg(feature = "serde")]
impl TryFrom<RawParams> for StepParams {
    type Error = ModelError;

    fn try_from(raw: RawParams) -> Result<Self, ModelError> {
        let params = Self {
            alpha_compute: raw.alpha_compute,
            beta_compute: raw.beta_compute,
            alpha_internode: raw.alpha_internode,
            beta_internode: raw.beta_internode,
            alpha_intranode: raw.alpha_intranode,
            beta_intranode: raw.beta_intranode,
            gamma: raw.gamma,
        };
        params.check()?;
        Ok(params)
    }
}

/// `(a^γ + b^γ)^(1/γ)`, scaled by the larger term so that no power overflows.
fn norm_gamma(a: f64, b: f64, gamma: f64) -> f64 {
    let (small, large) = if a < b { (a, b) } else { (b, a) };
    if small == 0.0 {
        return large;
    }
    if gamma == 1.0 {
        return small + large;
    }
    large * (((small / large).powf(gamma)).ln_1p() / gamma).exp()
}
