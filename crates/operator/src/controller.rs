//! Between resources and the scheduler: what is asked for becomes jobs, and what becomes of them is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use pollux_backend_kube::{FINALIZER, JobPods, KubeSettings, MANAGER, PodTemplates};
use pollux_job::{JobId, Phase};
use pollux_server::{Action, Handle, Outlook, Refused, explain, views};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tracing::{info, warn};

use crate::event_writer::EventWriter;
use crate::figures::{Told, those_due};
use crate::forecast::Forecasts;
use crate::spec::{UID_VARIABLE, job_spec, pods, saves_where_others_find_it};
use crate::status::{Seen, checkpoints_kept, is_over, now, said, status, word};
use crate::{PolluxJob, PolluxJobStatus};

/// Between looks at all jobs.
const LOOK: Duration = Duration::from_secs(1);
/// Jobs that one look tells about because their phase or size has changed; the next look goes on with the others.
const CHANGED_MAX: usize = 200;
/// Resources that are handed to the scheduler together, which writes them down together.
const SUBMITTED_MAX: usize = 256;
/// Requests to the API server at a time: it has other clients.
const REQUESTS_MAX: usize = 8;
/// Jobs that are over and still known to the scheduler.
const ENDED_MAX: usize = 1_000;

/// A resource, or why it cannot be read.
type Guarded = DeserializeGuard<PolluxJob>;

/// What the pods of jobs are made from, for the backend.
#[derive(Debug, Default)]
pub(crate) struct Templates(Mutex<BTreeMap<JobId, JobPods>>);

impl PodTemplates for Templates {
    fn of(&self, job: JobId) -> Option<JobPods> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&job).cloned()
    }
}

impl Templates {
    fn learn(&self, job: JobId, pods: JobPods) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job, pods);
    }

    fn forget(&self, job: JobId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&job);
    }
}

/// A resource and what was done about it.
struct Tracked {
    resource: PolluxJob,
    id: Option<JobId>,
    /// The status as it was last written or read.
    told: PolluxJobStatus,
    told_at: Option<Instant>,
    /// A version of the specification that makes no sense.
    refused: Option<i64>,
}

impl Tracked {
    fn is_deleted(&self) -> bool {
        self.resource.metadata.deletion_timestamp.is_some()
    }
}

pub(crate) struct Controller {
    client: Client,
    handle: Handle,
    templates: Arc<Templates>,
    settings: KubeSettings,
    /// By the uid of the resource.
    tracked: BTreeMap<String, Tracked>,
    /// Its keys, by the numbers of jobs.
    uids: BTreeMap<JobId, String>,
    /// What a list that is being read has shown so far.
    listing: Option<BTreeSet<String>>,
    /// Jobs that the scheduler had when it started, by the uid of their resource.
    known: BTreeMap<String, JobId>,
    /// Resources that are to become jobs.
    fresh: BTreeSet<String>,
    /// Why resources cannot be read, as their statuses tell.
    unreadable: BTreeMap<String, String>,
    forecasts: Forecasts,
    is_complete: bool,
}

impl Controller {
    pub(crate) fn new(client: Client, handle: Handle, templates: Arc<Templates>, settings: KubeSettings) -> Self {
        Self {
            client,
            handle,
            templates,
            settings,
            tracked: BTreeMap::new(),
            uids: BTreeMap::new(),
            listing: None,
            known: BTreeMap::new(),
            fresh: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            forecasts: Forecasts::new(),
            is_complete: false,
        }
    }

