use clap::Args;
use pollux_job::{JobSpec, Work, bytes, seconds};

use crate::usage::whole;

/// How large a job is and how long it trains.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizeArgs {
    /// Replicas to start with, if that many fit; a rigid job gets exactly this many [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) replicas: Option<u32>,

    /// Minimum number of replicas [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) replicas_min: Option<u32>,

    /// Maximum number of replicas
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) replicas_max: Option<u32>,

    /// GPUs of each replica, always on one node, for programs that use several GPUs by themselves [default: 1]
    #[arg(long, visible_alias = "gpus", value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) gpus_per_replica: Option<u32>,

    /// CPUs of each replica [default: not counted]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) cpus: Option<u32>,

    /// Memory of each replica, such as 16G [default: not counted]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = bytes)]
    pub(crate) memory: Option<u64>,

    /// Types of GPU it may run on, by their names as `pollux nodes` shows them [default: any]
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub(crate) gpu_types: Option<Vec<String>>,

    /// Total batch, for policies that leave it to users
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) batch_size: Option<u32>,

    /// Number of passes over the data
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "baseline_steps")]
    #[arg(value_parser = whole(1..=u32::MAX, FROM_ONE))]
    pub(crate) epochs: Option<u32>,

    /// Number of steps, if it trained at the baseline batch size
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole(1..=u64::MAX, "expected whole numbers from 1"))]
    pub(crate) baseline_steps: Option<u64>,

    /// Stop it after it has had GPUs for this long, such as 8h or 1h30m
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) time_limit: Option<u64>,
}

const FROM_ONE: &str = "expected whole numbers from 1 to 4294967295";

impl SizeArgs {
    /// How long it trains, if that is said.
    pub(crate) fn work(&self) -> Option<Work> {
        self.epochs.map(Work::Epochs).or(self.baseline_steps.map(Work::BaselineSteps))
    }

    /// What is said goes before what the specification has.
    pub(crate) fn apply(&self, spec: &mut JobSpec) {
        spec.replicas_min = self.replicas_min.unwrap_or(spec.replicas_min);
        spec.replicas = self.replicas.unwrap_or(spec.replicas);
        spec.replicas_max = self.replicas_max.or(spec.replicas_max);
        spec.gpus_per_replica = self.gpus_per_replica.unwrap_or(spec.gpus_per_replica);
        spec.cpus = self.cpus.or(spec.cpus);
        spec.memory = self.memory.or(spec.memory);
        if let Some(types) = &self.gpu_types {
            spec.gpu_types.clone_from(types);
        }
        spec.batch_size = self.batch_size.or(spec.batch_size);
        spec.work = self.work().or(spec.work);
        spec.time_limit = self.time_limit.or(spec.time_limit);
    }
}
