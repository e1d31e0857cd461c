//! Where the copy of the journal is damaged: jobs are taken from their resources and what their statuses tell, under the numbers
//! that they had, so that they find what they have saved. Those whose pods are there train on in them. What agents have learned
//! they tell again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt};
use pollux_backend_kube::{HeldPod, KubeSettings, NUMBER_END, Survey};
use pollux_engine::{Engine, Event as EngineEvent, FailureCause, FailureReason, JobState, JobUsage};
use pollux_job::{JobId, JobSpec};
use pollux_policy::{NodeId, Timestamp};
use pollux_server::ServerError;
use pollux_store::{Batch, EndedJob, JobSummary, Record, ReplicaRow, Store, SubmittedJob};
use tracing::error;

use crate::held::keep_held;
use crate::journal::KubeJournal;
use crate::operator::engine_settings;
use crate::spec::job_spec;
use crate::status::{is_over, now};
use crate::{OperatorError, OperatorSettings, PolluxJob};

/// A file beside the journal's own.
const COPY: &str = "salvaged";

/// Whether some job was known to a scheduler.
pub(crate) async fn are_numbered(client: Client) -> Result<bool, OperatorError> {
    Ok(jobs(client).await?.iter().any(|job| job.status.as_ref().is_some_and(|status| status.id.is_some())))
}

async fn jobs(client: Client) -> Result<Vec<PolluxJob>, OperatorError> {
    let jobs = Api::<DeserializeGuard<PolluxJob>>::all(client).list(&ListParams::default()).await?;
    Ok(jobs.items.into_iter().filter_map(|job| job.0.ok()).collect())
}

/// Makes a state folder from what the cluster knows of jobs, and has it kept in the place of what is damaged.
pub(crate) async fn salvage(
    client: Client,
    settings: &OperatorSettings,
    journal: &KubeJournal,
    epoch: u64,
    reason: &str,
) -> Result<(), OperatorError> {
    error!(reason, "the copy of the journal cannot be used: jobs are taken from their resources and pods");
    let (kube, folder) = (&settings.kube, &settings.state_dir);
    let jobs = jobs(client.clone()).await?;
    let everything = ListParams::default();
    let nodes = Api::<Node>::all(client.clone()).list(&everything).await?.items;
    let pods = Api::<Pod>::all(client.clone()).list(&everything).await?.items;
    let survey = Survey::of(&nodes, &pods, kube);
    let moment = Timestamp(u64::try_from(now().0.as_millisecond()).unwrap_or_default());
    let mut engine = Engine::new(engine_settings(settings), &settings.policy).map_err(ServerError::from)?;
    let (batches, kept) = salvaged(&jobs, &survey, kube, &mut engine, epoch, moment);
    Store::rebuild(folder, None, &batches, epoch)?;
    let database = database(folder)?;
    journal.replace_all(database).await?;
    let about = ConfigMap { metadata: journal.meta_of_head(), ..ConfigMap::default() };
    let note = format!(
        "The journal was damaged ({reason}); {} jobs were taken from their resources, and {kept} train on in their pods.",
        jobs.len()
    );
    let event = Event {
        type_: EventType::Warning,
        reason: "JournalDamaged".to_owned(),
        note: Some(note.chars().take(1_000).collect()),
        action: "Rebuild".to_owned(),
        secondary: None,
    };
    let reporter = Reporter { controller: "pollux".to_owned(), instance: None };
    if let Err(error) = Recorder::new(client, reporter).publish(&event, &about.object_ref(&())).await {
        error!(%error, "an Event could not be written");
    }
    Ok(())
}

/// All of a state folder, as it is copied.
fn database(folder: &Path) -> Result<Vec<u8>, OperatorError> {
    let file = folder.join(COPY);
    let refused = |reason| OperatorError::File { file: file.display().to_string(), reason };
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(refused(error)),
        Ok(()) | Err(_) => {}
    }
    Store::open(folder)?.0.copy_to(&file)?;
    let bytes = fs::read(&file).map_err(refused)?;
    fs::remove_file(&file).map_err(refused)?;
    Ok(bytes)
}

