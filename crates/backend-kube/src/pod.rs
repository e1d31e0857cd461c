//! From an order to a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, EnvFromSource, EnvVar,
    EnvVarSource, ExecAction, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectFieldSelector, Pod, PodSchedulingGate, PodSpec, Probe, ProjectedVolumeSource, ResourceRequirements, Secret,
    SecretEnvSource, ServiceAccountTokenProjection, Toleration, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pollux_backend::ReplicaOrder;
use pollux_supervisor::Supervision;

use crate::names::{
    AUTHORITY_ANNOTATION, EPOCH_ANNOTATION, FINALIZER, GATE, INSTANCE_LABEL, JOB_LABEL, REPLICA_LABEL, pod_name,
};
use crate::{JobPods, KubeSettings};

/// Volumes that every pod of ours has.
const TOOLS: &str = "pollux-tools";
const POD_INFO: &str = "pollux-pod-info";
const TOKEN: &str = "pollux-token";
/// The folder and the name of the file at [`KubeSettings::TOKEN`].
const TOKEN_FOLDER: &str = "/pollux/token";
const TOKEN_FILE: &str = "token";
/// The kubelet renews a token long before.
const TOKEN_LIFETIME_S: i64 = 3600;

/// Variables that are a pod's own.
const HOST_ADDRESS: &str = "POLLUX_HOST_ADDRESS";
const CHECKPOINTS: &str = "POLLUX_CHECKPOINT_DIR";

/// Labels that the scheduler of Kubernetes puts on nodes that do not answer; what runs there is ours to judge.
const OURS_TO_JUDGE: [&str; 2] = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"];

