//! Format 1, of version 0.1: read, and never written any more. Here is what differs from format 2; the rest was the same.
//!
//! It numbered types of GPU in the order in which their nodes came, so that nodes have to be read first.

mod journal;
mod rows;
mod snapshot;

pub(crate) use journal::Record;
pub(crate) use rows::{Group, Node, Request, Summary};
pub(crate) use snapshot::Snapshot;

use pollux_model::{BatchLimits, LossCurve, NoiseStatistics, ThroughputModel};
use serde::Deserialize;

use crate::NodeRow;
use crate::v2::{self, GpuTypeName};

/// The types of GPU by their numbers.
#[derive(Debug, Default)]
pub(crate) struct GpuTypes {
    names: Vec<String>,
}

impl GpuTypes {
    /// Notes a node; they come in the order of their numbers.
    pub(crate) fn learn(&mut self, node: &NodeRow) {
        if !self.names.contains(&node.gpu_type) {
            self.names.push(node.gpu_type.clone());
        }
    }

    fn all(&self) -> Vec<GpuTypeName> {
        self.names.iter().map(|name| GpuTypeName::nearest(name)).collect()
    }

    fn name(&self, number: u16) -> Option<GpuTypeName> {
        self.names.get(usize::from(number)).map(|name| GpuTypeName::nearest(name))
    }
}

/// What a user asked for, as far as the engine had to know.
#[derive(Debug, Deserialize)]
pub(crate) struct Spec {
    name: String,
    replicas_requested: u32,
    replicas_min: u32,
    replicas_max: u32,
    flexibility: v2::Flexibility,
    batch_size: Option<u32>,
    priority: i32,
    work: Option<v2::Work>,
    retries_max: u32,
}

impl From<Spec> for v2::Spec {
    fn from(spec: Spec) -> Self {
        Self {
            name: spec.name,
            owner: String::new(),
            command: Vec::new(),
            working_dir: std::path::PathBuf::new(),
            env: Default::default(),
            secrets: Default::default(),
            replicas: spec.replicas_requested,
            replicas_min: spec.replicas_min,
            replicas_max: Some(spec.replicas_max),
            gpus_per_replica: 1,
            cpus: None,
            memory: None,
            gpu_types: Vec::new(),
            flexibility: spec.flexibility,
            pods_per: v2::PodsPer::before(),
            application: None,
            batch_size: spec.batch_size,
            priority: spec.priority,
            work: spec.work,
            retries: spec.retries_max,
            time_limit: None,
            depends_on: Vec::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct ReceivedReport {
    at: u64,
    report: Report,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    limits: BatchLimits,
    types: Vec<TypeReport>,
    noise: Option<NoiseStatistics>,
    progress: v2::Progress,
    epoch_samples: Option<u64>,
    samples_per_s: Option<f64>,
    loss: Option<LossCurve>,
    tuning: Option<v2::Tuning>,
    learning_rate_factor: f64,
}

#[derive(Debug, Deserialize)]
struct TypeReport {
    gpu_type: u16,
    model: ThroughputModel,
    replicas_profiled: u32,
}

impl ReceivedReport {
    fn named(self, types: &GpuTypes) -> v2::ReceivedReport {
        v2::ReceivedReport { at: self.at, report: self.report.named(types) }
    }
}

impl Report {
    /// What was learned on a type that no node ever had is of no use.
    fn named(self, types: &GpuTypes) -> v2::Report {
        let learned = |learned: TypeReport| {
            let TypeReport { gpu_type, model, replicas_profiled } = learned;
            let gpu_type = types.name(gpu_type)?;
            Some(v2::TypeReport { gpu_type, model, replicas_profiled, local_batch_max: None })
        };
        let mut learned: Vec<v2::TypeReport> = self.types.into_iter().filter_map(learned).collect();
        learned.sort_by(|a, b| a.gpu_type.cmp(&b.gpu_type));
        v2::Report {
            limits: self.limits,
            types: learned,
            noise: self.noise,
            progress: self.progress,
            epoch_samples: self.epoch_samples,
            samples_per_s: self.samples_per_s,
            loss: self.loss,
            tuning: self.tuning,
            learning_rate_factor: self.learning_rate_factor,
        }
    }
}
