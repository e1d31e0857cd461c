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
use pollux_supervisor::{Bundle, Place, Supervision};

use crate::names::{
    AUTHORITY_ANNOTATION, EPOCH_ANNOTATION, FINALIZER, GATE, INSTANCE_LABEL, JOB_LABEL, REPLICA_LABEL, pod_name,
    replica_label,
};
use crate::quantity::{amount, number, times};
use crate::requests::asked_beside_first;
use crate::{JobPods, KubeSettings};

/// Volumes that every pod of ours has.
const TOOLS: &str = "pollux-tools";
const POD_INFO: &str = "pollux-pod-info";
const TOKEN: &str = "pollux-token";
/// Of pods with several replicas, whose processes meet in shared memory: containers have 64 MiB of it otherwise.
const SHARED_MEMORY: &str = "pollux-shared-memory";
const SHARED_MEMORY_FOLDER: &str = "/dev/shm";
/// The folder and the name of the file at [`KubeSettings::TOKEN`].
const TOKEN_FOLDER: &str = "/pollux/token";
const TOKEN_FILE: &str = "token";
/// The kubelet renews a token long before.
const TOKEN_LIFETIME_S: i64 = 3600;

/// Variables that are a pod's own.
const HOST_ADDRESS: &str = "POLLUX_HOST_ADDRESS";
const CHECKPOINTS: &str = "POLLUX_CHECKPOINT_DIR";
const OWN_VARIABLES: [&str; 2] = [HOST_ADDRESS, CHECKPOINTS];
/// The field of a node by which pods require one.
const NODE_NAME: &str = "metadata.name";
/// Where programs meet that do not ask the scheduler.
const MASTER_ADDRESS: &str = "MASTER_ADDR";

/// Labels that the scheduler of Kubernetes puts on nodes that do not answer; what runs there is ours to judge.
const OURS_TO_JUDGE: [&str; 2] = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"];

/// What the containers beside the main one ask for; nothing where that is not for us to say.
#[derive(Clone, Copy)]
struct Beside {
    cpus: Option<f64>,
    memory: Option<f64>,
}

