use std::collections::BTreeSet;

use pollux_job::{Dependency, JobId};
use pollux_model::GpuTypeName;
use pollux_policy::ReplicaResources;
use thiserror::Error;

use super::Request;
use crate::table::shown;
use crate::{ApplicationName, NodeGroup, TableError};

/// A simulation of more would be a mistake.
const JOBS_MAX: usize = 1_000_000;

/// A job as its user submits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadJob {
    /// Unique within the workload.
    pub name: String,
    /// Seconds from the start of the workload.
    pub submitted_s: u64,
    /// What it trains.
    pub application: ApplicationName,
    /// Replicas asked for; schedulers that choose themselves ignore it.
    pub requested_replicas: u32,
    /// Total batch asked for; likewise.
    pub requested_batch: u32,
    /// What each of its replicas needs.
    pub needs: ReplicaNeeds,
    /// Seconds that it may hold GPUs; then it is stopped.
    pub time_limit: Option<u64>,
    /// Jobs that have to end before it starts, numbered from 0 in the order of the workload; each of them earlier.
    pub depends_on: Vec<Dependency>,
}

impl WorkloadJob {
    /// A job without a name that is submitted at the start and asks for one replica and a batch of one.
    pub fn of(application: ApplicationName) -> Self {
        Self {
            name: String::new(),
            submitted_s: 0,
            application,
            requested_replicas: 1,
            requested_batch: 1,
            needs: ReplicaNeeds::default(),
            time_limit: None,
            depends_on: Vec::new(),
        }
    }
}

/// What a replica needs of its node. It trains as fast as the physics says of a replica, whatever it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaNeeds {
    /// GPUs, all on one node; at least 1.
    pub gpus_per_replica: u32,
    /// CPUs; not counted, if there are none.
    pub cpus: Option<u32>,
    /// Bytes of memory; not counted, if there are none.
    pub memory: Option<u64>,
    /// Types of GPU that it may run on; any, if there are none.
    pub gpu_types: Vec<String>,
}

impl Default for ReplicaNeeds {
    /// One GPU of any type.
    fn default() -> Self {
        Self { gpus_per_replica: 1, cpus: None, memory: None, gpu_types: Vec::new() }
    }
}

impl ReplicaNeeds {
    pub(crate) fn resources(&self) -> ReplicaResources {
        let (cpus, memory) = (self.cpus.unwrap_or(0), self.memory.unwrap_or(0));
        ReplicaResources { gpus: self.gpus_per_replica.max(1), cpus, memory }
    }

    /// Whether it may run on nodes of a group.
    pub(crate) fn allow(&self, group: &NodeGroup) -> bool {
        let own = group.type_name();
        self.gpu_types.is_empty() || self.gpu_types.iter().any(|name| GpuTypeName::nearest(name) == own)
    }
}

/// Jobs in order of submission: at least one, each with a name of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    name: String,
    seed: Option<u64>,
    jobs: Vec<WorkloadJob>,
}

/// Why a workload cannot be simulated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A file is missing or malformed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Nothing to do, or far too much.
    #[error("workload {name}: {jobs} jobs; expected 1 to {JOBS_MAX}")]
    JobCount {
        /// Of the workload.
        name: String,
        /// How many there were.
        jobs: usize,
    },
    /// A job that contradicts those before it, or itself.
    #[error("workload {workload}: job {job}: {field}; expected {accepted}")]
    Job {
        /// Name of the workload.
        workload: String,
        /// Name of the job, quoted.
        job: String,
        /// Which field.
        field: &'static str,
        /// What would be accepted.
        accepted: String,
    },
    /// A setting of the generator or of the sampling of a log.
    #[error("{name} {value}; expected {accepted}")]
    Setting {
        /// Which setting.
        name: &'static str,
        /// What it said.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
}

/// What is wrong with a job, so that a reader can say it with the line of a file.
pub(super) enum JobFault {
    Duplicate,
    OutOfOrder { before_s: u64 },
    NoReplicas,
    NoBatch,
    NoGpus,
    NoTime,
    LaterJob,
}

impl JobFault {
    pub(super) const fn field(&self) -> &'static str {
        match self {
            Self::Duplicate => "name",
            Self::OutOfOrder { .. } => "time",
            Self::NoReplicas => "num_replicas",
            Self::NoBatch => "batch_size",
            Self::NoGpus => "gpus_per_replica",
            Self::NoTime => "time_limit",
            Self::LaterJob => "depends_on",
        }
    }

    pub(super) fn accepted(&self) -> String {
        match self {
            Self::Duplicate => "a name that no earlier job has".to_owned(),
            Self::OutOfOrder { before_s } => format!("{before_s} or more, jobs come in order of time"),
            Self::NoReplicas | Self::NoBatch | Self::NoGpus | Self::NoTime => "1 or more".to_owned(),
            Self::LaterJob => "earlier jobs".to_owned(),
        }
    }
}

impl Workload {
    /// `seed` is what the workload was drawn with, if it was drawn.
    pub fn new(name: &str, seed: Option<u64>, jobs: Vec<WorkloadJob>) -> Result<Self, WorkloadError> {
        if !(1..=JOBS_MAX).contains(&jobs.len()) {
            return Err(WorkloadError::JobCount { name: name.to_owned(), jobs: jobs.len() });
        }
        if let Some((idx, fault)) = first_fault(&jobs) {
            return Err(WorkloadError::Job {
                workload: name.to_owned(),
                job: shown(&jobs[idx].name),
                field: fault.field(),
                accepted: fault.accepted(),
            });
        }
        Ok(Self { name: name.to_owned(), seed, jobs })
    }

    /// What reports call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The seed it was drawn with, if it was drawn.
    pub const fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// In order of submission.
    pub fn jobs(&self) -> &[WorkloadJob] {
        &self.jobs
    }
}

/// The first job that may not stand where it stands.
pub(super) fn first_fault(jobs: &[WorkloadJob]) -> Option<(usize, JobFault)> {
    let mut names = BTreeSet::new();
    let mut before_s = 0;
    for (idx, job) in jobs.iter().enumerate() {
        let fault = if !names.insert(job.name.as_str()) {
            JobFault::Duplicate
        } else if job.submitted_s < before_s {
            JobFault::OutOfOrder { before_s }
        } else if job.requested_replicas == 0 {
            JobFault::NoReplicas
        } else if job.requested_batch == 0 {
            JobFault::NoBatch
        } else if job.needs.gpus_per_replica == 0 {
            JobFault::NoGpus
        } else if job.time_limit == Some(0) {
            JobFault::NoTime
        } else if job.depends_on.iter().any(|dependency| dependency.job >= JobId(idx as u64)) {
            JobFault::LaterJob
        } else {
            before_s = job.submitted_s;
            continue;
        };
        return Some((idx, fault));
    }
    None
}

/// A job that was drawn and not yet named.
pub(super) struct Arrival {
    pub(super) submitted_s: u64,
    pub(super) application: ApplicationName,
    pub(super) request: Request,
}

/// Names jobs after their application and their place in the order of submission.
pub(super) fn named(mut arrivals: Vec<Arrival>) -> Vec<WorkloadJob> {
    arrivals.sort_by_key(|arrival| arrival.submitted_s);
    let job = |(idx, Arrival { submitted_s, application, request })| WorkloadJob {
        name: format!("{application}-{idx}"),
        submitted_s,
        requested_replicas: request.replicas,
        requested_batch: request.batch_size,
        ..WorkloadJob::of(application)
    };
    arrivals.into_iter().enumerate().map(job).collect()
}
