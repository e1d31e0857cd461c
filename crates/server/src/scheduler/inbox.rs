//! What the scheduler is told becomes events.

use std::collections::BTreeMap;
use std::time::Instant;

use pollux_agent::AgentReport;
use pollux_api::{ReadyRequest, RendezvousRequest, ReportRequest};
use pollux_backend::{Epoch, Observation, ReplicaId};
use pollux_engine::{Event, FailureKind, Refusal};
use pollux_job::{Dependency, JobId, JobSpec, Phase};
use pollux_policy::Timestamp;
use pollux_store::{HistoryEntry, HistoryEvent, SubmittedJob, TokenRow};

use tracing::{error, info};

use super::Scheduler;
use crate::clock::{milliseconds, wall};
use crate::fleet::{Effects, Ending, Group, Readiness};
use crate::handle::{Look, Message, Reply};
use crate::tokens::{Grant, LOCAL_TOKEN, TokenDigest, Tokens};
use crate::{Action, NodeAction, Refused, event_log, history_event};

/// Longest label of a token.
const LABEL_BYTES_MAX: usize = 64;
/// Longest name of a host.
const ADDRESS_BYTES_MAX: usize = 255;
/// More users' tokens than anybody needs.
const TOKENS_MAX: usize = 1_000;

/// What came in since the last turn.
#[derive(Default)]
pub(crate) struct Inbox {
    /// What was seen happens whether it can be written or not.
    pub(crate) seen: Vec<Event>,
    /// What was asked for is refused if it cannot be written.
    pub(crate) asked: Vec<Asked>,
    pub(crate) submitted: Vec<SubmittedJob>,
    pub(crate) history: Vec<HistoryEntry>,
    pub(crate) specs: BTreeMap<JobId, JobSpec>,
    pub(crate) token_changes: Vec<TokenChange>,
    /// Who told what changes nothing for the engine: where their group meets, or what it knows.
    pub(crate) published: Vec<Reply<()>>,
    pub(crate) looks: Vec<Look>,
    pub(crate) shut_down: Option<Reply<()>>,
    /// The scheduler that has taken over.
    pub(crate) superseded: Option<Epoch>,
}

/// Something that somebody waits for.
pub(crate) struct Asked {
    pub(crate) event: Event,
    pub(crate) answer: Box<dyn FnOnce(Result<(), Refused>)>,
}

impl Asked {
    /// Whether nobody would say it again. What agents report is repeated, and what users want is kept elsewhere where this
    /// journal is not the only one.
    pub(crate) const fn is_told_once(&self) -> bool {
        matches!(self.event, Event::GroupReady { .. })
    }
}

/// A user's token comes or goes.
pub(crate) struct TokenChange {
    label: String,
    come: Option<Grant>,
    pub(crate) gone: Option<TokenDigest>,
    reply: Reply<()>,
}

impl TokenChange {
    /// What is to be kept of a token that comes.
    pub(crate) fn row(&self) -> Option<TokenRow> {
        self.come.as_ref().map(Grant::row)
    }

    /// What is durable counts from now on.
    pub(crate) fn conclude(self, tokens: &Tokens, is_durable: bool) {
        match self.come {
            _ if !is_durable => return refuse(self.reply, Refused::Full),
            Some(grant) => {
                let (role, expires_ms) = (grant.user.role, grant.expires.map(|at| at.0));
                info!(label = self.label, %role, expires_ms, replaced = self.gone.is_some(), "token granted");
                tokens.grant(grant);
            }
            None => {
                info!(label = self.label, "token revoked");
                tokens.revoke(&self.label);
            }
        }
        // Who asked may have gone.
        let _ = self.reply.send(Ok(()));
    }
}

impl Inbox {
    fn ask(&mut self, event: Event, reply: Reply<()>) {
        // Who asked may have gone.
        self.asked.push(Asked { event, answer: Box::new(|outcome| drop(reply.send(outcome))) });
    }
}

