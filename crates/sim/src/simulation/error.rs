use pollux_engine::SettingsError;
use pollux_policy::AutoscalerSettingError;
use thiserror::Error;

use super::run::TIME_MAX_YEARS;
use super::settings::SettingError;
use crate::ApplicationName;

/// Why a simulation could not be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A setting that makes no sense.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Settings that the engine refuses.
    #[error(transparent)]
    Engine(#[from] SettingsError),
    /// Settings that the autoscaler refuses.
    #[error(transparent)]
    Autoscaler(#[from] AutoscalerSettingError),
    /// A job that can never run.
    #[error("job {job} asks for {requested} replicas; expected up to the {room} that fit the cluster")]
    TooLarge {
        /// Its name.
        job: String,
        /// Replicas it asks for.
        requested: u32,
        /// Replicas there is room for.
        room: u32,
    },
    /// Types of GPU that are said to differ, where nothing is known of any.
    #[error("GPU types {types}; expected one type, because what is known of the jobs tells none apart")]
    OneType {
        /// As the cluster has them.
        types: String,
    },
    /// A type of GPU that no application is known on.
    #[error("gpu_type {gpu_type}; expected one that the jobs were measured on: {known}")]
    UnknownType {
        /// As the cluster has it.
        gpu_type: String,
        /// Those that are known.
        known: String,
    },
    /// Nodes of no type, where all that is known is of some type.
    #[error(
        "nodes without a gpu_type; expected a cluster file whose groups have one that the jobs were measured on: {known}"
    )]
    UnnamedType {
        /// Those that are known.
        known: String,
    },
    /// A job that may run only where there is nothing.
    #[error("job {job} may run on {gpu_types} only; expected a type of GPU that the cluster has")]
    AbsentTypes {
        /// Its name.
        job: String,
        /// Where it may run.
        gpu_types: String,
    },
    /// A job whose application is known on other types of GPU only.
    #[error(
        "job {job} trains {application}, which was measured on no GPU type of the cluster; expected one where it was"
    )]
    NeverMeasured {
        /// Its name.
        job: String,
        /// What it trains.
        application: ApplicationName,
    },
    /// A batch that cannot be trained with on the GPUs asked for.
    #[error(
        "job {job} asks for batch {batch_size} at {replicas} replicas; expected batches of {application} up to {max}"
    )]
    Batch {
        /// Its name.
        job: String,
        /// What it trains.
        application: ApplicationName,
        /// GPUs it asks for.
        replicas: u32,
        /// Batch it asks for.
        batch_size: u32,
        /// The largest that its application trains with.
        max: u32,
    },
    /// The policy made a plan that cannot be used.
    #[error("the policy made a plan that cannot be used: {0}")]
    Plan(String),
    /// Jobs that never end.
    #[error("{left} jobs did not end within {TIME_MAX_YEARS} years of simulated time")]
    Endless {
        /// How many.
        left: usize,
    },
}
