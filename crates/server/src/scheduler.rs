//! The loop.

mod copying;
mod execution;
mod inbox;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use pollux_backend::{Backend, Checkpoints, Epoch, ReplicaId, ReplicaOrder};
use pollux_engine::{Command, Engine, Event, Refusal};
use pollux_job::{JobId, JobSpec};
use pollux_policy::Timestamp;
use pollux_store::{Batch, HistoryEntry, HistoryEvent, Record, Store};
use tokio::sync::broadcast;
use tracing::{debug, error, info, warn};

use crate::assignments::Assignments;
use crate::clock::{Clock, milliseconds};
use crate::fleet::Fleet;
use crate::handle::Message;
use crate::node_registry::NodeRegistry;
use crate::tokens::Tokens;
use crate::{Cluster, Copying, Metrics, Refused, ServerError, ServerSettings, event_log, history_event};
pub(crate) use execution::LOGGED_MAX;
use inbox::{Asked, Inbox, TokenChange};

/// Messages that share a commit at most.
const MESSAGES_MAX: usize = 1_000;
/// Records after which a snapshot is worth its writing, if there are few jobs.
const SNAPSHOT_RECORDS: u64 = 5_000;
/// Before another attempt to write on a disk that is full.
const RETRY: Duration = Duration::from_secs(1);
/// Nothing is waited for longer.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Owner of everything that changes.
pub(crate) struct Scheduler {
    pub(crate) settings: ServerSettings,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) engine: Engine,
    pub(crate) fleet: Fleet,
    pub(crate) registry: NodeRegistry,
    pub(crate) backend: Box<dyn Backend>,
    /// In every order: the backend refuses who was taken over from.
    pub(crate) epoch: Epoch,
    pub(crate) checkpoints: Arc<dyn Checkpoints>,
    /// What users of live jobs asked for.
    pub(crate) specs: BTreeMap<JobId, JobSpec>,
    pub(crate) tokens: Tokens,
    /// Tokens that this process has given out.
    pub(crate) secrets: BTreeMap<JobId, String>,
    pub(crate) assignments: Arc<Assignments>,
    pub(crate) messages: Receiver<Message>,
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) history: broadcast::Sender<HistoryEntry>,
    /// How a replica of a live job ended that should not have, the last time; for people.
    pub(crate) last_failures: BTreeMap<JobId, String>,
    pub(crate) last_job: JobId,
    pub(crate) last_history: u64,
    /// What the last snapshot contains.
    pub(crate) snapshot: u64,
    /// The last record when another snapshot was tried.
    pub(crate) snapshot_tried: u64,
    /// A record that was set aside at the start.
    pub(crate) damaged: Option<u64>,
    /// A policy whose memory was dropped at the start.
    pub(crate) forgotten_policy: Option<String>,
    /// What has happened and is not durable yet.
    pub(crate) unwritten: Batch,
    pub(crate) pending: PendingActions,
    pub(crate) copying: Option<Copying>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether the last attempt to write failed for want of room, which is said once.
    pub(crate) is_full: bool,
    /// Replicas of jobs that are over, whose logs are kept; the oldest job first.
    pub(crate) logged: VecDeque<Vec<ReplicaId>>,
    /// When nodes from before a restart that were not seen are waited for no longer.
    pub(crate) node_deadline: Instant,
}

/// What is to be done as soon as it is durable.
#[derive(Default)]
pub(crate) struct PendingActions {
    pub(crate) starts: Vec<ReplicaOrder>,
    pub(crate) stops: Vec<ReplicaId>,
    pub(crate) regrouped: BTreeSet<JobId>,
    pub(crate) outdated: Vec<ReplicaId>,
    /// Takes over what a server before this one has left.
    pub(crate) adopts: bool,
}

