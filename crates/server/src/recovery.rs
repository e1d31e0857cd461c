//! How a scheduler carries on where another was killed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use pollux_backend::{Backend, Epoch, Observer, ReplicaId};
use pollux_engine::{Engine, Event, FailureKind, SettingsError};
use pollux_job::{JobId, JobSpec, Phase};
use pollux_policy::PolicyState;
use pollux_store::{Batch, HistoryEvent, JobRow, Record, Snapshot, Store, StoreError};
use tokio::sync::broadcast;
use tracing::{debug, warn};

use crate::assignments::Assignments;
use crate::clock::Clock;
use crate::fleet::{Effects, Fleet};
use crate::handle::Message;
use crate::history_event::Sentence;
use crate::node_registry::NodeRegistry;
use crate::reader_pool::ReaderPool;
use crate::scheduler::{LOGGED_MAX, PendingActions, Scheduler};
use crate::tokens::Tokens;
use crate::{Copying, Handle, Metrics, ServerError, ServerSettings};

/// Lines of history that a slow reader may be behind.
const HISTORY_BEHIND: usize = 1_024;

/// Reads the state folder, and opens the backend when the folder is ours.
pub(crate) fn recover(
    mut settings: ServerSettings,
    open_backend: impl FnOnce(Observer) -> Result<Box<dyn Backend>, ServerError>,
) -> Result<(Scheduler, Handle), ServerError> {
    if settings.policy.needs_oracle() {
        return Err(ServerError::NeedsOracle { policy: settings.policy.name().to_owned() });
    }
    let (store, recovered) = Store::open(&settings.state_dir)?;
    let folder = settings.state_dir;
    settings.state_dir = folder.canonicalize().map_err(|reason| StoreError::Folder { folder, reason })?;
    debug!(records = recovered.records.len(), jobs = recovered.live_jobs.len(), "state folder read");
    let snapshot = recovered.snapshot.as_ref().map_or(0, |snapshot| snapshot.sequence);
    let forgotten_policy = recovered.snapshot.as_ref().and_then(|kept| forgotten_policy(kept, &settings));
    let engine = replayed(&settings, recovered.snapshot, recovered.records)?;
    let fleet = Fleet::recovered(&recovered.replicas, recovered.groups, ReplicaId(recovered.last_replica));
    let known = recovered.nodes.into_iter().collect();
    let specs = recovered.live_jobs.into_iter().map(|job| (job.id, job.spec)).collect();
    let logged = logged(&store)?;

    let (sender, messages) = mpsc::channel();
    let waiting: Arc<AtomicUsize> = Arc::default();
    let assignments: Arc<Assignments> = Arc::default();
    let tokens = Tokens::recovered(&recovered.tokens);
    let (history, _) = broadcast::channel(HISTORY_BEHIND);
    let observations = sender.clone();
    // A scheduler that has ended hears nothing any more.
    let backend = open_backend(Box::new(move |observation| drop(observations.send(Message::Observed(observation)))))?;
    let metrics = Arc::new(Metrics::new(settings.policy.name()));
    let handle = Handle {
        metrics: Arc::clone(&metrics),
        messages: sender,
        waiting: Arc::clone(&waiting),
        assignments: Arc::clone(&assignments),
        tokens: tokens.clone(),
        readers: ReaderPool::open(&store)?,
        history: history.clone(),
        logs: backend.logs(),
        checkpoints: backend.checkpoints(),
    };
    let copying = settings.journal_copy.clone().map(Copying::new);
    let scheduler = Scheduler {
        copying,
        clock: settings.clock.clone().map_or_else(|| Clock::after(engine.now()), Clock::Manual),
        registry: NodeRegistry::recovered(known, &engine),
        node_deadline: Instant::now() + settings.node_grace,
        settings,
        epoch: Epoch(store.epoch()),
        checkpoints: backend.checkpoints(),
        store,
        engine,
        fleet,
        backend,
        specs,
        tokens,
        secrets: BTreeMap::new(),
        assignments,
        messages,
        waiting,
        history,
        last_failures: BTreeMap::new(),
        last_job: recovered.last_job.unwrap_or_default(),
        last_history: recovered.last_history,
        snapshot,
        snapshot_tried: snapshot,
        unwritten: Batch::default(),
        metrics,
        is_full: false,
        logged,
        damaged: recovered.damaged,
        forgotten_policy,
        pending: PendingActions { adopts: true, ..PendingActions::default() },
    };
    Ok((scheduler, handle))
}

/// The policy whose memory was kept and is of no use, because another follows it or nobody can read it.
fn forgotten_policy(kept: &Snapshot, settings: &ServerSettings) -> Option<String> {
    let of_another = kept.state.policy.as_ref().map(PolicyState::policy).filter(|name| *name != settings.policy.name());
    kept.unreadable_policy.clone().or(of_another.map(str::to_owned))
}

fn replayed(
    settings: &ServerSettings,
    snapshot: Option<Snapshot>,
    records: Vec<Record>,
) -> Result<Engine, SettingsError> {
    let mut engine = match snapshot {
        Some(Snapshot { state, .. }) => Engine::restore(settings.engine, &settings.policy, state)?,
        None => Engine::new(settings.engine, &settings.policy)?,
    };
    let mut carried_out = Vec::new();
    for record in records {
        match record {
            Record::Event { at, event } => engine.replay(at, event, &mut carried_out),
            Record::Round { at, policy, plan } => engine.replay_round(at, policy.as_deref(), plan, &mut carried_out),
        }
        carried_out.clear();
    }
    Ok(engine)
}