/// The pod of a replica: held back by a gate, bound to its node by the cluster's own scheduler once the gate is gone. `None`
/// where the template has no container.
pub(crate) fn pod(order: &ReplicaOrder, job: &JobPods, settings: &KubeSettings) -> Option<Pod> {
    let (meta, mut spec) = (job.template.metadata.clone().unwrap_or_default(), job.template.spec.clone()?);
    let main = spec.containers.first_mut()?;
    supervise(main, order, settings);
    let copy = Container {
        name: TOOLS.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some(settings.pull_policy.clone()),
        command: Some(vec![settings.command.clone(), "supervise".to_owned(), "--install".to_owned()]),
        args: Some(vec![Supervision::COMMAND.to_owned()]),
        volume_mounts: Some(vec![mount(TOOLS, Supervision::FOLDER)]),
        security_context: main.security_context.clone(),
        ..Container::default()
    };
    spec.init_containers.get_or_insert_default().insert(0, copy);
    spec.restart_policy = Some("Never".to_owned());
    spec.scheduling_gates.get_or_insert_default().push(PodSchedulingGate { name: GATE.to_owned() });
    spec.termination_grace_period_seconds = i64::try_from(settings.grace.as_secs()).ok();
    spec.tolerations.get_or_insert_default().extend(OURS_TO_JUDGE.map(|key| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    }));
    let volumes = volumes(settings.authorities.is_some()).into_iter().chain(token_volume(settings));
    spec.volumes.get_or_insert_default().extend(volumes);
    require_node(&mut spec, &order.node);

    let mut labels = meta.labels.unwrap_or_default();
    labels.insert(JOB_LABEL.to_owned(), order.job.0.to_string());
    labels.insert(REPLICA_LABEL.to_owned(), order.replica.0.to_string());
    labels.insert(INSTANCE_LABEL.to_owned(), settings.instance.clone());
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(EPOCH_ANNOTATION.to_owned(), order.epoch.0.to_string());
    let authorities = settings.authorities.as_ref();
    annotations.extend(authorities.map(|trusted| (AUTHORITY_ANNOTATION.to_owned(), trusted.get())));
    let metadata = ObjectMeta {
        name: Some(pod_name(order.job, order.replica)),
        namespace: Some(job.namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: job.owner.clone().map(|owner| vec![owner]),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Some(Pod { metadata, spec: Some(spec), status: None })
}

/// Has our supervisor run what the order says.
fn supervise(main: &mut Container, order: &ReplicaOrder, settings: &KubeSettings) {
    let supervisor = [Supervision::COMMAND, "supervise", "--"].map(str::to_owned);
    main.command = Some(supervisor.into_iter().chain(order.command.iter().map(|part| literal(part))).collect());
    main.args = None;
    main.working_dir = Some(order.working_dir.to_string_lossy().into_owned());
    let env = main.env.get_or_insert_default();
    env.retain(|variable| !order.environment.contains_key(&variable.name));
    env.extend(order.environment.iter().map(|(name, value)| variable(name, value)));
    // Others reach a pod at its own address, not at that of its node. Its supervisor makes the folder for checkpoints.
    let own = [HOST_ADDRESS, CHECKPOINTS];
    env.retain(|variable| !own.contains(&variable.name.as_str()));
    env.push(variable(CHECKPOINTS, &order.checkpoint_dir));
    let source = ObjectFieldSelector { field_path: "status.podIP".to_owned(), ..ObjectFieldSelector::default() };
    env.push(EnvVar {
        name: HOST_ADDRESS.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(source), ..EnvVarSource::default() }),
        ..EnvVar::default()
    });
    if !order.secrets.is_empty() {
        main.env_from.get_or_insert_default().push(EnvFromSource {
            secret_ref: Some(SecretEnvSource { name: pod_name(order.job, order.replica), optional: Some(false) }),
            ..EnvFromSource::default()
        });
    }
    let resources = main.resources.get_or_insert_default();
    let gpus = Quantity(order.gpus.to_string());
    resources.limits.get_or_insert_default().insert(settings.gpu_resource.clone(), gpus.clone());
    let requests = resources.requests.get_or_insert_default();
    requests.insert(settings.gpu_resource.clone(), gpus);
    if let Some(cpus) = order.cpus {
        requests.insert("cpu".to_owned(), Quantity(cpus.to_string()));
    }
    if let Some(memory) = order.memory {
        requests.insert("memory".to_owned(), Quantity(memory.to_string()));
    }
    keep_limits_above_requests(resources);
    main.startup_probe = Some(Probe {
        exec: Some(ExecAction {
            command: Some([Supervision::COMMAND, "supervise", "--is-started"].map(str::to_owned).to_vec()),
        }),
        period_seconds: Some(1),
        timeout_seconds: Some(10),
        // How long a start may take is for the scheduler to say.
        failure_threshold: Some(i32::MAX),
        ..Probe::default()
    });
    let mounts = main.volume_mounts.get_or_insert_default();
    mounts.extend([mount(TOOLS, Supervision::FOLDER), mount(POD_INFO, Supervision::POD_INFO)]);
    if settings.audience.is_some() {
        mounts.push(VolumeMount { read_only: Some(true), ..mount(TOKEN, TOKEN_FOLDER) });
    }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), ..EnvVar::default() }
}

/// Kubernetes puts variables into commands and values: `$(NAME)`. What was ordered is meant as it is.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// A limit of the template's below what is asked for would make the pod invalid.
fn keep_limits_above_requests(resources: &mut ResourceRequirements) {
    let (Some(limits), Some(requests)) = (&mut resources.limits, &resources.requests) else { return };
    for (name, request) in requests {
        if let Some(limit) = limits.get_mut(name)
            && crate::quantity::amount(limit) < crate::quantity::amount(request)
        {
            limit.clone_from(request);
        }
    }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

/// Files that a kubelet keeps as the pod's object is: what the supervisor is told, and who vouches for the scheduler.
fn volumes(has_authority: bool) -> [Volume; 2] {
    let file = |path: &str, field_path: String| DownwardAPIVolumeFile {
        path: path.to_owned(),
        field_ref: Some(ObjectFieldSelector { field_path, ..ObjectFieldSelector::default() }),
        ..DownwardAPIVolumeFile::default()
    };
    let mut items = vec![file(Supervision::ANNOTATIONS, "metadata.annotations".to_owned())];
    if has_authority {
        items.push(file("authority", format!("metadata.annotations['{AUTHORITY_ANNOTATION}']")));
    }
    [
        Volume { name: TOOLS.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() },
        Volume {
            name: POD_INFO.to_owned(),
            downward_api: Some(DownwardAPIVolumeSource { items: Some(items), ..Default::default() }),
            ..Volume::default()
        },
    ]
}

/// What shows the scheduler which pod it is: a token of the pod's service account, meant for the scheduler alone.
fn token_volume(settings: &KubeSettings) -> Option<Volume> {
    let token = ServiceAccountTokenProjection {
        audience: Some(settings.audience.clone()?),
        expiration_seconds: Some(TOKEN_LIFETIME_S),
        path: TOKEN_FILE.to_owned(),
    };
    let source = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    Some(Volume {
        name: TOKEN.to_owned(),
        projected: Some(ProjectedVolumeSource { sources: Some(vec![source]), default_mode: None }),
        ..Volume::default()
    })
}

/// Adds a node to what a pod requires; what its user requires of nodes stays.
fn require_node(spec: &mut PodSpec, node: &str) {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    // Terms are alternatives: each must hold the node.
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields.get_or_insert_default().push(requirement.clone());
    }
}

