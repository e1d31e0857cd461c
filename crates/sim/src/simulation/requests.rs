//! What users of a workload ask for, and what they get of it.

use std::collections::BTreeSet;

use pollux_job::{JobSpec, Work};
use pollux_model::{Batch, BatchMode, GpuTypeName};

use super::error::SimulationError;
use super::settings::SimulationSettings;
use crate::{ApplicationName, ApplicationSet, NodeGroup, ReplicaNeeds, WorkloadJob};

/// Nobody is given more, as in the published runs.
pub(super) const REPLICAS_MAX: u32 = 64;

/// Refuses nodes with GPUs of which nobody knows how fast jobs train there: that must not be guessed.
pub(super) fn check_types(settings: &SimulationSettings, applications: &ApplicationSet) -> Result<(), SimulationError> {
    let known = applications.gpu_types();
    let unnamed = GpuTypeName::default();
    let named = || known.iter().filter(|name| ***name != unnamed).map(|name| name.as_str());
    let names = || named().collect::<Vec<_>>().join(", ");
    if known.is_empty() {
        let types: BTreeSet<GpuTypeName> = settings.cluster.groups().iter().map(NodeGroup::type_name).collect();
        let text = types.iter().map(GpuTypeName::as_str).collect::<Vec<_>>().join(", ");
        return if types.len() > 1 { Err(SimulationError::OneType { types: text }) } else { Ok(()) };
    }
    for group in settings.cluster.groups() {
        match &group.gpu_type {
            None if applications.has_unnamed_type() => {}
            None => return Err(SimulationError::UnnamedType { known: names() }),
            Some(_) if known.contains(&group.type_name()) => {}
            Some(gpu_type) => return Err(SimulationError::UnknownType { gpu_type: gpu_type.clone(), known: names() }),
        }
    }
    Ok(())
}

/// What replicas need, where an application runs on some of the types only.
fn needs_of(job: &WorkloadJob, settings: &SimulationSettings, applications: &ApplicationSet) -> ReplicaNeeds {
    let types = applications.on_types(job.application);
    let runs_on = |group: &&NodeGroup| {
        group.gpu_type.is_none() || types.iter().any(|(gpu_type, _)| *gpu_type == group.type_name())
    };
    let groups = settings.cluster.groups();
    if types.is_empty() || groups.iter().all(|group| runs_on(&group)) {
        return job.needs.clone();
    }
    let allowed = groups.iter().filter(|group| job.needs.allow(group) && runs_on(group));
    let mut gpu_types: Vec<String> = allowed.map(|group| group.type_name().as_str().to_owned()).collect();
    gpu_types.dedup();
    ReplicaNeeds { gpu_types, ..job.needs.clone() }
}

/// Refuses a job that could never run as its user asked.
pub(super) fn check_request(
    job: &WorkloadJob,
    settings: &SimulationSettings,
    applications: &ApplicationSet,
) -> Result<(), SimulationError> {
    let needs = needs_of(job, settings, applications);
    let (job_name, gpu_types) = (job.name.clone(), job.needs.gpu_types.join(", "));
    if !job.needs.gpu_types.is_empty() && !settings.cluster.groups().iter().any(|group| job.needs.allow(group)) {
        return Err(SimulationError::AbsentTypes { job: job_name, gpu_types });
    }
    if needs.gpu_types.is_empty() && !settings.cluster.groups().iter().any(|group| needs.allow(group)) {
        return Err(SimulationError::NeverMeasured { job: job_name, application: job.application });
    }
    let (room, replicas) = (settings.room(&needs).0, requested_replicas(job, &needs, settings));
    if replicas > room || room == 0 {
        return Err(SimulationError::TooLarge { job: job_name, requested: replicas, room });
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

/// What its user asks for; where there are several types, at most what one of them has, because a job is on one at a time.
fn requested_replicas(job: &WorkloadJob, needs: &ReplicaNeeds, settings: &SimulationSettings) -> u32 {
    if settings.is_mixed() { job.requested_replicas.min(settings.room(needs).0) } else { job.requested_replicas }
}

/// What the user of a job submits. As published, users who leave the batch to the scheduler leave the size to it, too:
/// their jobs begin with one replica.
pub(super) fn submitted_spec(
    job: &WorkloadJob,
    settings: &SimulationSettings,
    applications: &ApplicationSet,
) -> JobSpec {
    let needs = needs_of(job, settings, applications);
    let replicas_max = replicas_max(settings, job);
    let requested = requested_replicas(job, &needs, settings);
    let epochs = applications.get(job.application).epochs();
    JobSpec {
        replicas: if settings.policy.adapts_batches() { 1 } else { requested.min(replicas_max) },
        replicas_max: Some(replicas_max),
        batch_size: Some(job.requested_batch),
        work: settings.declare_epochs.then_some(Work::Epochs(epochs)),
        gpus_per_replica: job.needs.gpus_per_replica,
        pods_per: settings.pods_per,
        application: Some(job.application.to_string()),
        cpus: job.needs.cpus,
        memory: job.needs.memory,
        gpu_types: needs.gpu_types,
        time_limit: job.time_limit,
        depends_on: job.depends_on.clone(),
        ..JobSpec::new(&job.name, 1)
    }
}