/// Replicas of jobs that are over and whose logs are kept. Of a job whose row cannot be read none are known.
fn logged(store: &Store) -> Result<VecDeque<Vec<ReplicaId>>, ServerError> {
    let rows = store.reader()?.last_ended_jobs(LOGGED_MAX)?;
    let replicas = |row: JobRow| {
        let replicas = row.ended.map(|ended| ended.summary.replicas).unwrap_or_default();
        replicas.into_iter().map(ReplicaId).collect()
    };
    let read = |row: Result<JobRow, JobId>| {
        row.inspect_err(|job| warn!(job = job.0, "the row of an ended job cannot be read, and its logs are not found"))
            .map(replicas)
            .unwrap_or_default()
    };
    Ok(rows.into_iter().rev().map(read).collect())
}

impl Scheduler {
    /// Does what was decided and perhaps not done, and brings fleet and engine together.
    pub(crate) fn resume(&mut self) -> Result<(), ServerError> {
        let now = self.clock.now();
        if let Some(record) = self.damaged {
            self.remember(now, None, HistoryEvent::Damaged { record });
        }
        if let Some(policy) = self.forgotten_policy.take() {
            let forgot = HistoryEvent::PolicyForgot { policy };
            warn!("{}", Sentence(&forgot));
            self.remember(now, None, forgot);
        }
        let mut commands = Vec::new();
        for (job, spec) in self.forgotten_jobs() {
            self.record_event(now, Event::JobSubmitted { job, spec }, &mut commands);
        }
        for job in self.finished_jobs() {
            self.record_event(now, Event::Cancel { job }, &mut commands);
        }
        let repeated = self.unsettled();
        self.engine.outstanding(&mut commands);
        self.carry_out(now, commands)?;
        let mut events = Vec::new();
        let mut out = Effects::default();
        self.reconcile(&mut out);
        self.absorb(out, &mut events);
        let mut commands = Vec::new();
        for event in events {
            self.record_event(now, event, &mut commands);
        }
        self.carry_out(now, commands)?;
        for id in repeated {
            self.order(id)?;
        }
        self.archive_ended_jobs(now);
        self.pending.regrouped.extend(self.fleet.groups().map(|(job, _)| job).collect::<Vec<_>>());
        self.flush()
    }

    /// Jobs that were acknowledged, but whose record at the end of the journal was damaged.
    fn forgotten_jobs(&self) -> Vec<(JobId, JobSpec)> {
        let ended: Vec<JobId> = self.engine.ended_jobs().map(pollux_engine::Job::id).collect();
        let is_forgotten = |job: &JobId| self.engine.job(*job).is_none() && !ended.contains(job);
        let forgotten = self.specs.iter().filter(|(job, _)| is_forgotten(job));
        // What it waits for and is over by now was met when it was submitted, or is told by the engine.
        let is_known =
            |job: JobId| self.engine.job(job).is_some() || self.specs.contains_key(&job) || ended.contains(&job);
        let submitted = |spec: &JobSpec| {
            let mut spec = spec.without_launch();
            spec.depends_on.retain(|dependency| is_known(dependency.job));
            spec
        };
        forgotten.map(|(job, spec)| (*job, submitted(spec))).collect()
    }

    /// Jobs whose end is written, but which the engine still has: under other settings their end made no sense to it.
    fn finished_jobs(&self) -> Vec<JobId> {
        let live = self.engine.jobs().filter(|job| !job.phase().is_ended()).map(pollux_engine::Job::id);
        live.filter(|job| !self.specs.contains_key(job)).collect()
    }

    /// Replicas that were ordered and may not have been started: starting them again does no harm.
    fn unsettled(&self) -> Vec<ReplicaId> {
        let is_settling = |job: JobId| {
            let phase = self.engine.job(job).map(pollux_engine::Job::phase);
            matches!(phase, Some(Phase::Starting | Phase::Resizing))
        };
        let groups = self.fleet.groups().filter(|(job, _)| is_settling(*job));
        groups.flat_map(|(_, group)| group.members.iter().copied()).collect()
    }

    /// Where engine and fleet do not agree on a group, the group starts anew; what belongs to none is ended.
    fn reconcile(&mut self, out: &mut Effects) {
        let groups: Vec<_> = self.fleet.groups().map(|(job, group)| (job, group.revision)).collect();
        for (job, revision) in groups {
            let live = self.engine.job(job).filter(|live| live.state().has_group() && live.revision() == revision);
            let Some(live) = live else {
                let members = self.fleet.group(job).map(|group| group.members.clone()).unwrap_or_default();
                if !members.is_empty() {
                    let replicas = members.len();
                    warn!(job = job.0, revision = revision.0, replicas, "group is not in the journal, and is ended");
                }
                members.into_iter().for_each(|id| self.fleet.evict(id, out));
                continue;
            };
            if live.phase() == Phase::Running {
                self.fleet.settle(job);
            }
        }
        for id in self.fleet.unassigned() {
            let job = self.fleet.replica(id).map(|replica| replica.job.0);
            warn!(job, replica = id.0, "replica belongs to no group, and is ended");
            self.fleet.evict(id, out);
        }
        for live in self.engine.jobs().filter(|live| live.state().has_group()) {
            let (job, revision) = (live.id(), live.revision());
            let there = self.fleet.allocation(job);
            let missing = live.group().minus(&there);
            if !missing.is_empty() {
                let replicas = missing.replicas();
                warn!(
                    job = job.0,
                    revision = revision.0,
                    replicas,
                    "replicas of a group are not known: it starts anew"
                );
            }
            let failure = |(node, _)| Event::ReplicaFailed { job, revision, node, kind: FailureKind::Retryable };
            out.events.extend(missing.iter().next().map(failure));
        }
    }
}