    /// Until the scheduler has ended.
    pub(crate) async fn run(mut self) -> Result<(), Refused> {
        self.known = self.jobs_of_before().await?;
        let mut history = self.handle.history();
        let events = EventWriter::start(self.client.clone());
        let slim = |resource: &mut Guarded| resource.meta_mut().managed_fields = None;
        let resources = watcher(Api::<Guarded>::all(self.client.clone()), watcher::Config::default());
        let mut resources = resources.default_backoff().modify(slim).boxed();
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(event) = resources.next() => {
                    self.see(event).await;
                    // What is there already is submitted together.
                    while self.fresh.len() < SUBMITTED_MAX
                        && let Some(Some(event)) = resources.next().now_or_never()
                    {
                        self.see(event).await;
                    }
                }
                entry = history.recv() => match entry {
                    Ok(entry) => if let Some(tracked) = entry.job.and_then(|job| self.resource_of(job)) {
                        events.send(&entry, &tracked.resource);
                    },
                    Err(RecvError::Lagged(missed)) => warn!(missed, "Events could not be written fast enough"),
                    Err(RecvError::Closed) => return Ok(()),
                },
                _ = ticks.tick() => self.look().await?,
            }
            self.submit_fresh().await;
        }
    }

    /// What the scheduler knows, by the resources that asked for it.
    async fn jobs_of_before(&self) -> Result<BTreeMap<String, JobId>, Refused> {
        let ended = self.handle.read(|reader| reader.last_ended_jobs(ENDED_MAX)).await?;
        let rows = ended.into_iter().flatten().map(|row| (row.submitted.id, row.submitted.spec));
        let mut known: BTreeMap<String, JobId> =
            rows.filter_map(|(id, spec)| Some((spec.env.get(UID_VARIABLE)?.clone(), id))).collect();
        let live = self.handle.look(|cluster| {
            let uid = |id: JobId| cluster.spec(id).and_then(|spec| spec.env.get(UID_VARIABLE)).cloned();
            cluster.live_jobs().filter_map(|id| Some((uid(id)?, id))).collect::<Vec<_>>()
        });
        known.extend(live.get().await?);
        Ok(known)
    }

    async fn see(&mut self, event: watcher::Result<Event<Guarded>>) {
        match event {
            Ok(Event::Init) => self.listing = Some(BTreeSet::new()),
            Ok(Event::InitApply(resource)) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(resource.uid().unwrap_or_default());
                }
                match resource.0 {
                    Ok(resource) => self.learn(resource),
                    Err(invalid) => self.tell_unreadable(&invalid).await,
                }
            }
            Ok(Event::Apply(DeserializeGuard(Ok(resource)))) => {
                let uid = resource.uid().unwrap_or_default();
                self.learn(resource);
                self.settle(&uid).await;
            }
            Ok(Event::Apply(DeserializeGuard(Err(invalid)))) => self.tell_unreadable(&invalid).await,
            Ok(Event::InitDone) => {
                let seen = self.listing.take().unwrap_or_default();
                let gone: Vec<String> = self.tracked.keys().filter(|uid| !seen.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.lose(&uid).await;
                }
                // Jobs whose resource was deleted by force while nobody looked.
                let is_gone = |uid: &String| !self.tracked.contains_key(uid) && !seen.contains(uid);
                let known: Vec<JobId> = self.known.iter().filter(|(uid, _)| is_gone(uid)).map(|(_, id)| *id).collect();
                for id in known {
                    self.cancel(id).await;
                }
                self.is_complete = true;
            }
            Ok(Event::Delete(resource)) => self.lose(&resource.uid().unwrap_or_default()).await,
            Err(error) => warn!(%error, "jobs cannot be watched; it is tried again"),
        }
    }

    fn learn(&mut self, resource: PolluxJob) {
        let uid = resource.uid().unwrap_or_default();
        let id = self.known.get(&uid).copied();
        if let Some(id) = id {
            self.uids.insert(id, uid.clone());
        }
        let tracked = self.tracked.entry(uid).or_insert_with(|| Tracked {
            told: resource.status.clone().unwrap_or_default(),
            resource: resource.clone(),
            id,
            told_at: None,
            refused: None,
        });
        if let Some(id) = tracked.id {
            match pods(&resource, &self.settings.checkpoint_dir) {
                Ok(pods) => self.templates.learn(id, pods),
                Err(reason) => warn!(job = id.0, reason, "a job's template cannot be read"),
            }
        }
        tracked.resource = resource;
    }

    /// One that this version cannot read. Others are not kept from being read by it.
    async fn tell_unreadable(&mut self, invalid: &InvalidObject) {
        let InvalidObject { error, metadata } = invalid;
        let (uid, name) = (metadata.uid.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
        // Writing it is an event, too.
        if self.unreadable.get(&uid) == Some(error) {
            return;
        }
        warn!(resource = name, error, "a job cannot be read");
        let message = format!("it cannot be read by this version: {error}");
        let status =
            said(&PolluxJobStatus::default(), "Invalid", "Misconfigured", &message, metadata.generation, &now());
        let api = Api::<Guarded>::namespaced(self.client.clone(), metadata.namespace.as_deref().unwrap_or_default());
        let patch = json!({"metadata": {"uid": uid}, "status": status});
        match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => drop(self.unreadable.insert(uid, error.clone())),
            Err(error) => warn!(%error, "a status cannot be written"),
        }
    }

    /// A resource is gone, finalizer or not.
    async fn lose(&mut self, uid: &str) {
        self.unreadable.remove(uid);
        if let Some(id) = self.tracked.remove(uid).and_then(|tracked| tracked.id) {
            self.cancel(id).await;
            self.templates.forget(id);
            self.uids.remove(&id);
        }
    }

    async fn cancel(&self, id: JobId) {
        // One that is over cannot be cancelled, and need not be.
        drop(self.handle.act(id, Action::Cancel).get().await);
    }

    /// Looks at all jobs, tells what has become of them, and does what is still to be done.
    async fn look(&mut self) -> Result<(), Refused> {
        if !self.is_complete {
            return Ok(());
        }
        let told = self.tracked.values().filter(|tracked| !is_over(&tracked.told));
        let of = |it: &Tracked| {
            let generations = (it.resource.metadata.generation, it.told.observed_generation);
            Told::new(&it.told.phase, it.told.replicas, it.told_at).of_generation(generations.0, generations.1)
        };
        let told: BTreeMap<JobId, Told> = told.filter_map(|it| Some((it.id?, of(it)))).collect();
        self.foresee().await?;
        let seen = self.handle.look(move |cluster| {
            let due = those_due(&told, Instant::now());
            let mut changed = 0;
            let mut one = |id: JobId| {
                let engine_job = cluster.engine().job(id)?;
                let told = told.get(&id)?;
                let job = views::job(cluster, engine_job);
                let is_same = told.is_about(word(job.phase), job.replicas);
                changed += usize::from(!is_same);
                if (is_same && !due.contains(&id)) || (!is_same && changed > CHANGED_MAX) {
                    return Some((id, None));
                }
                let group = cluster.assignment(id).map(|assignment| assignment.replicas).unwrap_or_default();
                let nodes: BTreeSet<String> = group.into_iter().map(|replica| replica.node).collect();
                let explanation = explain(cluster, id, &|_| true);
                Some((id, Some(Seen { job, explanation, nodes: nodes.into_iter().collect(), foreseen: None })))
            };
            cluster.live_jobs().filter_map(&mut one).collect::<BTreeMap<_, _>>()
        });
        let mut seen = seen.get().await?;
        let uids: Vec<String> = self.tracked.keys().cloned().collect();
        let mut statuses = Vec::new();
        for uid in &uids {
            let Some(tracked) = self.tracked.get(uid) else { continue };
            let Some(id) = tracked.id.filter(|_| !is_over(&tracked.told)) else { continue };
            let now_seen = match seen.remove(&id) {
                Some(seen) => seen,
                None => self.ended(id).await,
            };
            let Some(mut now_seen) = now_seen else { continue };
            if now_seen.job.phase == Phase::Queued {
                now_seen.foreseen = self.forecasts.of(id).cloned();
            }
            self.apply_suspend(uid, &now_seen).await;
            let status = status(&now_seen, &tracked.told, tracked.resource.metadata.generation, &now());
            statuses.push((uid.clone(), status));
        }
        self.write_statuses(statuses).await;
        for uid in uids {
            self.settle(&uid).await;
        }
        Ok(())
    }

    /// Has the future foreseen again, if somebody waits and it is time.
    async fn foresee(&mut self) -> Result<(), Refused> {
        if !self.tracked.values().any(|tracked| tracked.told.phase == word(Phase::Queued)) {
            self.forecasts.forget();
        } else if self.forecasts.is_due().await {
            self.forecasts.begin(self.handle.look(Outlook::of).get().await?);
        }
        Ok(())
    }

    fn resource_of(&self, job: JobId) -> Option<&Tracked> {
        self.tracked.get(self.uids.get(&job)?)
    }

    /// A job that is over.
    async fn ended(&self, id: JobId) -> Option<Seen> {
        let row = match self.handle.read(move |reader| reader.job(id)).await {
            Ok(row) => row?,
            Err(error) => {
                warn!(job = id.0, %error, "how a job ended cannot be read");
                return None;
            }
        };
        row.ended.as_ref()?;
        Some(Seen { job: views::job_of_row(&row), explanation: None, nodes: Vec::new(), foreseen: None })
    }

    /// Does what is to be done about one resource.
    async fn settle(&mut self, uid: &str) {
        if !self.is_complete {
            return;
        }
        let Some(tracked) = self.tracked.get(uid) else { return };
        let is_done = is_over(&tracked.told) || tracked.id.is_none();
        if tracked.is_deleted() {
            match tracked.id.filter(|_| !is_done) {
                Some(id) => self.cancel(id).await,
                None if self.has_replicas(tracked.id).await => {}
                None => self.release(uid).await,
            }
        } else if is_over(&tracked.told) {
            self.expire(uid).await;
        } else if tracked.id.is_none() {
            self.fresh.insert(uid.to_owned());
        }
    }

    /// Suspends and resumes.
    async fn apply_suspend(&self, uid: &str, seen: &Seen) {
        let Some(tracked) = self.tracked.get(uid) else { return };
        let action = match (tracked.resource.spec.suspend, seen.job.phase) {
            (_, Phase::Succeeded | Phase::Failed | Phase::Cancelled) => return,
            (true, Phase::Paused) => return,
            (true, _) => Action::Pause,
            (false, Phase::Paused) => Action::Resume,
            (false, _) => return,
        };
        if let Err(error) = self.handle.act(JobId(seen.job.id), action).get().await {
            warn!(job = seen.job.id, %error, "a job cannot be suspended or resumed");
        }
    }

    /// Hands resources to the scheduler, many at a time.
    async fn submit_fresh(&mut self) {
        let mut batch = Vec::new();
        let mut suspended = Vec::new();
        while batch.len() < SUBMITTED_MAX
            && let Some(uid) = self.fresh.pop_first()
        {
            let Some(tracked) = self.tracked.get(&uid).filter(|it| it.id.is_none()) else { continue };
            let generation = tracked.resource.metadata.generation;
            if tracked.refused.is_some() && tracked.refused == generation {
                continue;
            }
            if tracked.resource.spec.suspend {
                let message = "it is suspended: set spec.suspend to false";
                suspended.push((uid, said(&tracked.told, "Suspended", "Suspended", message, generation, &now())));
            } else {
                batch.push(uid);
            }
        }
        let pinned = self.pin(batch).await;
        let mut refused = Vec::new();
        let mut asked = Vec::new();
        for uid in pinned {
            let Some(tracked) = self.tracked.get(&uid) else { continue };
            match job_spec(&tracked.resource, &self.settings) {
                Ok(spec) => asked.push((uid, self.handle.submit(spec))),
                Err(reason) => refused.push((uid, reason)),
            }
        }
        for (uid, answer) in asked {
            match answer.get().await {
                Ok(id) => self.taken(&uid, id),
                // The next look tries again.
                Err(Refused::Full | Refused::NotCopied | Refused::Busy { .. } | Refused::Away) => {}
                Err(reason) => refused.push((uid, reason.to_string())),
            }
        }
        for (uid, reason) in refused {
            let Some(tracked) = self.tracked.get_mut(&uid) else { continue };
            let generation = tracked.resource.metadata.generation;
            tracked.refused = generation;
            suspended.push((uid, said(&tracked.told, "Invalid", "Misconfigured", &reason, generation, &now())));
        }
        self.write_statuses(suspended).await;
    }

    /// A resource has become a job.
    fn taken(&mut self, uid: &str, id: JobId) {
        let Some(tracked) = self.tracked.get_mut(uid) else { return };
        info!(job = id.0, resource = %tracked.resource.name_any(), "job taken");
        tracked.id = Some(id);
        tracked.told.id = Some(id.0);
        if let Ok(pods) = pods(&tracked.resource, &self.settings.checkpoint_dir) {
            self.templates.learn(id, pods);
        }
        self.uids.insert(id, uid.to_owned());
    }

    /// Has resources stay until their pods are gone; those with which that is so now.
    async fn pin(&self, uids: Vec<String>) -> Vec<String> {
        let one = |uid: String| async move {
            let resource = &self.tracked.get(&uid)?.resource;
            let mut finalizers = resource.finalizers().to_vec();
            if finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                return Some(uid);
            }
            finalizers.push(FINALIZER.to_owned());
            match self.set_finalizers(resource, &finalizers).await {
                Ok(()) => Some(uid),
                Err(error) => {
                    warn!(%error, "a job cannot be taken yet; it is tried again");
                    None
                }
            }
        };
        stream::iter(uids.into_iter().map(one)).buffered(REQUESTS_MAX).filter_map(std::future::ready).collect().await
    }

    /// Whether a job that is over still has replicas, which are leaving.
    async fn has_replicas(&self, id: Option<JobId>) -> bool {
        let Some(id) = id else { return false };
        self.handle.look(move |cluster| cluster.engine().job(id).is_some()).get().await.unwrap_or(true)
    }

    /// Lets a deleted resource go.
    async fn release(&self, uid: &str) {
        let Some(tracked) = self.tracked.get(uid) else { return };
        let finalizers: Vec<String> =
            tracked.resource.finalizers().iter().filter(|it| *it != FINALIZER).cloned().collect();
        if finalizers.len() < tracked.resource.finalizers().len()
            && let Err(error) = self.set_finalizers(&tracked.resource, &finalizers).await
        {
            warn!(%error, "a deleted job cannot be let go; it is tried again");
        }
    }

    async fn set_finalizers(&self, resource: &PolluxJob, finalizers: &[String]) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"finalizers": finalizers, "uid": resource.uid()}});
        match self.api(resource).patch(&resource.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a resource whose time is over.
    async fn expire(&self, uid: &str) {
        let Some(tracked) = self.tracked.get(uid) else { return };
        let (Some(ttl), Some(ended)) =
            (tracked.resource.spec.ttl_seconds_after_finished, &tracked.told.completion_time)
        else {
            return;
        };
        if now().0.duration_since(ended.0).as_secs() < i64::from(ttl) {
            return;
        }
        let preconditions = Some(Preconditions { uid: tracked.resource.uid(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        if let Err(error) = self.api(&tracked.resource).delete(&tracked.resource.name_any(), &params).await {
            warn!(%error, "a job whose time is over cannot be deleted; it is tried again");
        }
    }

    fn api(&self, resource: &PolluxJob) -> Api<PolluxJob> {
        Api::namespaced(self.client.clone(), &resource.namespace().unwrap_or_default())
    }

    /// Writes those that are others than before.
    async fn write_statuses(&mut self, statuses: Vec<(String, PolluxJobStatus)>) {
        let mut patches = Vec::new();
        for (uid, mut status) in statuses {
            let Some(tracked) = self.tracked.get_mut(&uid) else { continue };
            let saves = saves_where_others_find_it(&tracked.resource, &self.settings.checkpoint_dir);
            status.conditions.push(checkpoints_kept(saves, &tracked.told, status.observed_generation, &now()));
            if tracked.told == status {
                tracked.told_at = Some(Instant::now());
            } else {
                patches.push((uid, tracked.resource.clone(), status));
            }
        }
        let client = &self.client;
        let one = |(uid, resource, status): (String, PolluxJob, PolluxJobStatus)| async move {
            let api: Api<PolluxJob> = Api::namespaced(client.clone(), &resource.namespace().unwrap_or_default());
            let patch = json!({"metadata": {"uid": resource.uid()}, "status": status});
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            match api.patch_status(&resource.name_any(), &params, &Patch::Merge(patch)).await {
                Ok(_) => return Some((uid, status)),
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                Err(error) => warn!(%error, "a status cannot be written; it is tried again"),
            }
            None
        };
        let written: Vec<_> = stream::iter(patches)
            .map(one)
            .buffer_unordered(REQUESTS_MAX)
            .filter_map(std::future::ready)
            .collect()
            .await;
        for (uid, status) in written {
            if let Some(tracked) = self.tracked.get_mut(&uid) {
                (tracked.told, tracked.told_at) = (status, Some(Instant::now()));
            }
        }
    }
}