/// What must not be in a pod's own object; it is deleted with the pod.
pub(crate) fn secret(order: &ReplicaOrder, pod: &Pod) -> Secret {
    let meta = &pod.metadata;
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    Secret {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: meta.labels.clone().map(ours_only),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        string_data: Some(order.secrets.clone()),
        immutable: Some(true),
        ..Secret::default()
    }
}

fn ours_only(labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels.into_iter().filter(|(name, _)| name.starts_with("pollux.dev/")).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodTemplateSpec;
    use pollux_backend::{Epoch, ReplicaId};
    use pollux_policy::JobId;
    use serde_json::{Value, json};

    use super::*;

    fn order() -> ReplicaOrder {
        serde_json::from_value(json!({
            "epoch": 3, "replica": 17, "job": 4, "node": "node-2", "gpus": 2, "cpus": 8, "memory": 1024, "shares_with": null,
            "command": ["python", "train.py"], "working_dir": "/code", "environment": {"POLLUX_JOB_ID": "4", "LEFT": "ours"},
            "checkpoint_dir": "/saved/4",
        }))
        .expect("an order")
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is what json! makes")]
    fn template(spec: Value) -> JobPods {
        let template: PodTemplateSpec =
            serde_json::from_value(json!({"metadata": {"labels": {"team": "vision"}}, "spec": spec}))
                .expect("a template");
        JobPods { namespace: "research".to_owned(), owner: None, template }
    }

    fn made(job: &JobPods) -> Value {
        serde_json::to_value(pod(&order(), job, &KubeSettings::default()).expect("a container")).expect("JSON")
    }

    #[test]
    fn a_pod_runs_the_order_under_the_supervisor_where_the_order_says() {
        let pod = made(&template(json!({"containers": [
            {"name": "main", "image": "torch", "command": ["ignored"], "env": [{"name": "LEFT", "value": "theirs"}]},
        ]})));
        assert_eq!(pod["metadata"]["name"], "pollux-4-17");
        assert_eq!(pod["metadata"]["namespace"], "research");
        assert_eq!(pod["metadata"]["labels"]["team"], "vision");
        assert_eq!(pod["metadata"]["annotations"]["pollux.dev/epoch"], "3");
        let main = &pod["spec"]["containers"][0];
        assert_eq!(main["command"], json!([Supervision::COMMAND, "supervise", "--", "python", "train.py"]));
        assert_eq!(main["workingDir"], "/code");
        let address = json!({"fieldRef": {"fieldPath": "status.podIP"}});
        let expected = json!([
            {"name": "LEFT", "value": "ours"}, {"name": "POLLUX_JOB_ID", "value": "4"},
            {"name": "POLLUX_CHECKPOINT_DIR", "value": "/saved/4"}, {"name": "POLLUX_HOST_ADDRESS", "valueFrom": address},
        ]);
        assert_eq!(main["env"], expected);
        assert_eq!(main["resources"]["limits"], json!({"nvidia.com/gpu": "2"}));
        assert_eq!(main["resources"]["requests"], json!({"nvidia.com/gpu": "2", "cpu": "8", "memory": "1024"}));
        assert_eq!(pod["spec"]["schedulingGates"], json!([{"name": GATE}]));
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert_eq!(pod["spec"]["nodeName"], Value::Null);
    }

    #[test]
    fn a_pod_has_a_token_that_is_meant_for_the_scheduler_alone_in_the_container_that_trains() {
        let job = template(json!({"containers": [{"name": "main"}, {"name": "side"}]}));
        let settings = KubeSettings { audience: Some("https://pollux.ns.svc".to_owned()), ..KubeSettings::default() };
        let pod = serde_json::to_value(pod(&order(), &job, &settings).expect("a container")).expect("JSON");
        let volume = pod["spec"]["volumes"].as_array().expect("volumes").last().expect("one").clone();
        let token = json!({"audience": "https://pollux.ns.svc", "expirationSeconds": 3600, "path": "token"});
        assert_eq!(volume["projected"], json!({"sources": [{"serviceAccountToken": token}]}));
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().expect("mounts");
        let mounted = json!({"name": "pollux-token", "mountPath": "/pollux/token", "readOnly": true});
        assert_eq!(mounts.last(), Some(&mounted));
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"], Value::Null);
        assert_eq!(KubeSettings::TOKEN, format!("{TOKEN_FOLDER}/{TOKEN_FILE}"));
    }

    #[test]
    fn nothing_is_put_into_what_was_ordered() {
        let mut order = order();
        order.command = ["sh", "-c", "kill $$ $(HOME)"].map(str::to_owned).to_vec();
        order.environment.insert("LEFT".to_owned(), "$(PATH)".to_owned());
        let job = template(json!({"containers": [{"name": "main"}]}));
        let pod = pod(&order, &job, &KubeSettings::default()).expect("a container");
        let main = &pod.spec.expect("a spec").containers[0];
        assert_eq!(main.command.as_ref().expect("a command").last().expect("a script"), "kill $$$$ $$(HOME)");
        assert_eq!(main.env.as_ref().expect("variables")[0].value.as_deref(), Some("$$(PATH)"));
    }

    #[test]
    fn what_a_user_requires_of_nodes_stays_beside_the_chosen_one() {
        let zones = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]);
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}});
        let pod = made(&template(json!({"containers": [{"name": "main"}], "affinity": affinity})));
        let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        for (idx, zone) in ["a", "b"].iter().enumerate() {
            let term = &terms["nodeSelectorTerms"][idx];
            assert_eq!(term["matchExpressions"][0]["values"][0], *zone);
            assert_eq!(term["matchFields"], json!([{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]));
        }
    }

    #[test]
    fn secrets_are_in_an_object_of_their_own() {
        let job = template(json!({"containers": [{"name": "main"}]}));
        let mut order = order();
        order.secrets.insert("HF_TOKEN".to_owned(), "hush".to_owned());
        let pod = pod(&order, &job, &KubeSettings::default()).expect("a container");
        assert!(!serde_json::to_string(&pod).expect("JSON").contains("hush"));
        let main = &pod.spec.as_ref().expect("a spec").containers[0];
        let secret = secret(&order, &pod);
        let named = main.env_from.as_ref().and_then(|from| from[0].secret_ref.clone());
        assert_eq!(named.map(|named| named.name), secret.metadata.name);
        assert_eq!(secret.string_data, Some(order.secrets));
    }

    #[test]
    fn a_limit_below_the_request_is_raised() {
        let job =
            template(json!({"containers": [{"name": "main", "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}]}));
        let resources = made(&job)["spec"]["containers"][0]["resources"].clone();
        assert_eq!(resources["limits"], json!({"nvidia.com/gpu": "2", "cpu": "8", "memory": "4Gi"}));
    }

    #[test]
    fn a_template_without_a_container_makes_no_pod() {
        let job = template(json!({"containers": []}));
        assert!(pod(&order(), &job, &KubeSettings::default()).is_none());
        assert_eq!(pod_name(JobId(4), ReplicaId(17)), "pollux-4-17");
        assert_eq!(order().epoch, Epoch(3));
    }
}
