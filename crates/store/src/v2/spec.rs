use std::collections::BTreeMap;
use std::path::PathBuf;

use pollux_job::{Dependency as JobDependency, JobId, JobSpec, Secret};
use serde::{Deserialize, Serialize};

use super::words;

words! {
    /// How a job may be moved and resized.
    Flexibility is pollux_job::Flexibility { Elastic, NonPreemptible, Rigid }
}

words! {
    /// What comes and goes as one where replicas are pods.
    PodsPer is pollux_job::PodsPer { Replica, Node }
}

impl PodsPer {
    /// As it was before it could be chosen.
    pub(crate) const fn before() -> Self {
        Self::Replica
    }

    const fn is_before(&self) -> bool {
        matches!(self, Self::Replica)
    }
}

words! {
    /// How a job has to end before another may start.
    After is pollux_job::After { Success, End }
}

/// How long a job is to train.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Epochs(u32),
    BaselineSteps(u64),
}

/// A job that has to end before another may start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Dependency {
    job: u64,
    after: After,
}

/// What a user asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) owner: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) command: Vec<String>,
    #[serde(default, skip_serializing_if = "is_nowhere")]
    pub(crate) working_dir: PathBuf,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) replicas: u32,
    pub(crate) replicas_min: u32,
    pub(crate) replicas_max: Option<u32>,
    pub(crate) gpus_per_replica: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gpu_types: Vec<String>,
    pub(crate) flexibility: Flexibility,
    #[serde(default = "PodsPer::before", skip_serializing_if = "PodsPer::is_before")]
    pub(crate) pods_per: PodsPer,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) application: Option<String>,
    pub(crate) batch_size: Option<u32>,
    pub(crate) priority: i32,
    pub(crate) work: Option<Work>,
    pub(crate) retries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) depends_on: Vec<Dependency>,
}

fn is_nowhere(folder: &std::path::Path) -> bool {
    folder.as_os_str().is_empty()
}

impl From<pollux_job::Work> for Work {
    fn from(work: pollux_job::Work) -> Self {
        match work {
            pollux_job::Work::Epochs(epochs) => Self::Epochs(epochs),
            pollux_job::Work::BaselineSteps(steps) => Self::BaselineSteps(steps),
        }
    }
}

impl From<Work> for pollux_job::Work {
    fn from(work: Work) -> Self {
        match work {
            Work::Epochs(epochs) => Self::Epochs(epochs),
            Work::BaselineSteps(steps) => Self::BaselineSteps(steps),
        }
    }
}

impl From<JobDependency> for Dependency {
    fn from(dependency: JobDependency) -> Self {
        Self { job: dependency.job.0, after: dependency.after.into() }
    }
}

impl From<Dependency> for JobDependency {
    fn from(dependency: Dependency) -> Self {
        Self { job: JobId(dependency.job), after: dependency.after.into() }
    }
}

impl From<&JobSpec> for Spec {
    fn from(spec: &JobSpec) -> Self {
        let spec = spec.clone();
        Self {
            name: spec.name,
            owner: spec.owner,
            command: spec.command,
            working_dir: spec.working_dir,
            env: spec.env,
            secrets: spec.secrets.into_iter().map(|(name, value)| (name, value.reveal().to_owned())).collect(),
            replicas: spec.replicas,
            replicas_min: spec.replicas_min,
            replicas_max: spec.replicas_max,
            gpus_per_replica: spec.gpus_per_replica,
            cpus: spec.cpus,
            memory: spec.memory,
            gpu_types: spec.gpu_types,
            flexibility: spec.flexibility.into(),
            pods_per: spec.pods_per.into(),
            application: spec.application,
            batch_size: spec.batch_size,
            priority: spec.priority,
            work: spec.work.map(Into::into),
            retries: spec.retries,
            time_limit: spec.time_limit,
            depends_on: spec.depends_on.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<Spec> for JobSpec {
    fn from(spec: Spec) -> Self {
        Self {
            name: spec.name,
            owner: spec.owner,
            command: spec.command,
            working_dir: spec.working_dir,
            env: spec.env,
            secrets: spec.secrets.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
            replicas: spec.replicas,
            replicas_min: spec.replicas_min,
            replicas_max: spec.replicas_max,
            gpus_per_replica: spec.gpus_per_replica,
            cpus: spec.cpus,
            memory: spec.memory,
            gpu_types: spec.gpu_types,
            flexibility: spec.flexibility.into(),
            pods_per: spec.pods_per.into(),
            application: spec.application,
            batch_size: spec.batch_size,
            priority: spec.priority,
            work: spec.work.map(Into::into),
            retries: spec.retries,
            time_limit: spec.time_limit,
            depends_on: spec.depends_on.into_iter().map(Into::into).collect(),
        }
    }
}