/// What a scheduler would have written that knows these jobs by the numbers in their statuses, has ordered as many replicas,
/// and those that are there; how many jobs have some.
fn salvaged(
    jobs: &[PolluxJob],
    survey: &Survey,
    kube: &KubeSettings,
    engine: &mut Engine,
    epoch: u64,
    now: Timestamp,
) -> (Vec<Batch>, usize) {
    let mut by_id: BTreeMap<u64, &PolluxJob> = BTreeMap::new();
    for job in jobs {
        if let Some(id) = job.status.as_ref().and_then(|status| status.id).filter(|id| (1..NUMBER_END).contains(id)) {
            by_id.entry(id).or_insert(job);
        }
    }
    let mut batch = Batch::default();
    let mut at = Timestamp(0);
    let mut owners = BTreeMap::new();
    for (id, resource) in by_id {
        // One that makes no sense is told so when it is looked at.
        let Ok(spec) = job_spec(resource, kube) else { continue };
        at = at.max(created(resource)).min(now);
        take(&mut batch, JobId(id), resource, spec, at);
        owners.extend(resource.uid().map(|uid| (JobId(id), uid)));
    }
    let is_its_own = |pod: &&HeldPod| owners.get(&pod.job).is_some_and(|owner| pod.owners.contains(owner));
    let held: Vec<&HeldPod> = survey.held.iter().filter(is_its_own).collect();
    let kept = keep_held(&mut batch, engine, &held, &survey.nodes, epoch, now);
    let is_kept = |last: u64| batch.replicas_ordered.iter().any(|row| row.id == last);
    let Some(last) = survey.last_replica.filter(|last| !is_kept(*last)) else { return (vec![batch], kept) };
    let replica = ReplicaRow { id: last, job: JobId(0), node: NodeId(0), shares_with: None, bundle: None };
    batch.replicas_ordered.push(replica);
    (vec![batch, Batch { replicas_gone: vec![last], ..Batch::default() }], kept)
}

fn take(batch: &mut Batch, id: JobId, resource: &PolluxJob, spec: JobSpec, at: Timestamp) {
    let told = spec.without_launch();
    batch.submitted.push(SubmittedJob { id, submitted: at, spec });
    let Some(status) = resource.status.as_ref().filter(|status| is_over(status)) else {
        let event = EngineEvent::JobSubmitted { job: id, spec: told };
        batch.records.push(Record::Event { at, event });
        if resource.spec.suspend {
            batch.records.push(Record::Event { at, event: EngineEvent::Pause { job: id } });
        }
        return;
    };
    let (state, failure) = match status.phase.as_str() {
        "Succeeded" => (JobState::Succeeded, None),
        "Cancelled" => (JobState::Cancelled, None),
        _ => {
            let reason = FailureReason::Permanent { cause: FailureCause::Timeout };
            (JobState::Failed { reason }, Some(status.message.clone()))
        }
    };
    let ended = status.completion_time.as_ref().and_then(|time| u64::try_from(time.0.as_millisecond()).ok());
    let ended = ended.map_or(at, Timestamp).max(at);
    let usage = JobUsage { ended: Some(ended), restarts: status.restarts, ..JobUsage::new(at) };
    let summary = JobSummary { state, failure, usage, report: None, replicas: Vec::new() };
    batch.ended.push(EndedJob { id, ended, summary });
}