impl Scheduler {
    /// Sorts a message.
    pub(super) fn take(&mut self, now: Timestamp, message: Message, inbox: &mut Inbox) {
        match message {
            Message::Submit(spec, reply) => self.submit(now, *spec, reply, inbox),
            Message::Act(job, action, reply) => {
                let event = match action {
                    Action::Cancel => Event::Cancel { job },
                    Action::Pause => Event::Pause { job },
                    Action::Resume => Event::Resume { job },
                };
                match self.check_live(job) {
                    Ok(()) => inbox.ask(event, reply),
                    Err(refused) => refuse(reply, refused),
                }
            }
            Message::ActOnNode(name, action, reply) => match (self.registry.current(&name), action) {
                (None, _) => refuse(reply, Refused::UnknownNode { name }),
                (Some(node), NodeAction::Drain) => inbox.ask(Event::NodeDrain { node }, reply),
                (Some(node), NodeAction::Undrain) => inbox.ask(Event::NodeUndrain { node }, reply),
            },
            Message::Report(job, request, reply) => self.report(job, *request, reply, inbox),
            Message::Ready(job, request, reply) => self.ready(job, request, reply, inbox),
            Message::Rendezvous(job, request, reply) => match self.publish(job, request) {
                Ok(()) => inbox.published.push(reply),
                Err(refused) => refuse(reply, refused),
            },
            Message::Grant { grant, replaces, reply } => self.grant(grant, replaces, reply, inbox),
            Message::Revoke(label, reply) => match self.check_revoke(&label) {
                Ok(digest) => {
                    let mut earlier = inbox.token_changes.iter().rev().filter(|change| change.label == label);
                    let coming = earlier.find_map(|change| change.come.as_ref().map(|grant| grant.digest));
                    let gone = Some(coming.unwrap_or(digest));
                    inbox.token_changes.push(TokenChange { label, come: None, gone, reply });
                }
                Err(refused) => refuse(reply, refused),
            },
            Message::TokenUsed(digest, used) => self.unwritten.tokens_used.push((digest, used)),
            Message::Look(look) => inbox.looks.push(look),
            Message::ShutDown(reply) => inbox.shut_down = Some(reply),
            Message::LimitPages(pages) => self.store.limit_pages(pages),
            Message::Observed(observation) => self.observe(now, observation, inbox),
        }
    }

    fn submit(&mut self, now: Timestamp, spec: JobSpec, reply: Reply<JobId>, inbox: &mut Inbox) {
        let limit = self.settings.engine.live_jobs_max;
        let room = self.engine.jobs().len() + inbox.submitted.len() < limit;
        let crowded = || if room { Ok(()) } else { Err(Refusal::TooManyJobs { limit }) };
        let admitted = spec.check_launch().map_err(Refused::from).and_then(|()| {
            self.engine.admit(&spec)?;
            crowded()?;
            self.unmet(&spec.depends_on, inbox)
        });
        let unmet = match admitted {
            Ok(unmet) => unmet,
            Err(refused) => return refuse(reply, refused),
        };
        self.last_job.0 += 1;
        let id = self.last_job;
        let history_event = HistoryEvent::Submitted { name: spec.name.clone() };
        inbox.history.push(self.entry(now, Some(id), history_event));
        inbox.submitted.push(SubmittedJob { id, submitted: now, spec: spec.clone() });
        let event = Event::JobSubmitted { job: id, spec: JobSpec { depends_on: unmet, ..spec.without_launch() } };
        inbox.specs.insert(id, spec);
        // Who asked may have gone.
        let answer = Box::new(move |outcome: Result<(), Refused>| drop(reply.send(outcome.map(|()| id))));
        inbox.asked.push(Asked { event, answer });
    }

    /// Dependencies that are still to be waited for. One on a job that did not end as it had to can never be met.
    fn unmet(&self, depends_on: &[Dependency], inbox: &Inbox) -> Result<Vec<Dependency>, Refused> {
        let mut unmet = Vec::new();
        for &dependency in depends_on {
            let job = dependency.job;
            if self.engine.job(job).is_some() || inbox.specs.contains_key(&job) {
                unmet.push(dependency);
                continue;
            }
            let unwritten =
                self.unwritten.ended.iter().find(|ended| ended.id == job).map(|ended| ended.summary.state.to_string());
            let phase = match unwritten {
                Some(phase) => Some(phase),
                None => self.store.ended_phase(job).map_err(|error| Refused::Unreadable(error.to_string()))?,
            };
            let phase = phase.ok_or(Refusal::UnknownJob { job })?;
            Refused::unless_met(dependency, &phase)?;
        }
        Ok(unmet)
    }

    fn report(&mut self, job: JobId, request: ReportRequest, reply: Reply<()>, inbox: &mut Inbox) {
        let ReportRequest { generation, mut report } = request;
        self.name_types(job, &mut report);
        match self.group(job, generation).map(|group| group.revision_of(generation)) {
            Err(refused) => refuse(reply, refused),
            Ok(None) => refuse(reply, self.stale(job, generation)),
            Ok(Some(revision)) => {
                self.fleet.has_spoken(job);
                inbox.ask(Event::Report { job, revision, report }, reply);
            }
        }
    }

