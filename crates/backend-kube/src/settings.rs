use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use pollux_policy::JobId;

/// How a cluster is used.
#[derive(Clone, Debug)]
pub struct KubeSettings {
    /// Where what is the scheduler's own is kept: its epoch.
    pub namespace: String,
    /// What sets one scheduler's objects apart from another's in the same namespace.
    pub instance: String,
    /// What a container asks for that needs GPUs.
    pub gpu_resource: String,
    /// The label of nodes that names the type of their GPUs.
    pub type_label: String,
    /// Nodes that are used: those with all of these labels.
    pub node_labels: BTreeMap<String, String>,
    /// The image that has the `pollux` command at [`KubeSettings::command`], for the supervisor in every pod.
    pub image: String,
    /// When that image is pulled.
    pub pull_policy: String,
    /// Where the command is in the image.
    pub command: String,
    /// Grace of a stop that says none: what the kubelet gives when it ends a pod by itself.
    pub grace: Duration,
    /// The authorities that vouch for the scheduler: pods find them at [`KubeSettings::AUTHORITY`].
    pub authorities: Option<TrustedAuthorities>,
    /// Whom tokens of pods are meant for: then pods find one at [`KubeSettings::TOKEN`].
    pub audience: Option<String>,
    /// Where checkpoints are in every pod.
    pub checkpoint_dir: PathBuf,
    /// Where the same volume is for the scheduler, if it has it: then checkpoints can be listed and deleted.
    pub checkpoints_mounted: Option<PathBuf>,
}

impl KubeSettings {
    /// The file of [`KubeSettings::authorities`] in every pod.
    pub const AUTHORITY: &str = "/pollux/pod-info/authority";
    /// The file of a token that the kubelet renews, in the container that trains.
    pub const TOKEN: &str = "/pollux/token/token";
}

impl Default for KubeSettings {
    fn default() -> Self {
        Self {
            namespace: "pollux".to_owned(),
            instance: "pollux".to_owned(),
            gpu_resource: "nvidia.com/gpu".to_owned(),
            type_label: "nvidia.com/gpu.product".to_owned(),
            node_labels: BTreeMap::new(),
            image: "pollux".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            command: "/bin/pollux".to_owned(),
            grace: Duration::from_secs(30),
            authorities: None,
            audience: None,
            checkpoint_dir: PathBuf::from("/pollux/checkpoints"),
            checkpoints_mounted: None,
        }
    }
}

/// Certificates of authorities, as PEM, which may be replaced while pods are made.
#[derive(Clone, Debug, Default)]
pub struct TrustedAuthorities(Arc<Mutex<String>>);

impl TrustedAuthorities {
    /// As they are now.
    pub fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has pods that are made from now on trust these.
    pub fn replace(&self, pem: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pem;
    }
}

/// What the pods of a job are made from.
#[derive(Clone, Debug)]
pub struct JobPods {
    /// Where they are.
    pub namespace: String,
    /// What they are deleted with.
    pub owner: Option<OwnerReference>,
    /// What its user wrote. The first container is the one that trains.
    pub template: PodTemplateSpec,
}

/// Knows what the pods of each job are made from.
pub trait PodTemplates: Send + Sync + fmt::Debug {
    /// Of this job, if it is known.
    fn of(&self, job: JobId) -> Option<JobPods>;
}
