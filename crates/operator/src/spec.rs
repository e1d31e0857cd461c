//! From a resource to a job of the scheduler and what its pods are made from.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, NodeSelectorTerm, PersistentVolumeClaimVolumeSource, PodSpec, PodTemplateSpec,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use pollux_backend_kube::{JobPods, KubeSettings, asked_by};
use pollux_job::{Flexibility, JobSpec, PodsPer, Work, check_variable};
use serde_json::Value;

use crate::{PolluxJob, resource};

/// The variable by which a job knows its resource, also after a restart of the operator.
pub(crate) const UID_VARIABLE: &str = "KUBERNETES_RESOURCE_UID";
/// The volume of checkpoints in every pod.
const CHECKPOINTS: &str = "pollux-checkpoints";
const NO_CONTAINER: &str = "template.spec.containers: expected one that trains";

/// What its user wrote of pods, or where that makes no sense.
fn template(resource: &PolluxJob) -> Result<PodTemplateSpec, String> {
    serde_path_to_error::deserialize(&resource.spec.template).map_err(|error| match error.path().to_string().as_str() {
        "." => format!("template: {}", error.inner()),
        path => format!("template.{path}: {}", error.inner()),
    })
}

/// The job that a resource asks for, or why there can be none.
pub(crate) fn job_spec(resource: &PolluxJob, settings: &KubeSettings) -> Result<JobSpec, String> {
    let spec = &resource.spec;
    let template = template(resource)?;
    let main = main(&template).ok_or(NO_CONTAINER)?;
    let command: Vec<String> = main.command.iter().chain(&main.args).flatten().cloned().collect();
    if main.command.as_ref().is_none_or(Vec::is_empty) {
        return Err("template.spec.containers[0].command: expected the program and its arguments".to_owned());
    }
    // Those of CUDA are between the user and the device plugin.
    let mut variables = main.env.iter().flatten().map(|it| it.name.as_str()).filter(|name| !name.starts_with("CUDA_"));
    let refused = |error| format!("template.spec.containers[0].env: {error}");
    variables.try_for_each(check_variable).map_err(refused)?;
    let pod = template.spec.as_ref().ok_or(NO_CONTAINER)?;
    check_gpus(pod, &settings.gpu_resource)?;
    let asked = |name: &str| asked_by(pod, name).ceil() as u64;
    let job = JobSpec {
        owner: resource.namespace().unwrap_or_default(),
        command,
        working_dir: PathBuf::from(main.working_dir.as_deref().unwrap_or("/")),
        env: [(UID_VARIABLE.to_owned(), resource.uid().unwrap_or_default())].into(),
        replicas_min: spec.replicas_min,
        replicas_max: spec.replicas_max,
        gpus_per_replica: spec.gpus_per_replica,
        cpus: Some(asked("cpu")).filter(|cpus| *cpus > 0).map(|cpus| u32::try_from(cpus).unwrap_or(u32::MAX)),
        memory: Some(asked("memory")).filter(|memory| *memory > 0),
        pods_per: match spec.pods_per {
            resource::PodsPer::Node => PodsPer::Node,
            resource::PodsPer::Replica => PodsPer::Replica,
        },
        gpu_types: gpu_types(&spec.gpu_types, pod, &settings.type_label)?,
        application: spec.application.clone(),
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

/// GPUs are the first container's: whoever else took some would do so behind the scheduler's back.
fn check_gpus(pod: &PodSpec, gpu_resource: &str) -> Result<(), String> {
    let asks = |container: &Container| {
        let resources = container.resources.as_ref();
        resources
            .is_some_and(|it| [&it.requests, &it.limits].into_iter().flatten().any(|of| of.contains_key(gpu_resource)))
    };
    let others = pod.containers.iter().enumerate().skip(1).map(|(idx, it)| ("containers", idx, it));
    let init = pod.init_containers.iter().flatten().enumerate().map(|(idx, it)| ("initContainers", idx, it));
    match others.chain(init).find(|(_, _, container)| asks(container)) {
        Some((list, idx, _)) => Err(format!(
            "template.spec.{list}[{idx}].resources: {gpu_resource} is for the first container alone: expected none here"
        )),
        None => Ok(()),
    }
}

/// Types of GPU that a job may run on, by its own word and by what its pods require of nodes.
fn gpu_types(named: &[String], pod: &PodSpec, type_label: &str) -> Result<Vec<String>, String> {
    let mut types: Option<Vec<String>> = (!named.is_empty()).then(|| named.to_vec());
    for required in required_types(pod, type_label) {
        let narrowed = match types {
            Some(types) => types.into_iter().filter(|name| required.contains(name)).collect(),
            None => required,
        };
        if narrowed.is_empty() {
            return Err(format!(
                "template.spec requires a node whose {type_label} is none of gpuTypes: expected one of them"
            ));
        }
        types = Some(narrowed);
    }
    Ok(types.unwrap_or_default())
}

/// The values that a label must have: one of each list.
fn required_types(pod: &PodSpec, label: &str) -> Vec<Vec<String>> {
    let selected = pod.node_selector.as_ref().and_then(|labels| labels.get(label)).map(|value| vec![value.clone()]);
    let required = pod.affinity.as_ref().and_then(|it| it.node_affinity.as_ref());
    let required = required.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    // Terms are alternatives: only what all of them say is required.
    let alternatives = required.filter(|it| !it.node_selector_terms.is_empty()).and_then(|required| {
        let values = |term: &NodeSelectorTerm| {
            let expression =
                term.match_expressions.iter().flatten().find(|it| it.key == label && it.operator == "In")?;
            expression.values.clone()
        };
        required.node_selector_terms.iter().map(values).collect::<Option<Vec<_>>>().map(|lists| lists.concat())
    });
    selected.into_iter().chain(alternatives).collect()
}

fn main(template: &PodTemplateSpec) -> Option<&Container> {
    template.spec.as_ref()?.containers.first()
}

/// Whether checkpoints of a job outlive its pods: on a claim, or on a volume of the user's own. A rigid job that is never
/// moved needs none.
pub(crate) fn saves_where_others_find_it(resource: &PolluxJob, checkpoint_dir: &Path) -> bool {
    let checkpoint_dir = checkpoint_dir.to_string_lossy();
    let mounts = resource.spec.template.pointer("/spec/containers/0/volumeMounts").and_then(Value::as_array);
    resource.spec.checkpoint_claim.is_some()
        || resource.spec.flexibility == resource::Flexibility::Rigid
        || mounts.into_iter().flatten().any(|mount| mount["mountPath"] == *checkpoint_dir)
}

/// What the pods of a job are made from: its template, with a place for checkpoints.
pub(crate) fn pods(resource: &PolluxJob, checkpoint_dir: &Path) -> Result<JobPods, String> {
    let checkpoint_dir = checkpoint_dir.to_string_lossy();
    let mut template = template(resource)?;
    if let Some(spec) = &mut template.spec
        && let Some(main) = spec.containers.first_mut()
    {
        let mounts = main.volume_mounts.get_or_insert_default();
        if !mounts.iter().any(|mount| mount.mount_path == *checkpoint_dir) {
            mounts.push(VolumeMount {
                name: CHECKPOINTS.to_owned(),
                mount_path: checkpoint_dir.clone().into_owned(),
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
    Ok(JobPods { namespace: resource.namespace().unwrap_or_default(), owner: Some(owner), template })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job_spec(resource: &PolluxJob) -> Result<JobSpec, String> {
        super::job_spec(resource, &KubeSettings::default())
    }

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
            "application": "resnet50",
        })))
        .unwrap();
        let expected = JobSpec {
            owner: "vision".to_owned(),
            command: vec!["python".to_owned(), "train.py".to_owned()],
            working_dir: "/code".into(),
            env: [(UID_VARIABLE.to_owned(), "u-1".to_owned())].into(),
            replicas_max: Some(8),
            gpus_per_replica: 4,
            pods_per: PodsPer::Node,
            cpus: Some(2),
            memory: Some(1 << 30),
            gpu_types: vec!["A100".to_owned()],
            application: Some("resnet50".to_owned()),
            flexibility: Flexibility::NonPreemptible,
            priority: -1,
            work: Some(Work::Epochs(3)),
            time_limit: Some(60),
            ..JobSpec::new("resnet", 2)
        };
        assert_eq!(job, expected);
        let single = job_spec(&resource(json!({"template": container(json!({})), "podsPer": "Replica"}))).unwrap();
        assert_eq!(single.pods_per, PodsPer::Replica);
    }

    #[test]
    fn a_job_is_counted_with_all_that_its_pods_ask_for() {
        let asks = |cpu: &str| json!({"name": "a", "command": ["x"], "resources": {"requests": {"cpu": cpu}}});
        let limited = json!({"name": "b", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}});
        let counted = |first: &str| {
            let pod = json!({"initContainers": [asks(first)], "containers": [asks("500m"), limited]});
            let job = job_spec(&resource(json!({"template": {"spec": pod}}))).unwrap();
            (job.cpus, job.memory)
        };
        assert_eq!(counted("1"), (Some(3), Some(1 << 30)));
        assert_eq!(counted("4"), (Some(4), Some(1 << 30)), "what runs before the others may ask for more");
    }

    #[test]
    fn what_pods_require_of_the_type_of_their_gpus_is_planned_with() {
        const LABEL: &str = "nvidia.com/gpu.product";
        let term = |values: Value| json!({"matchExpressions": [{"key": LABEL, "operator": "In", "values": values}]});
        let any = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        let affinity = |terms: Value| {
            let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            json!({"affinity": {"nodeAffinity": terms}})
        };
        let types = |more: Value, named: Value| {
            let mut template = container(json!({}));
            template["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            job_spec(&resource(json!({"template": template, "gpuTypes": named}))).map(|job| job.gpu_types)
        };
        let selector = json!({"nodeSelector": {LABEL: "A100"}});
        assert_eq!(types(selector.clone(), json!([])).unwrap(), ["A100"]);
        assert_eq!(types(selector.clone(), json!(["T4", "A100"])).unwrap(), ["A100"]);
        let refused = types(selector, json!(["T4"])).unwrap_err();
        assert!(refused.contains("nvidia.com/gpu.product is none of gpuTypes"), "{refused}");
        let both = affinity(json!([term(json!(["A100"])), term(json!(["H100"]))]));
        assert_eq!(types(both.clone(), json!([])).unwrap(), ["A100", "H100"]);
        assert_eq!(types(both, json!(["H100"])).unwrap(), ["H100"]);
        assert_eq!(types(affinity(json!([term(json!(["A100"])), any])), json!([])).unwrap(), [""; 0]);
    }

    #[test]
    fn gpus_are_for_the_first_container_alone() {
        let mut template = container(json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}));
        assert!(job_spec(&resource(json!({ "template": template.clone() }))).is_ok());
        let asks = json!({"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        template["spec"]["initContainers"] = json!([asks.clone()]);
        let refused = |template: &Value| job_spec(&resource(json!({ "template": template }))).unwrap_err();
        assert!(
            refused(&template)
                .starts_with("template.spec.initContainers[0].resources: nvidia.com/gpu is for the first")
        );
        template["spec"]["initContainers"] = json!([]);
        template["spec"]["containers"].as_array_mut().unwrap().push(asks);
        assert!(refused(&template).starts_with("template.spec.containers[1].resources: "));
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
            (
                json!({"spec": {"containers": "x"}}),
                "template.spec.containers: invalid type: string \"x\", expected a sequence",
            ),
            (
                container(json!({"env": [{"name": "A", "value": 9}]})),
                "template.spec.containers[0].env[0].value: invalid type: integer `9`, expected a string",
            ),
            (json!({"metadata": 1}), "template.metadata: invalid type: integer `1`, expected ObjectMeta"),
        ] {
            assert_eq!(job_spec(&resource(json!({ "template": template }))).unwrap_err(), message);
        }
    }

    #[test]
    fn pods_have_a_place_for_checkpoints_and_are_deleted_with_their_resource() {
        let with = |claim: Value| {
            let pods = pods(
                &resource(json!({"template": container(json!({})), "checkpointClaim": claim})),
                "/checkpoints".as_ref(),
            )
            .unwrap();
            let owner = pods.owner.unwrap();
            assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("PolluxJob", "u-1"));
            serde_json::to_value(pods.template.spec.unwrap()).unwrap()
        };
        let spec = with(json!("disk"));
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/checkpoints");
        assert_eq!(spec["volumes"][0]["persistentVolumeClaim"]["claimName"], "disk");
        assert_eq!(with(Value::Null)["volumes"][0]["emptyDir"], json!({}));
        let saves = |spec: Value| saves_where_others_find_it(&resource(spec), "/checkpoints".as_ref());
        assert!(saves(json!({"template": container(json!({})), "checkpointClaim": "disk"})));
        assert!(!saves(json!({"template": container(json!({}))})));
        assert!(saves(json!({"template": container(json!({})), "flexibility": "Rigid"})));
        let own = json!({"volumeMounts": [{"name": "mine", "mountPath": "/checkpoints"}]});
        assert!(saves(json!({"template": container(own.clone())})));
        let own = pods(&resource(json!({ "template": container(own) })), "/checkpoints".as_ref()).unwrap();
        assert_eq!(own.template.spec.unwrap().volumes, None);
    }
}