    fn ready(&mut self, job: JobId, request: ReadyRequest, reply: Reply<()>, inbox: &mut Inbox) {
        let ReadyRequest { generation, pause_s } = request;
        // A program that was taken for one that never speaks may do so late.
        let is_running = self.engine.job(job).is_some_and(|job| job.phase() == Phase::Running && !job.is_silent());
        match self.group(job, generation).map(|group| group.readiness(generation, is_running)) {
            Err(refused) => refuse(reply, refused),
            Ok(Readiness::Stale) => refuse(reply, self.stale(job, generation)),
            // What is known may not be durable yet.
            Ok(Readiness::Partial | Readiness::Known) => inbox.published.push(reply),
            Ok(Readiness::Complete(revision)) => inbox.ask(Event::GroupReady { job, revision, pause_s }, reply),
        }
    }

    /// Workers of version 0.1 number types, always by 0: the one they run on now.
    fn name_types(&self, job: JobId, report: &mut AgentReport) {
        if report.types.iter().all(|learned| learned.gpu_type.number().is_none()) {
            return;
        }
        let current = self.engine.gpu_type_of(job).cloned();
        report.types.retain_mut(|learned| match (learned.gpu_type.number(), &current) {
            (None, _) => true,
            (Some(0), Some(current)) => {
                learned.gpu_type = current.clone();
                true
            }
            (Some(_), _) => false,
        });
        report.types.sort_by(|a, b| a.gpu_type.cmp(&b.gpu_type));
        report.types.dedup_by(|a, b| a.gpu_type == b.gpu_type);
    }

    /// Notes where a group meets. It is told to the others when it is durable.
    fn publish(&mut self, job: JobId, request: RendezvousRequest) -> Result<(), Refused> {
        let RendezvousRequest { generation, address, port } = request;
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.:[]%".contains(letter);
        if address.is_empty() || address.len() > ADDRESS_BYTES_MAX || !address.chars().all(is_letter) || port == 0 {
            return Err(Refused::Rendezvous { address, port });
        }
        self.check_live(job)?;
        if !self.fleet.publish(job, generation, (address, port)) {
            return Err(self.stale(job, generation));
        }
        self.pending.regrouped.insert(job);
        Ok(())
    }

    fn group(&self, job: JobId, generation: u64) -> Result<&Group, Refused> {
        self.check_live(job)?;
        self.fleet.group(job).ok_or_else(|| self.stale(job, generation))
    }

    fn stale(&self, job: JobId, generation: u64) -> Refused {
        Refused::Stale { job, generation, current: self.fleet.group(job).map_or(0, |group| group.generation) }
    }

    fn grant(&self, grant: Grant, replaces: bool, reply: Reply<()>, inbox: &mut Inbox) {
        let label = grant.user.name.clone();
        if let Err(refused) = self.check_grant(&label, replaces, inbox) {
            return refuse(reply, refused);
        }
        let gone = self.tokens.of_user(&label);
        if gone == Some(grant.digest) {
            // Who asked may have gone.
            let _ = reply.send(Ok(()));
            return;
        }
        inbox.token_changes.push(TokenChange { label, come: Some(grant), gone, reply });
    }