fn created(resource: &PolluxJob) -> Timestamp {
    let created = resource.creation_timestamp().and_then(|time| u64::try_from(time.0.as_millisecond()).ok());
    Timestamp(created.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use pollux_backend::{NodeInfo, ReplicaId};
    use pollux_engine::EngineSettings;
    use pollux_policy::{Allocation, PolicySettings};
    use serde_json::{Value, json};

    use super::*;

    fn job(name: &str, status: &Value, suspend: bool) -> PolluxJob {
        serde_json::from_value(json!({
            "apiVersion": "pollux.dev/v1alpha1", "kind": "PolluxJob",
            "metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"suspend": suspend, "template": {"spec": {"containers": [{"name": "main", "command": ["x"]}]}}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn jobs_keep_their_numbers_and_what_is_over_stays_over() {
        let over =
            json!({"id": 9, "phase": "Failed", "message": "exit code 3", "completionTime": "2026-01-01T00:01:00Z"});
        let mut odd = job("odd", &json!({"id": 5, "phase": "Queued"}), false);
        odd.spec.template = json!({"spec": {"containers": "x"}});
        let jobs = [
            job("over", &over, false),
            job("set-aside", &json!({"id": 7, "phase": "Suspended"}), true),
            job("runs", &json!({"id": 3, "phase": "Running"}), false),
            job("copied", &json!({"id": 3, "phase": "Running"}), false),
            job("new", &json!({}), false),
            job("absurd", &json!({"id": u64::MAX, "phase": "Running"}), false),
            odd,
        ];
        let moment = Timestamp(1_800_000_000_000);
        let survey = Survey { last_replica: Some(41), ..Survey::default() };
        let mut engine = Engine::new(EngineSettings::default(), &PolicySettings::default()).unwrap();
        let (batches, kept) = salvaged(&jobs, &survey, &KubeSettings::default(), &mut engine, 6, moment);
        assert_eq!(kept, 0);
        let folder = std::env::temp_dir().join(format!("pollux-salvage-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Store::rebuild(&folder, None, &batches, 6).unwrap();
        let copied = database(&folder).unwrap();
        Store::rebuild(&folder, Some(&copied), &[], 0).unwrap();
        let (store, known) = Store::open(&folder).unwrap();
        let names: Vec<(u64, &str)> = known.live_jobs.iter().map(|job| (job.id.0, job.spec.name.as_str())).collect();
        assert_eq!(names, [(3, "runs"), (7, "set-aside")]);
        assert_eq!((known.last_job, known.last_replica, known.replicas.len()), (Some(JobId(9)), 41, 0));
        assert!(store.epoch() > 6, "{}", store.epoch());
        let created = Timestamp(1_767_225_600_000);
        let told: Vec<(Timestamp, String)> = known
            .records
            .iter()
            .map(|record| match record {
                Record::Event { at, event: EngineEvent::JobSubmitted { job, .. } } => {
                    (*at, format!("submitted {}", job.0))
                }
                Record::Event { at, event: EngineEvent::Pause { job } } => (*at, format!("paused {}", job.0)),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = ["submitted 3", "submitted 7", "paused 7"].map(|told| (created, told.to_owned()));
        assert_eq!(told, expected);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn jobs_train_on_in_the_pods_that_are_there_and_are_theirs_as_far_as_they_may() {
        let mut jobs = ["runs", "small", "copied", "lost", "waits"].map(|name| job(name, &json!({}), false));
        for (job, id) in jobs.iter_mut().zip(3..) {
            job.status.get_or_insert_default().id = Some(id);
        }
        jobs[1].spec.replicas_max = Some(1);
        let held = |job: u64, node: &str, replicas: &[u64], owner: &str| HeldPod {
            job: JobId(job),
            node: node.to_owned(),
            replicas: replicas.iter().copied().map(ReplicaId).collect(),
            owners: vec![owner.to_owned()],
        };
        let node = |name: &str| NodeInfo {
            name: name.to_owned(),
            gpus: 4,
            gpu_type: "A100".to_owned(),
            cpus: Some(8),
            memory: Some(1 << 30),
            address: "10.0.0.5".to_owned(),
            end: None,
        };
        let survey = Survey {
            nodes: vec![node("a"), node("b")],
            held: vec![
                held(3, "b", &[12], "runs"),
                held(3, "a", &[7, 8, 9], "runs"),
                held(4, "a", &[20], "small"),
                held(4, "b", &[21], "small"),
                held(5, "b", &[30], "runs"),
                held(6, "gone", &[31], "lost"),
            ],
            last_replica: Some(31),
        };
        let (settings, policy) = (EngineSettings::default(), PolicySettings::default());
        let mut engine = Engine::new(settings, &policy).unwrap();
        let moment = Timestamp(1_800_000_000_000);
        let (batches, kept) = salvaged(&jobs, &survey, &KubeSettings::default(), &mut engine, 6, moment);
        assert_eq!(kept, 1);
        let folder = std::env::temp_dir().join(format!("pollux-held-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Store::rebuild(&folder, None, &batches, 6).unwrap();
        let (_, known) = Store::open(&folder).unwrap();
        let row = |id, node, bundle| ReplicaRow { id, job: JobId(3), node: NodeId(node), shares_with: None, bundle };
        let bundle = Some(7);
        assert_eq!(known.replicas, [row(7, 0, bundle), row(8, 0, bundle), row(9, 0, bundle), row(12, 1, None)]);
        assert_eq!((known.live_jobs.len(), known.last_replica), (5, 31));
        let [(JobId(3), group)] = &known.groups[..] else { panic!("{:?}", known.groups) };
        assert_eq!((group.generation, group.members.as_slice()), (7 << 20, &[7, 8, 9, 12][..]));
        // Who carries on knows the group, and hears from it that it trains.
        let mut out = Vec::new();
        let mut engine = Engine::new(settings, &policy).unwrap();
        for record in known.records {
            match record {
                Record::Event { at, event } => engine.replay(at, event, &mut out),
                Record::Round { at, policy, plan } => engine.replay_round(at, policy.as_deref(), plan, &mut out),
            }
        }
        out.clear();
        let is_ready = EngineEvent::GroupReady { job: JobId(3), revision: group.revision, pause_s: None };
        engine.step(moment, is_ready, &mut out);
        assert_eq!(out, []);
        let trains = engine.job(JobId(3)).unwrap();
        assert_eq!((trains.state(), trains.revision()), (&JobState::Running, group.revision));
        assert_eq!(trains.group(), &[(NodeId(0), 3), (NodeId(1), 1)].into_iter().collect::<Allocation>());
        assert!(engine.jobs().filter(|job| job.id() != JobId(3)).all(|job| job.group().is_empty()));
        fs::remove_dir_all(&folder).unwrap();
    }
}
