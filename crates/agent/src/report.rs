use pollux_model::{BatchLimits, GpuTypeName, LossCurve, NoiseStatistics, ThroughputModel};

/// How to run the next steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tuning {
    /// Samples of one micro-batch on one replica.
    pub local_batch: u32,
    /// Micro-batches before the one that ends the step.
    pub accumulation_steps: u32,
}

/// How far the training is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Progress {
    /// Optimiser steps done.
    pub steps: u64,
    /// Samples seen.
    pub samples: u64,
    /// Epochs finished.
    pub epochs: u32,
    /// Statistical progress, in steps at the baseline batch.
    pub baseline_steps: f64,
}

/// What a scheduler may know of a job.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AgentReport {
    /// What the user allows.
    pub limits: BatchLimits,
    /// What was learned on each type of GPU, ordered by name.
    pub types: Vec<TypeReport>,
    /// Signal and noise of the gradients, once they can be trusted.
    pub noise: Option<NoiseStatistics>,
    /// How far the training is.
    pub progress: Progress,
    /// Samples of an epoch, where there are epochs.
    pub epoch_samples: Option<u64>,
    /// Samples per second lately, whoever else used its GPUs.
    pub samples_per_s: Option<f64>,
    /// How its loss falls, where the training tells it.
    pub loss: Option<LossCurve>,
    /// What is running.
    pub tuning: Option<Tuning>,
    /// Factor on the user's learning rate; 1 where a rule of the user's own gives none that can be used.
    pub learning_rate_factor: f64,
}

/// What was learned on one type of GPU.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TypeReport {
    /// The type.
    pub gpu_type: GpuTypeName,
    /// The last good fit.
    pub model: ThroughputModel,
    /// The most replicas that were measured.
    pub replicas_profiled: u32,
    /// The largest micro-batch that fits its memory; what the limits say, if left out.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub local_batch_max: Option<u32>,
}
