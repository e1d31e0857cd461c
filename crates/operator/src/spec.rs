//! From a resource to a job of the scheduler and what its pods are made from.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use pollux_backend_kube::{JobPods, amount};
use pollux_job::{Flexibility, JobSpec, Work, check_variable};

use crate::{PolluxJob, resource};

/// The variable by which a job knows its resource, also after a restart of the operator.
pub(crate) const UID_VARIABLE: &str = "KUBERNETES_RESOURCE_UID";
/// The volume of checkpoints in every pod.
const CHECKPOINTS: &str = "pollux-checkpoints";

/// The job that a resource asks for, or why there can be none.
pub(crate) fn job_spec(resource: &PolluxJob) -> Result<JobSpec, String> {
    let spec = &resource.spec;
    let main = main(&spec.template).ok_or("template.spec.containers: expected one that trains")?;
    let command: Vec<String> = main.command.iter().chain(&main.args).flatten().cloned().collect();
    if main.command.as_ref().is_none_or(Vec::is_empty) {
        return Err("template.spec.containers[0].command: expected the program and its arguments".to_owned());
    }
    // Those of CUDA are between the user and the device plugin.
    let mut variables = main.env.iter().flatten().map(|it| it.name.as_str()).filter(|name| !name.starts_with("CUDA_"));
    let refused = |error| format!("template.spec.containers[0].env: {error}");
    variables.try_for_each(check_variable).map_err(refused)?;
    let requests = main.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let asked =
        |name: &str| requests.and_then(|requests| amount(requests.get(name)?)).map(|amount| amount.ceil() as u64);
    let job = JobSpec {
        owner: resource.namespace().unwrap_or_default(),
        command,
        working_dir: PathBuf::from(main.working_dir.as_deref().unwrap_or("/")),
        env: [(UID_VARIABLE.to_owned(), resource.uid().unwrap_or_default())].into(),
        replicas_min: spec.replicas_min,
        replicas_max: spec.replicas_max,
        gpus_per_replica: spec.gpus_per_replica,
        cpus: asked("cpu").filter(|cpus| *cpus > 0).map(|cpus| u32::try_from(cpus).unwrap_or(u32::MAX)),
        memory: asked("memory").filter(|memory| *memory > 0),
        gpu_types: spec.gpu_types.clone(),
        flexibility: match spec.flexibility {
            resource::Flexibility::Elastic => Flexibility::Elastic,
            resource::Flexibility::NonPreemptible => Flexibility::NonPreemptible,
            resource::Flexibility::Rigid => Flexibility::Rigid,
        },
        batch_size: spec.batch_size,
        priority: spec.priority,
        work: spec.work.and_then(|work| work.epochs.map(Work::Epochs).or(work.baseline_steps.map(Work::BaselineSteps))),
        retries: spec.retries,
        time_limit: spec.time_limit,
        ..JobSpec::new(&resource.name_any(), spec.replicas.unwrap_or(spec.replicas_min))
    };
    job.check().map_err(|error| error.to_string())?;
    Ok(job)
}

fn main(template: &PodTemplateSpec) -> Option<&Container> {
    template.spec.as_ref()?.containers.first()
}

/// Whether checkpoints of a job outlive its pods: on a claim, or on a volume of the user's own. A rigid job that is never
/// moved needs none.
pub(crate) fn saves_where_others_find_it(resource: &PolluxJob, checkpoint_dir: &str) -> bool {
    let mounts = main(&resource.spec.template).and_then(|main| main.volume_mounts.as_deref()).unwrap_or_default();
    resource.spec.checkpoint_claim.is_some()
        || resource.spec.flexibility == resource::Flexibility::Rigid
        || mounts.iter().any(|mount| mount.mount_path == checkpoint_dir)
}

