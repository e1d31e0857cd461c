use pollux_agent::AgentReport;
use pollux_model::{BatchLimits, LossCurve, NoiseStatistics, ThroughputModel};
use pollux_policy::Timestamp;
use serde::{Deserialize, Serialize};

use super::GpuTypeName;

/// The newest report of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReceivedReport {
    pub(crate) at: u64,
    pub(crate) report: Report,
}

/// What an agent has told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) limits: BatchLimits,
    pub(crate) types: Vec<TypeReport>,
    pub(crate) noise: Option<NoiseStatistics>,
    pub(crate) progress: Progress,
    pub(crate) epoch_samples: Option<u64>,
    pub(crate) samples_per_s: Option<f64>,
    pub(crate) loss: Option<LossCurve>,
    pub(crate) tuning: Option<Tuning>,
    pub(crate) learning_rate_factor: f64,
}

/// What was learned on one type of GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TypeReport {
    pub(crate) gpu_type: GpuTypeName,
    pub(crate) model: ThroughputModel,
    pub(crate) replicas_profiled: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) local_batch_max: Option<u32>,
}

/// How far a training is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Progress {
    steps: u64,
    samples: u64,
    epochs: u32,
    baseline_steps: f64,
}

/// What runs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Tuning {
    local_batch: u32,
    accumulation_steps: u32,
}

impl From<&pollux_engine::ReceivedReport> for ReceivedReport {
    fn from(received: &pollux_engine::ReceivedReport) -> Self {
        Self { at: received.at.0, report: (&received.report).into() }
    }
}

impl From<ReceivedReport> for pollux_engine::ReceivedReport {
    fn from(received: ReceivedReport) -> Self {
        Self { at: Timestamp(received.at), report: received.report.into() }
    }
}

impl From<&AgentReport> for Report {
    fn from(report: &AgentReport) -> Self {
        let learned = |learned: &pollux_agent::TypeReport| TypeReport {
            gpu_type: learned.gpu_type.clone(),
            model: learned.model,
            replicas_profiled: learned.replicas_profiled,
            local_batch_max: learned.local_batch_max,
        };
        let pollux_agent::Progress { steps, samples, epochs, baseline_steps } = report.progress;
        let tuning =
            |pollux_agent::Tuning { local_batch, accumulation_steps }| Tuning { local_batch, accumulation_steps };
        Self {
            limits: report.limits,
            types: report.types.iter().map(learned).collect(),
            noise: report.noise,
            progress: Progress { steps, samples, epochs, baseline_steps },
            epoch_samples: report.epoch_samples,
            samples_per_s: report.samples_per_s,
            loss: report.loss,
            tuning: report.tuning.map(tuning),
            learning_rate_factor: report.learning_rate_factor,
        }
    }
}

impl From<Report> for AgentReport {
    fn from(report: Report) -> Self {
        let learned = |learned: TypeReport| pollux_agent::TypeReport {
            gpu_type: learned.gpu_type,
            model: learned.model,
            replicas_profiled: learned.replicas_profiled,
            local_batch_max: learned.local_batch_max,
        };
        let Progress { steps, samples, epochs, baseline_steps } = report.progress;
        let tuning =
            |Tuning { local_batch, accumulation_steps }| pollux_agent::Tuning { local_batch, accumulation_steps };
        Self {
            limits: report.limits,
            types: report.types.into_iter().map(learned).collect(),
            noise: report.noise,
            progress: pollux_agent::Progress { steps, samples, epochs, baseline_steps },
            epoch_samples: report.epoch_samples,
            samples_per_s: report.samples_per_s,
            loss: report.loss,
            tuning: report.tuning.map(tuning),
            learning_rate_factor: report.learning_rate_factor,
        }
    }
}