impl Scheduler {
    /// Runs until it is told to end, or cannot go on.
    pub(crate) fn run(mut self) -> Result<(), ServerError> {
        loop {
            let mut inbox = Inbox::default();
            self.receive(&mut inbox);
            if let Some(by) = inbox.superseded {
                return Err(ServerError::Superseded { epoch: self.epoch, by });
            }
            self.turn(&mut inbox)?;
            if let Some(reply) = inbox.shut_down {
                self.save()?;
                self.hurry_copy();
                self.copy()?;
                // Who asked may have gone.
                let _ = reply.send(Ok(()));
                return Ok(());
            }
        }
    }

    /// Waits for something to do, and takes what else is there.
    fn receive(&mut self, inbox: &mut Inbox) {
        let now = self.clock.now();
        let wait = if self.clock.is_manual() { WAIT_MAX } else { self.next_look(now).min(WAIT_MAX) };
        // The backend can always speak, so that nobody hangs up and this is only ever too late.
        let first = self.messages.recv_timeout(wait).ok();
        let now = self.clock.now();
        let more = std::iter::from_fn(|| self.messages.try_recv().ok());
        let messages: Vec<Message> = first.into_iter().chain(more).take(MESSAGES_MAX).collect();
        for message in messages {
            if !matches!(message, Message::Observed(_) | Message::LimitPages(_) | Message::TokenUsed(..)) {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            self.take(now, message, inbox);
        }
    }

    /// How long nothing has to be done unless somebody says something.
    fn next_look(&self, now: Timestamp) -> Duration {
        let until = |moment: Timestamp| Duration::from_millis(moment.0.saturating_sub(now.0));
        let after = |since: Timestamp, patience| until(Timestamp(since.0.saturating_add(milliseconds(patience).0)));
        let silent = self.fleet.silent().map(|(_, since)| after(since, self.settings.silence));
        let finishing = self.fleet.finishing().map(|(_, since)| after(since, self.settings.grace));
        let mut wait = silent.chain(finishing).min().unwrap_or(WAIT_MAX);
        if self.registry.is_incomplete() {
            wait = wait.min(self.node_deadline.saturating_duration_since(Instant::now()));
        } else if self.unwritten.is_empty() {
            wait = self.engine.next_wakeup().map_or(wait, |moment| wait.min(until(moment)));
        }
        wait = self.copying.as_ref().and_then(Copying::wait).map_or(wait, |soon| wait.min(soon));
        if self.unwritten.is_empty() { wait } else { wait.min(RETRY) }
    }

    /// Takes in what was asked for and seen, and does what follows.
    fn turn(&mut self, inbox: &mut Inbox) -> Result<(), ServerError> {
        let now = self.clock.now();
        self.check_deadlines(now, inbox);
        let is_durable = self.record(now, inbox)?;
        let mut commands = Vec::new();
        for event in std::mem::take(&mut inbox.seen) {
            // What came too late makes no sense any more.
            let _ = self.step(now, event, &mut commands);
        }
        let mut answers = Vec::new();
        if !inbox.published.is_empty() || inbox.asked.iter().any(Asked::is_told_once) {
            self.hurry_copy();
        }
        for asked in std::mem::take(&mut inbox.asked) {
            let is_told_once = asked.is_told_once();
            let outcome = match is_durable {
                true => self.step(now, asked.event, &mut commands).map_err(Refused::from),
                false => Err(Refused::Full),
            };
            answers.push((asked.answer, outcome, is_told_once));
        }
        for change in std::mem::take(&mut inbox.token_changes) {
            change.conclude(&self.tokens, is_durable);
        }
        self.tick(now, &mut commands);
        self.carry_out(now, commands)?;
        self.archive_ended_jobs(now);
        self.flush()?;
        for (answer, outcome, is_told_once) in answers {
            let is_lost = is_told_once && self.is_copy_failing();
            answer(if is_lost { outcome.and(Err(Refused::NotCopied)) } else { outcome });
        }
        for reply in std::mem::take(&mut inbox.published) {
            // Who asked may have gone.
            let _ = reply.send(match self.unwritten.is_empty() {
                true if self.is_copy_failing() => Err(Refused::NotCopied),
                true => Ok(()),
                false => Err(Refused::Full),
            });
        }
        let cluster = self.cluster();
        for look in std::mem::take(&mut inbox.looks) {
            look(&cluster);
        }
        let worthwhile = SNAPSHOT_RECORDS.max(2 * self.engine.jobs().len() as u64);
        if self.store.sequence() - self.snapshot_tried >= worthwhile {
            self.save()?;
        }
        Ok(())
    }

    /// Makes what came in durable, all of it or only what nobody is told of yet. Returns whether what users asked for
    /// is.
    fn record(&mut self, now: Timestamp, inbox: &mut Inbox) -> Result<bool, ServerError> {
        let seen = inbox.seen.iter().map(|event| Record::Event { at: now, event: event.clone() });
        self.unwritten.records.extend(seen);
        self.write_groups();
        let Batch { records, submitted, history, tokens, tokens_gone, .. } = &self.unwritten;
        let (records, submitted, history) = (records.len(), submitted.len(), history.len());
        let (tokens, tokens_gone) = (tokens.len(), tokens_gone.len());
        let asked = inbox.asked.iter().map(|asked| Record::Event { at: now, event: asked.event.clone() });
        self.unwritten.records.extend(asked);
        self.unwritten.submitted.append(&mut inbox.submitted);
        self.unwritten.history.append(&mut inbox.history);
        self.unwritten.tokens.extend(inbox.token_changes.iter().filter_map(TokenChange::row));
        self.unwritten.tokens_gone.extend(inbox.token_changes.iter().filter_map(|change| change.gone));
        if self.commit()? {
            self.specs.append(&mut inbox.specs);
            return Ok(true);
        }
        self.unwritten.records.truncate(records);
        self.unwritten.submitted.truncate(submitted);
        self.unwritten.history.truncate(history);
        self.unwritten.tokens.truncate(tokens);
        self.unwritten.tokens_gone.truncate(tokens_gone);
        Ok(false)
    }

    /// Writes what is unwritten; returns whether there was room for it.
    fn commit(&mut self) -> Result<bool, ServerError> {
        if self.unwritten.is_empty() {
            return Ok(true);
        }
        self.may_halt()?;
        let began = Instant::now();
        match self.store.commit(&self.unwritten) {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut self.is_full, true) {
                    error!(%error, "nothing can be written, so that nothing new is done; free some space");
                }
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        if std::mem::take(&mut self.is_full) {
            info!("the journal can be written again");
        }
        self.note_for_copy()?;
        self.metrics.commits.inc();
        self.metrics.commit_seconds.observe(began.elapsed().as_secs_f64());
        self.may_halt()?;
        let mut history = std::mem::take(&mut self.unwritten).history;
        // What was asked for was numbered before some of what was seen.
        history.sort_unstable_by_key(|entry| entry.sequence);
        for entry in history {
            // Perhaps nobody listens.
            let _ = self.history.send(entry);
        }
        Ok(true)
    }

    /// Tells the engine, and remembers what people may want to read.
    pub(crate) fn step(&mut self, now: Timestamp, event: Event, commands: &mut Vec<Command>) -> Result<(), Refusal> {
        let said = event.clone();
        let ready = match event {
            Event::GroupReady { job, .. } | Event::GroupSilent { job, .. } => Some(job),
            // Nothing else settles a group.
            _ => None,
        };
        let before = commands.len();
        self.engine.step(now, event, commands);
        let refused = commands.iter().skip(before).position(|command| matches!(command, Command::Refused(_)));
        if let Some(Command::Refused(refusal)) = refused.map(|idx| commands.remove(before + idx)) {
            event_log::refused_event(&refusal);
            return Err(refusal);
        }
        let node = match said {
            Event::NodeJoined { node, .. }
            | Event::NodeResources { node, .. }
            | Event::NodeLost { node }
            | Event::NodeRetired { node }
            | Event::NodeUnreachable { node }
            | Event::NodeReachable { node }
            | Event::NodeEnds { node, .. }
            | Event::NodeDrain { node }
            | Event::NodeUndrain { node } => self.registry.name(node),
            // The others are about jobs.
            _ => "",
        };
        event_log::event(&said, node);
        let history_event = history_event::of_event(&said, node);
        if let Some(job) = ready {
            self.fleet.settle(job);
        }
        if let Some((job, history_event)) = history_event {
            self.remember(now, job, history_event);
        }
        Ok(())
    }

    /// Lets time pass for the engine, unless nothing could be done about what it says.
    fn tick(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        let is_due = self.engine.next_wakeup().is_some_and(|moment| self.clock.has_come(moment));
        // A moment has one round at most, so that it can be told whether there was one.
        let last_round = self.engine.last_round();
        let is_new = last_round.is_none_or(|last| last < now);
        if !is_due
            || !is_new
            || !self.unwritten.records.is_empty()
            || self.registry.is_incomplete()
            || self.is_copy_failing()
        {
            return;
        }
        let before = commands.len();
        let began = Instant::now();
        self.engine.step(now, Event::Tick, commands);
        self.unwritten.records.push(Record::Event { at: now, event: Event::Tick });
        if self.engine.last_round() != last_round {
            let plan_s = began.elapsed().as_secs_f64();
            self.metrics.rounds.inc();
            self.metrics.plan_seconds.observe(plan_s);
            let (jobs, commands_made) = (self.engine.jobs().len(), commands.len() - before);
            match commands_made {
                0 => debug!(jobs, commands = 0, plan_s, "plan made"),
                commands => info!(jobs, commands, plan_s, "plan made"),
            }
            let is_usable = !commands[before..].iter().any(|command| matches!(command, Command::PlanRejected { .. }));
            let plan = self.engine.last_plan().filter(|_| is_usable).map(|(_, plan)| plan.clone());
            let policy = Some(self.engine.policy_name().to_owned());
            self.unwritten.records.push(Record::Round { at: now, policy, plan });
        }
    }

    pub(crate) fn remember(&mut self, at: Timestamp, job: Option<JobId>, event: HistoryEvent) {
        let entry = self.entry(at, job, event);
        self.unwritten.history.push(entry);
    }

    fn entry(&mut self, at: Timestamp, job: Option<JobId>, event: HistoryEvent) -> HistoryEntry {
        self.last_history += 1;
        HistoryEntry { sequence: self.last_history, at, job, event }
    }

    fn cluster(&self) -> Cluster<'_> {
        Cluster {
            now: self.clock.now(),
            settings: &self.settings,
            engine: &self.engine,
            fleet: &self.fleet,
            registry: &self.registry,
            specs: &self.specs,
            checkpoints: &*self.checkpoints,
            last_failures: &self.last_failures,
            epoch: self.epoch,
            is_degraded: !self.unwritten.is_empty(),
            last_event: self.last_history,
            journal_records: self.store.sequence() - self.snapshot,
            equal_share: OnceCell::new(),
        }
    }

    /// Keeps the engine's state, so that the journal stays short. Without room for it the journal is enough.
    fn save(&mut self) -> Result<(), ServerError> {
        if !self.unwritten.is_empty() {
            return Ok(());
        }
        self.may_halt()?;
        self.snapshot_tried = self.store.sequence();
        match self.store.save_snapshot(&self.engine.state()) {
            Ok(()) => {
                debug!(record = self.snapshot_tried, "snapshot saved");
                self.snapshot = self.snapshot_tried;
            }
            Err(error) if error.is_retryable() => warn!(%error, "no room for a snapshot; the journal grows on"),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A point at which a test may end it as a kill would.
    pub(crate) fn may_halt(&mut self) -> Result<(), ServerError> {
        match &mut self.settings.halt_after {
            None => Ok(()),
            Some(0) => Err(ServerError::Halted),
            Some(points) => {
                *points -= 1;
                Ok(())
            }
        }
    }
}