/// The pod of a replica, or of several that are ordered as one: held back by a gate, bound to its node by the cluster's own
/// scheduler once the gate is gone. `None` where the template has no container.
pub(crate) fn pod(orders: &[ReplicaOrder], job: &JobPods, settings: &KubeSettings) -> Option<Pod> {
    let order = orders.first()?;
    let first = order.bundle.iter().copied().min().unwrap_or(order.replica);
    let is_bundle = orders.len() > 1 || order.replica != first;
    let name = pod_name(order.job, first);
    let (meta, mut spec) = (job.template.metadata.clone().unwrap_or_default(), job.template.spec.clone()?);
    let beside = Beside { cpus: asked_beside_first(&spec, "cpu"), memory: asked_beside_first(&spec, "memory") };
    let main = spec.containers.first_mut()?;
    supervise(main, orders, &name, settings, beside);
    if is_bundle {
        hold_several(main, orders);
    }
    let shares_memory = is_bundle && share_memory(main);
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
    // Nodes are kept for pods with GPUs by a taint of this name: this is one.
    spec.tolerations.get_or_insert_default().push(Toleration {
        key: Some(settings.gpu_resource.clone()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    });
    let volumes = volumes(settings.authorities.is_some()).into_iter().chain(token_volume(settings));
    let shared = shares_memory.then(|| Volume {
        name: SHARED_MEMORY.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource { medium: Some("Memory".to_owned()), ..EmptyDirVolumeSource::default() }),
        ..Volume::default()
    });
    spec.volumes.get_or_insert_default().extend(volumes.chain(shared));
    require_node(&mut spec, &order.node);

    let mut labels = meta.labels.unwrap_or_default();
    labels.retain(|label, _| !label.starts_with(REPLICA_LABEL));
    labels.insert(JOB_LABEL.to_owned(), order.job.0.to_string());
    labels.insert(REPLICA_LABEL.to_owned(), first.0.to_string());
    let others = orders.iter().map(|order| order.replica).filter(|replica| *replica != first);
    labels.extend(others.map(|replica| (replica_label(replica), String::new())));
    labels.insert(INSTANCE_LABEL.to_owned(), settings.instance.clone());
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(EPOCH_ANNOTATION.to_owned(), order.epoch.0.to_string());
    let authorities = settings.authorities.as_ref();
    annotations.extend(authorities.map(|trusted| (AUTHORITY_ANNOTATION.to_owned(), trusted.get())));
    let metadata = ObjectMeta {
        name: Some(name),
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
fn supervise(main: &mut Container, orders: &[ReplicaOrder], pod_name: &str, settings: &KubeSettings, beside: Beside) {
    let order = &orders[0];
    let supervisor = [Supervision::COMMAND, "supervise", "--"].map(str::to_owned);
    main.command = Some(supervisor.into_iter().chain(order.command.iter().map(|part| literal(part))).collect());
    main.args = None;
    main.working_dir = Some(order.working_dir.to_string_lossy().into_owned());
    let env = main.env.get_or_insert_default();
    env.retain(|variable| !order.environment.contains_key(&variable.name) && variable.name != Bundle::VARIABLE);
    env.extend(common(orders).map(|(name, value)| variable(name, value)));
    // Others reach a pod at its own address, not at that of its node. Its supervisor makes the folder for checkpoints.
    env.retain(|variable| !OWN_VARIABLES.contains(&variable.name.as_str()));
    env.push(variable(CHECKPOINTS, &order.checkpoint_dir));
    env.push(own_address(HOST_ADDRESS));
    // What the scheduler knows is the address of the node. Where the whole group is in this pod, that of the pod is right.
    if order.environment.get("WORLD_SIZE") == Some(&orders.len().to_string()) {
        env.retain(|variable| variable.name != MASTER_ADDRESS);
        env.push(own_address(MASTER_ADDRESS));
    }
    if !order.secrets.is_empty() {
        main.env_from.get_or_insert_default().push(EnvFromSource {
            secret_ref: Some(SecretEnvSource { name: pod_name.to_owned(), optional: Some(false) }),
            ..EnvFromSource::default()
        });
    }
    ask_for(main.resources.get_or_insert_default(), orders, settings, beside);
    // How long a start may take is for the scheduler to say.
    main.startup_probe = Some(Probe { failure_threshold: Some(i32::MAX), ..ask_supervisor("--is-started", 1) });
    let mounts = main.volume_mounts.get_or_insert_default();
    mounts.extend([mount(TOOLS, Supervision::FOLDER), mount(POD_INFO, Supervision::POD_INFO)]);
    if settings.audience.is_some() {
        mounts.push(VolumeMount { read_only: Some(true), ..mount(TOKEN, TOKEN_FOLDER) });
    }
}

/// Has the main container ask for what the others of the pod leave of that with which the scheduler counts.
fn ask_for(resources: &mut ResourceRequirements, orders: &[ReplicaOrder], settings: &KubeSettings, beside: Beside) {
    // What a user asks for is for one replica.
    for amounts in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        amounts.values_mut().for_each(|amount| *amount = times(amount, orders.len()));
    }
    let gpus = Quantity(orders.iter().map(|order| order.gpus).sum::<u32>().to_string());
    resources.limits.get_or_insert_default().insert(settings.gpu_resource.clone(), gpus.clone());
    let requests = resources.requests.get_or_insert_default();
    requests.insert(settings.gpu_resource.clone(), gpus);
    let cpus = orders.iter().map(|order| order.cpus.map(f64::from)).sum::<Option<f64>>();
    let memory = orders.iter().map(|order| order.memory.map(|memory| memory as f64)).sum::<Option<f64>>();
    for (name, counted, beside) in [("cpu", cpus, beside.cpus), ("memory", memory, beside.memory)] {
        let Some(left) = counted.zip(beside).map(|(counted, beside)| counted - beside) else { continue };
        if left > requests.get(name).and_then(amount).unwrap_or(0.0) {
            requests.insert(name.to_owned(), number(left));
        }
    }
    keep_limits_above_requests(resources);
}

/// Variables that are the same for all.
fn common(orders: &[ReplicaOrder]) -> impl Iterator<Item = (&String, &String)> {
    let is_common =
        |name: &String, value: &String| orders.iter().all(|order| order.environment.get(name) == Some(value));
    orders[0].environment.iter().filter(move |(name, value)| is_common(name, value))
}

/// Tells the supervisor who the replicas of its pod are. It is ready as long as all of them run.
fn hold_several(main: &mut Container, orders: &[ReplicaOrder]) {
    let place = |order: &ReplicaOrder| {
        let is_own = |name: &String| !common(orders).any(|(common, _)| common == name);
        let own = order.environment.iter().filter(|(name, _)| is_own(name) && !OWN_VARIABLES.contains(&name.as_str()));
        let environment = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        Place { replica: order.replica, gpus: order.gpus, environment }
    };
    let bundle = Bundle::new(orders.iter().map(place).collect()).to_text();
    main.env.get_or_insert_default().push(variable(Bundle::VARIABLE, &bundle));
    main.readiness_probe = Some(ask_supervisor("--is-whole", 5));
}

/// Whether shared memory is for us to give.
fn share_memory(main: &mut Container) -> bool {
    let mounts = main.volume_mounts.get_or_insert_default();
    let is_ours = !mounts.iter().any(|mount| mount.mount_path.trim_end_matches('/') == SHARED_MEMORY_FOLDER);
    mounts.extend(is_ours.then(|| mount(SHARED_MEMORY, SHARED_MEMORY_FOLDER)));
    is_ours
}

/// Has the kubelet ask a supervisor something every so many seconds.
fn ask_supervisor(question: &str, period_s: i32) -> Probe {
    let command = [Supervision::COMMAND, "supervise", question].map(str::to_owned).to_vec();
    Probe {
        exec: Some(ExecAction { command: Some(command) }),
        period_seconds: Some(period_s),
        timeout_seconds: Some(10),
        failure_threshold: Some(1),
        ..Probe::default()
    }
}

/// A variable with the address of the pod.
fn own_address(name: &str) -> EnvVar {
    let source = ObjectFieldSelector { field_path: "status.podIP".to_owned(), ..ObjectFieldSelector::default() };
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(source), ..EnvVarSource::default() }),
        ..EnvVar::default()
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
            && amount(limit) < amount(request)
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
        key: NODE_NAME.to_owned(),
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