    fn check_grant(&self, label: &str, replaces: bool, inbox: &Inbox) -> Result<(), Refused> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if label.is_empty() || label.len() > LABEL_BYTES_MAX || !label.chars().all(is_letter) {
            return Err(Refused::Label { label: label.to_owned() });
        }
        let is_coming = inbox.token_changes.iter().any(|change| change.label == label);
        if !replaces && (is_coming || self.tokens.is_in_use(label, wall())) {
            return Err(Refused::LabelUsed { label: label.to_owned() });
        }
        if !replaces && self.tokens.list().len() + inbox.token_changes.len() >= TOKENS_MAX {
            return Err(Refused::TooManyTokens { limit: TOKENS_MAX });
        }
        Ok(())
    }

    fn check_revoke(&self, label: &str) -> Result<TokenDigest, Refused> {
        if label == LOCAL_TOKEN {
            return Err(Refused::LocalToken { label: label.to_owned() });
        }
        self.tokens.of_user(label).ok_or_else(|| Refused::UnknownLabel { label: label.to_owned() })
    }

    fn check_live(&self, job: JobId) -> Result<(), Refused> {
        if self.engine.job(job).is_some_and(|job| !job.phase().is_ended()) {
            return Ok(());
        }
        let is_known = job <= self.last_job && job.0 > 0;
        Err(Refused::Engine(if is_known { Refusal::EndedJob { job } } else { Refusal::UnknownJob { job } }))
    }

    fn observe(&mut self, now: Timestamp, observation: Observation, inbox: &mut Inbox) {
        let mut out = Effects::default();
        event_log::observation(&observation, |replica| self.fleet.replica(replica).filter(|it| !it.has_ended()));
        match observation {
            Observation::NodeUp(node) => self.registry.up(node, &mut out),
            Observation::NodeUnreachable { node } => self.registry.unreachable(&node, &mut out),
            Observation::NodeGone { node } => self.registry.gone(&node, &mut self.fleet, &mut out),
            // Every order that is refused tells it again.
            Observation::Superseded { by } => {
                if inbox.superseded.replace(by).is_none() {
                    error!(epoch = by.0, "another scheduler has taken over");
                }
            }
            Observation::Pending { replica, reason } => self.pending(now, replica, reason, &mut out),
            Observation::Started { replica } => self.started(now, replica, &mut out),
            Observation::StartFailed { replica, reason, retryable } => {
                let kind = if retryable { FailureKind::Machine } else { FailureKind::Permanent };
                let history_event = HistoryEvent::NotStarted { replica: replica.0, reason };
                self.conclude(now, replica, Ending::NotStarted(kind), history_event, &mut out);
            }
            Observation::Exited { replica, exit } => {
                let history_event = HistoryEvent::Exited { replica: replica.0, exit: history_event::kept(exit) };
                self.conclude(now, replica, Ending::Exited(exit), history_event, &mut out);
            }
        }
        self.absorb(out, &mut inbox.seen);
    }

    /// A replica cannot run yet, which may be told more than once.
    fn pending(&mut self, now: Timestamp, replica: ReplicaId, reason: String, out: &mut Effects) {
        let Some((job, revision)) = self.fleet.pending(replica, &reason) else { return };
        info!(job = job.0, replica = replica.0, reason, "replica waits to be started");
        self.remember(now, Some(job), HistoryEvent::Pending { replica: replica.0, reason });
        if self.engine.job(job).is_some_and(|job| !job.is_pending()) {
            out.events.push(Event::GroupPending { job, revision });
        }
    }

    /// A replica's program runs. Once all of a group do, their time to train begins.
    fn started(&mut self, now: Timestamp, replica: ReplicaId, out: &mut Effects) {
        self.fleet.started(replica, now);
        let Some(job) = self.fleet.replica(replica).map(|replica| replica.job) else { return };
        let is_pending = self.engine.job(job).is_some_and(pollux_engine::Job::is_pending);
        if let Some(revision) = self.fleet.running(job).filter(|_| is_pending) {
            out.events.push(Event::GroupPlaced { job, revision });
        }
    }

    /// A replica has ended, which may be told more than once.
    fn conclude(
        &mut self,
        now: Timestamp,
        replica: ReplicaId,
        ending: Ending,
        history_event: HistoryEvent,
        out: &mut Effects,
    ) {
        let Some(job) = self.fleet.replica(replica).filter(|it| !it.has_ended()).map(|it| it.job) else { return };
        let how = match &history_event {
            HistoryEvent::NotStarted { reason, .. } => reason.clone(),
            HistoryEvent::Exited { exit, .. } => history_event::exit(*exit).to_string(),
            // Nothing else is an end.
            _ => return,
        };
        self.remember(now, Some(job), history_event);
        match ending {
            Ending::NotStarted(FailureKind::Machine) => self.metrics.count_failed_start("machine"),
            Ending::NotStarted(_) => self.metrics.count_failed_start("permanent"),
            Ending::Exited(exit) => self.metrics.count_ended_replica(exit),
        }
        let before = out.events.len();
        self.fleet.ended(replica, ending, now, out);
        let is_failure = |event: &Event| matches!(event, Event::ReplicaFailed { .. } | Event::LaunchFailed { .. });
        if out.events.iter().skip(before).any(is_failure) {
            self.last_failures.insert(job, how);
        }
    }

    /// What nobody says but time: nodes that stay away or may come, groups that do not speak.
    pub(super) fn check_deadlines(&mut self, now: Timestamp, inbox: &mut Inbox) {
        let mut out = Effects::default();
        if self.registry.is_incomplete() && self.node_deadline <= Instant::now() {
            self.registry.stop_waiting(&mut out);
        }
        let joined = self.registry.admit(&self.fleet, &mut out);
        self.unwritten.nodes.extend(joined);
        let patience = milliseconds(self.settings.silence).0;
        let silent = self.fleet.silent().filter(|(_, since)| since.0.saturating_add(patience) <= now.0);
        for job in silent.map(|(job, _)| job).collect::<Vec<_>>() {
            self.fleet.has_spoken(job);
            let revision = self.engine.job(job).map(pollux_engine::Job::revision);
            out.events.extend(revision.map(|revision| Event::GroupSilent { job, revision }));
        }
        let patience = milliseconds(self.settings.grace).0;
        let finishing = self.fleet.finishing().filter(|(_, since)| since.0.saturating_add(patience) <= now.0);
        for job in finishing.map(|(job, _)| job).collect::<Vec<_>>() {
            self.fleet.finish(job, &mut out);
        }
        self.absorb(out, &mut inbox.seen);
    }
}

fn refuse<T>(reply: Reply<T>, refused: Refused) {
    // Who asked may have gone.
    let _ = reply.send(Err(refused));
}
