//! What users of a workload ask for, and what they get of it.

use pollux_job::{JobSpec, Work};
use pollux_model::{Batch, BatchMode};

use super::error::SimulationError;
use super::settings::SimulationSettings;
use crate::{ApplicationName, ApplicationSet, WorkloadJob};

/// Nobody is given more, as in the published runs.
pub(super) const REPLICAS_MAX: u32 = 64;

/// Refuses a job that could never run as its user asked.
pub(super) fn check_request(
    job: &WorkloadJob,
    settings: &SimulationSettings,
    applications: &ApplicationSet,
) -> Result<(), SimulationError> {
    let ((room, _), replicas) = (settings.room(&job.needs), job.requested_replicas);
    if replicas > room {
        return Err(SimulationError::TooLarge { job: job.name.clone(), requested: replicas, room });
    }
    let (application, batch_size) = (job.application, job.requested_batch);
    let limits = applications.get(application).limits();
    let fits = batch_size <= limits.batch_size_max() && Batch::fixed(limits, batch_size, replicas).is_some();
    if !settings.policy.adapts_batches() && !fits {
        let (job, max) = (job.name.clone(), limits.batch_size_max());
        return Err(SimulationError::Batch { job, application, replicas, batch_size, max });
    }
    Ok(())
}

/// What decides the batch of a job, under a policy that adapts batches or does not.
pub(super) fn batch_mode(job: &WorkloadJob, adapts: bool) -> BatchMode {
    match (adapts, job.application) {
        // As published: it is done in minutes on one GPU at its largest batch.
        (true, ApplicationName::Ncf) => BatchMode::Fixed { batch_size: Some(32_768) },
        (true | false, _) => BatchMode::of(adapts, Some(job.requested_batch)),
    }
}

/// Most replicas a job may have. As published, ncf is given one by policies that choose sizes.
pub(super) fn replicas_max(settings: &SimulationSettings, job: &WorkloadJob) -> u32 {
    match (settings.policy.adapts_batches() || settings.policy.needs_oracle(), job.application) {
        (true, ApplicationName::Ncf) => 1,
        _ => REPLICAS_MAX.max(job.requested_replicas),
    }
}

/// What the user of a job submits. As published, users who leave the batch to the scheduler leave the size to it, too:
/// their jobs begin with one replica.
pub(super) fn submitted_spec(
    job: &WorkloadJob,
    settings: &SimulationSettings,
    applications: &ApplicationSet,
) -> JobSpec {
    let replicas_max = replicas_max(settings, job);
    let epochs = applications.get(job.application).epochs();
    JobSpec {
        replicas: if settings.policy.adapts_batches() { 1 } else { job.requested_replicas.min(replicas_max) },
        replicas_max: Some(replicas_max),
        batch_size: Some(job.requested_batch),
        work: settings.declare_epochs.then_some(Work::Epochs(epochs)),
        gpus_per_replica: job.needs.gpus_per_replica,
        pods_per: settings.pods_per,
        cpus: job.needs.cpus,
        memory: job.needs.memory,
        gpu_types: job.needs.gpu_types.clone(),
        time_limit: job.time_limit,
        depends_on: job.depends_on.clone(),
        ..JobSpec::new(&job.name, 1)
    }
}