/// The node that was chosen for a pod of ours.
pub(crate) fn required_node(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_deref()?;
    fields.iter().rev().find(|field| field.key == NODE_NAME)?.values.as_deref()?.first().map(String::as_str)
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
        serde_json::to_value(pod(&[order()], job, &KubeSettings::default()).expect("a container")).expect("JSON")
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
        let tolerations = pod["spec"]["tolerations"].as_array().expect("tolerations");
        assert_eq!(tolerations.last(), Some(&json!({"key": "nvidia.com/gpu", "operator": "Exists"})));
        assert_eq!(pod["spec"]["nodeName"], Value::Null);
    }

    #[test]
    fn a_pod_of_several_replicas_has_the_gpus_and_requests_of_all_and_tells_each_its_place() {
        let orders = [18, 17].map(|id: u64| {
            let mut order = order();
            (order.replica, order.bundle) = (ReplicaId(id), vec![ReplicaId(18), ReplicaId(17)]);
            order.environment.insert("RANK".to_owned(), (id - 16).to_string());
            order
        });
        let requests = json!({"limits": {"memory": "1Ki", "rdma/hca": "1"}, "requests": {"rdma/hca": "1"}});
        let job = template(json!({"containers": [{"name": "main", "resources": requests}]}));
        let pod = pod(&orders, &job, &KubeSettings::default()).expect("a container");
        assert_eq!(crate::names::replicas_of(&pod), [ReplicaId(17), ReplicaId(18)]);
        let pod = serde_json::to_value(pod).expect("JSON");
        assert_eq!(
            (&pod["metadata"]["name"], &pod["metadata"]["labels"][REPLICA_LABEL]),
            (&json!("pollux-4-17"), &json!("17"))
        );
        let main = &pod["spec"]["containers"][0];
        let limits = json!({"nvidia.com/gpu": "4", "memory": "2Ki", "rdma/hca": "2"});
        let requests = json!({"nvidia.com/gpu": "4", "cpu": "16", "memory": "2048", "rdma/hca": "2"});
        assert_eq!((&main["resources"]["limits"], &main["resources"]["requests"]), (&limits, &requests));
        let value = |name: &str| {
            let variables = main["env"].as_array().expect("variables").iter();
            variables.filter(|it| it["name"] == name).map(|it| it["value"].as_str().expect("text").to_owned()).next()
        };
        assert_eq!((value("LEFT").as_deref(), value("RANK")), (Some("ours"), None));
        let bundle = Bundle::from_text(&value(Bundle::VARIABLE).expect("it is told")).expect("a bundle");
        let places: Vec<_> =
            bundle.replicas.iter().map(|it| (it.replica.0, it.gpus, it.environment["RANK"].clone())).collect();
        assert_eq!(places, [(18, 2, "2".to_owned()), (17, 2, "1".to_owned())]);
        assert!(bundle.replicas.iter().all(|place| place.environment.len() == 1));
        assert_eq!(main["readinessProbe"]["exec"]["command"][2], "--is-whole");
        let mounts = main["volumeMounts"].as_array().expect("mounts");
        assert!(mounts.contains(&json!({"name": SHARED_MEMORY, "mountPath": "/dev/shm"})));
    }

    #[test]
    fn programs_that_meet_without_asking_meet_at_the_address_of_their_pod_where_it_holds_all_of_them() {
        let meets = |world_size: &str| {
            let orders = [17, 18].map(|id| {
                let mut order = order();
                (order.replica, order.bundle) = (ReplicaId(id), vec![ReplicaId(17), ReplicaId(18)]);
                let place = [("WORLD_SIZE", world_size), ("MASTER_ADDR", "10.0.0.5")];
                order.environment.extend(place.map(|(name, value)| (name.to_owned(), value.to_owned())));
                order
            });
            let job = template(json!({"containers": [{"name": "main"}]}));
            let pod = pod(&orders, &job, &KubeSettings::default()).expect("a container");
            let env = serde_json::to_value(&pod.spec.expect("a spec").containers[0].env).expect("JSON");
            env.as_array()
                .expect("variables")
                .iter()
                .filter(|it| it["name"] == "MASTER_ADDR")
                .cloned()
                .collect::<Vec<_>>()
        };
        let own = json!({"name": "MASTER_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
        assert_eq!(meets("2"), [own]);
        assert_eq!(meets("4"), [json!({"name": "MASTER_ADDR", "value": "10.0.0.5"})]);
    }

    #[test]
    fn a_template_cannot_claim_the_replicas_of_others() {
        let mut job = template(json!({"containers": [{"name": "main"}]}));
        let labels = job.template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.extend([replica_label(ReplicaId(99)), REPLICA_LABEL.to_owned()].map(|label| (label, "99".to_owned())));
        let pod = pod(&[order()], &job, &KubeSettings::default()).expect("a container");
        assert_eq!(crate::names::replicas_of(&pod), [ReplicaId(17)]);
    }

    #[test]
    fn a_pod_has_a_token_that_is_meant_for_the_scheduler_alone_in_the_container_that_trains() {
        let job = template(json!({"containers": [{"name": "main"}, {"name": "side"}]}));
        let settings = KubeSettings { audience: Some("https://pollux.ns.svc".to_owned()), ..KubeSettings::default() };
        let pod = serde_json::to_value(pod(&[order()], &job, &settings).expect("a container")).expect("JSON");
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
        let pod = pod(std::slice::from_ref(&order), &job, &KubeSettings::default()).expect("a container");
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
        let pod = pod(std::slice::from_ref(&order), &job, &KubeSettings::default()).expect("a container");
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
    fn what_other_containers_ask_for_is_part_of_what_the_scheduler_counts() {
        let asks = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
        let job = template(json!({
            "initContainers": [{"name": "stays", "restartPolicy": "Always", "resources": asks("250m", "24")}],
            "containers": [{"name": "main", "resources": asks("6", "100")}, {"name": "side", "resources": asks("250m", "0")}],
        }));
        let requests = |job: &JobPods| made(job)["spec"]["containers"][0]["resources"]["requests"].clone();
        assert_eq!(requests(&job), json!({"nvidia.com/gpu": "2", "cpu": "7.5", "memory": "1000"}));
        let greedy = template(json!({
            "containers": [{"name": "main", "resources": asks("6", "1Ki")}, {"name": "side", "resources": asks("4", "0")}],
        }));
        let expected = json!({"nvidia.com/gpu": "2", "cpu": "6", "memory": "1Ki"});
        assert_eq!(requests(&greedy), expected, "never less than the template says");
        let altogether = json!({"containers": [{"name": "main"}], "resources": asks("8", "2Gi")});
        assert_eq!(requests(&template(altogether)), json!({"nvidia.com/gpu": "2"}));
    }

    #[test]
    fn a_template_without_a_container_makes_no_pod() {
        let job = template(json!({"containers": []}));
        assert!(pod(&[order()], &job, &KubeSettings::default()).is_none());
        assert_eq!(pod_name(JobId(4), ReplicaId(17)), "pollux-4-17");
        assert_eq!(order().epoch, Epoch(3));
    }
}
