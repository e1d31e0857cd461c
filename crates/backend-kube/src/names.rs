//! How our objects are known: names, labels, annotations.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pollux_backend::{Epoch, ReplicaId};
use pollux_policy::JobId;

/// Label with the number of a pod's job.
pub const JOB_LABEL: &str = "pollux.dev/job";
/// Label with the number of a pod's replica; of several the first. Each of the others has a label of its own.
pub const REPLICA_LABEL: &str = "pollux.dev/replica";
/// Annotation with the epoch of the scheduler that ordered a pod.
pub const EPOCH_ANNOTATION: &str = "pollux.dev/epoch";
/// Annotation with the authorities that vouch for the scheduler, as PEM.
pub const AUTHORITY_ANNOTATION: &str = "pollux.dev/authority";
/// Label that says whose a pod is, where several schedulers share a cluster.
pub const INSTANCE_LABEL: &str = "pollux.dev/instance";
/// What holds a pod back until everything that it needs is there.
pub const GATE: &str = "pollux.dev/placement";
/// What keeps a pod that others have deleted until its end was seen.
pub const FINALIZER: &str = "pollux.dev/release";
/// Numbers of jobs and replicas are below: nobody has ordered so many, and what says another is not ours.
pub const NUMBER_END: u64 = 1 << 40;
/// Who we are to the API server.
pub const MANAGER: &str = "pollux";

/// The name of a replica's pod. It follows from the order, so that a second start finds the first.
pub(crate) fn pod_name(job: JobId, replica: ReplicaId) -> String {
    format!("pollux-{}-{}", job.0, replica.0)
}

/// The job of a pod, by its name; of a pod that is none of ours nothing.
#[must_use]
pub fn job_of_pod(name: &str) -> Option<JobId> {
    let (job, replica) = name.strip_prefix("pollux-")?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(job) && is_number(replica)).then(|| job.parse().ok().map(JobId))?
}

/// The job that a pod's label says.
pub(crate) fn job_of(pod: &Pod) -> Option<JobId> {
    number(pod.labels().get(JOB_LABEL)).map(JobId)
}

/// The label of a replica that is not the first of its pod. It says nothing more.
pub(crate) fn replica_label(replica: ReplicaId) -> String {
    format!("{REPLICA_LABEL}-{}", replica.0)
}

/// The first replica of a pod, if it has one.
pub(crate) fn first_replica(pod: &Pod) -> Option<ReplicaId> {
    number(pod.labels().get(REPLICA_LABEL)).map(ReplicaId)
}

/// All replicas of a pod.
pub(crate) fn replicas_of(pod: &Pod) -> Vec<ReplicaId> {
    let other = |name: &String| name.strip_prefix(REPLICA_LABEL)?.strip_prefix('-')?.parse().ok().map(ReplicaId);
    first_replica(pod).into_iter().chain(pod.labels().keys().filter_map(other)).collect()
}

/// A number from a label or annotation.
pub(crate) fn number(text: Option<&String>) -> Option<u64> {
    text?.parse().ok()
}

/// An epoch as it is kept.
pub(crate) fn epoch(text: Option<&String>) -> Option<Epoch> {
    number(text).map(Epoch)
}