/// What the pods of a job are made from: its template, with a place for checkpoints.
pub(crate) fn pods(resource: &PolluxJob, checkpoint_dir: &str) -> JobPods {
    let mut template = resource.spec.template.clone();
    if let Some(spec) = &mut template.spec
        && let Some(main) = spec.containers.first_mut()
    {
        let mounts = main.volume_mounts.get_or_insert_default();
        if !mounts.iter().any(|mount| mount.mount_path == checkpoint_dir) {
            mounts.push(VolumeMount {
                name: CHECKPOINTS.to_owned(),
                mount_path: checkpoint_dir.to_owned(),
                ..VolumeMount::default()
            });
            let claim = resource.spec.checkpoint_claim.clone();
            spec.volumes.get_or_insert_default().push(Volume {
                name: CHECKPOINTS.to_owned(),
                empty_dir: claim.is_none().then(EmptyDirVolumeSource::default),
                persistent_volume_claim: claim
                    .map(|claim_name| PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
                ..Volume::default()
            });
        }
    }
    let owner = OwnerReference {
        api_version: PolluxJob::api_version(&()).into_owned(),
        kind: PolluxJob::kind(&()).into_owned(),
        name: resource.name_any(),
        uid: resource.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    JobPods { namespace: resource.namespace().unwrap_or_default(), owner: Some(owner), template }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "it is what json! makes")]
    fn resource(spec: Value) -> PolluxJob {
        serde_json::from_value(json!({
            "apiVersion": "pollux.dev/v1alpha1", "kind": "PolluxJob",
            "metadata": {"name": "resnet", "namespace": "vision", "uid": "u-1"}, "spec": spec,
        }))
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is what json! makes")]
    fn container(more: Value) -> Value {
        let mut container = json!({"name": "main", "image": "torch", "command": ["python"], "args": ["train.py"]});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": {"containers": [container]}})
    }

    #[test]
    fn a_resource_is_a_job_with_the_same_fields() {
        let requests = json!({"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}, "workingDir": "/code"});
        let job = job_spec(&resource(json!({
            "template": container(requests), "replicas": 2, "replicasMax": 8, "gpusPerReplica": 4, "gpuTypes": ["A100"],
            "flexibility": "NonPreemptible", "priority": -1, "work": {"epochs": 3}, "timeLimit": 60,
        })))
        .unwrap();
        let expected = JobSpec {
            owner: "vision".to_owned(),
            command: vec!["python".to_owned(), "train.py".to_owned()],
            working_dir: "/code".into(),
            env: [(UID_VARIABLE.to_owned(), "u-1".to_owned())].into(),
            replicas_max: Some(8),
            gpus_per_replica: 4,
            cpus: Some(2),
            memory: Some(1 << 30),
            gpu_types: vec!["A100".to_owned()],
            flexibility: Flexibility::NonPreemptible,
            priority: -1,
            work: Some(Work::Epochs(3)),
            time_limit: Some(60),
            ..JobSpec::new("resnet", 2)
        };
        assert_eq!(job, expected);
    }

    #[test]
    fn a_template_that_cannot_be_run_as_it_is_written_is_refused_with_a_sentence() {
        for (template, message) in [
            (json!({"spec": {"containers": []}}), "template.spec.containers: expected one that trains"),
            (
                json!({"spec": {"containers": [{"name": "main"}]}}),
                "template.spec.containers[0].command: expected the program and its arguments",
            ),
            (
                container(
                    json!({"env": [{"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}, {"name": "RANK", "value": "9"}]}),
                ),
                "template.spec.containers[0].env: variable \"RANK\" is set by Pollux for each replica: expected another name",
            ),
        ] {
            assert_eq!(job_spec(&resource(json!({ "template": template }))).unwrap_err(), message);
        }
    }

    #[test]
    fn pods_have_a_place_for_checkpoints_and_are_deleted_with_their_resource() {
        let with = |claim: Value| {
            let pods =
                pods(&resource(json!({"template": container(json!({})), "checkpointClaim": claim})), "/checkpoints");
            let owner = pods.owner.unwrap();
            assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("PolluxJob", "u-1"));
            serde_json::to_value(pods.template.spec.unwrap()).unwrap()
        };
        let spec = with(json!("disk"));
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/checkpoints");
        assert_eq!(spec["volumes"][0]["persistentVolumeClaim"]["claimName"], "disk");
        assert_eq!(with(Value::Null)["volumes"][0]["emptyDir"], json!({}));
        let saves = |spec: Value| saves_where_others_find_it(&resource(spec), "/checkpoints");
        assert!(saves(json!({"template": container(json!({})), "checkpointClaim": "disk"})));
        assert!(!saves(json!({"template": container(json!({}))})));
        assert!(saves(json!({"template": container(json!({})), "flexibility": "Rigid"})));
        let own = json!({"volumeMounts": [{"name": "mine", "mountPath": "/checkpoints"}]});
        assert!(saves(json!({"template": container(own.clone())})));
        let own = pods(&resource(json!({ "template": container(own) })), "/checkpoints");
        assert_eq!(own.template.spec.unwrap().volumes, None);
    }
}
