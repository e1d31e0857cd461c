//! Commands become orders, which are made durable and then carried out.

use pollux_api::Assignment;
use pollux_backend::ReplicaId;
use pollux_engine::{Command, Event, JobState};
use pollux_job::JobId;
use pollux_model::BatchMode;
use pollux_policy::Timestamp;
use pollux_store::{EndedJob, HistoryEvent, JobSummary, Record};
use tracing::info;

use super::Scheduler;
use crate::fleet::Effects;
use crate::orders::{LaunchContext, WorkerToken, assignment, batch_mode, order};
use crate::views;
use crate::{ServerError, event_log, history_event};

/// Jobs that are over whose logs are kept.
pub(crate) const LOGGED_MAX: usize = 1_000;

impl Scheduler {
    /// Takes commands apart, and tells the engine what follows from them at once, until nothing does.
    pub(crate) fn carry_out(&mut self, now: Timestamp, mut commands: Vec<Command>) -> Result<(), ServerError> {
        while !commands.is_empty() {
            let mut events = Vec::new();
            for command in std::mem::take(&mut commands) {
                self.apply(now, &command, &mut events)?;
            }
            for event in events {
                self.record_event(now, event, &mut commands);
            }
        }
        Ok(())
    }

    /// Tells the engine something that is written down with what follows from it.
    pub(crate) fn record_event(&mut self, now: Timestamp, event: Event, commands: &mut Vec<Command>) {
        self.unwritten.records.push(Record::Event { at: now, event: event.clone() });
        // What makes no sense to it has changed nothing.
        let _ = self.step(now, event, commands);
    }

    fn apply(&mut self, now: Timestamp, command: &Command, events: &mut Vec<Event>) -> Result<(), ServerError> {
        let mut out = Effects::default();
        let pods_per = match command {
            Command::Launch { job, .. } => self.specs.get(job).map(|spec| spec.pods_per),
            Command::Resize { .. } | Command::Stop { .. } | Command::PlanRejected { .. } | Command::Refused(_) => None,
        };
        self.fleet.apply(command, pods_per.unwrap_or_default(), &mut out);
        let kind = match command {
            Command::Launch { .. } => Some("launch"),
            Command::Resize { .. } => Some("resize"),
            Command::Stop { .. } => Some("stop"),
            Command::PlanRejected { .. } | Command::Refused(_) => None,
        };
        // After a restart commands are given again: those that change no group were carried out before.
        let is_repeated = kind.is_some() && out.regrouped.is_empty();
        if !is_repeated {
            event_log::command(command);
            if let Some(kind) = kind {
                self.metrics.count_group_change(kind);
            }
            match command {
                Command::Stop { why, .. } => self.metrics.count_stop(*why),
                Command::PlanRejected { error } => self.metrics.count_rejected_plan(error),
                Command::Launch { .. } | Command::Resize { .. } | Command::Refused(_) => {}
            }
            if let Some((job, history_event)) = history_event::of_command(command) {
                self.remember(now, job, history_event);
            }
        }
        for id in std::mem::take(&mut out.start) {
            let Some(replica) = self.fleet.replica(id) else { continue };
            self.unwritten.replicas_ordered.push(replica.row(id));
            self.order(id)?;
        }
        self.absorb(out, events);
        Ok(())
    }

    /// Has a member of a group started.
    pub(crate) fn order(&mut self, id: ReplicaId) -> Result<(), ServerError> {
        let Some(job) = self.fleet.replica(id).map(|replica| replica.job) else { return Ok(()) };
        let has_file = self.settings.worker_token_file.is_some();
        if !has_file && !self.secrets.contains_key(&job) {
            let (token, row) = self.tokens.issue(job).map_err(ServerError::Random)?;
            self.secrets.insert(job, token);
            self.unwritten.tokens.push(row);
        }
        let checkpoint_dir = &self.checkpoints.location(job);
        let url = &self.settings.url;
        let token = match &self.settings.worker_token_file {
            Some(file) => WorkerToken::File(file),
            None => WorkerToken::Ours(&self.secrets[&job]),
        };
        let (replica, group, spec) = (self.fleet.replica(id), self.fleet.group(job), self.specs.get(&job));
        if let (Some(replica), Some(group), Some(spec)) = (replica, group, spec) {
            let address = self.registry.address(replica.node);
            let authority = self.settings.worker_authority.as_deref();
            let restores = group.is_fresh();
            let context = LaunchContext { epoch: self.epoch, url, authority, address, checkpoint_dir, restores, token };
            let assignment = assignment(job, group, &self.fleet, &self.registry, self.batch_mode(job));
            let bundle = self.fleet.bundle(id);
            self.pending.starts.extend(order(id, replica, bundle, spec, &assignment, context));
        }
        Ok(())
    }

    /// Who chooses the batch of a job.
    fn batch_mode(&self, job: JobId) -> BatchMode {
        batch_mode(&self.settings, self.engine.job(job))
    }

    /// Keeps what is to be written and done; what the engine is to be told is added to `events`.
    pub(crate) fn absorb(&mut self, effects: Effects, events: &mut Vec<Event>) {
        let Effects { start: _, stop, regrouped, gone, outdated, events: more } = effects;
        self.pending.stops.extend(stop);
        self.pending.regrouped.extend(regrouped);
        self.pending.outdated.extend(outdated);
        self.unwritten.replicas_gone.extend(gone.iter().map(|id| id.0));
        events.extend(more);
    }

    /// Writes down jobs that are over.
    pub(crate) fn archive_ended_jobs(&mut self, now: Timestamp) {
        for job in self.engine.take_ended_jobs() {
            let id = job.id();
            // After a restart the engine tells again of those whose end was written.
            if self.specs.remove(&id).is_none() {
                continue;
            }
            let mut replicas = self.fleet.disband(id);
            replicas.sort_unstable();
            self.logged.push_back(replicas.clone());
            if self.logged.len() > LOGGED_MAX {
                self.pending.outdated.extend(self.logged.pop_front().unwrap_or_default());
            }
            let summary = JobSummary {
                state: job.state().clone(),
                failure: self.failure(&job),
                usage: job.usage(now),
                report: job.report().cloned(),
                replicas: replicas.iter().map(|id| id.0).collect(),
            };
            let ended = summary.usage.ended.unwrap_or(now);
            self.metrics.count_ended_job(&job.phase().to_string());
            if let JobState::Failed { reason } = job.state() {
                self.metrics.count_failed_job(reason);
            }
            info!(job = id.0, phase = %job.phase(), failure = summary.failure, "job ended");
            self.unwritten.ended.push(EndedJob { id, ended, summary });
            self.pending.regrouped.insert(id);
            self.secrets.remove(&id);
            self.remember(now, Some(id), HistoryEvent::Ended { phase: job.state().clone() });
        }
    }

    /// Why a job was given up, with how its last replica ended.
    fn failure(&mut self, job: &pollux_engine::Job) -> Option<String> {
        let ending = self.last_failures.remove(&job.id());
        let failure = views::failure(job.state(), |node| self.registry.name(node).to_owned())?;
        Some(match ending {
            Some(ending) => format!("{failure}: {ending}"),
            None => failure,
        })
    }

    /// Groups are written as they are now, wherever they changed.
    pub(crate) fn write_groups(&mut self) {
        let group = |job| (job, self.fleet.group(job).map(Into::into));
        self.unwritten.groups = self.pending.regrouped.iter().copied().map(group).collect();
    }

    /// Makes everything durable and then does it; without room on the disk it has to wait.
    pub(crate) fn flush(&mut self) -> Result<(), ServerError> {
        self.write_groups();
        if !self.commit()? || !self.copy()? {
            return Ok(());
        }
        for job in std::mem::take(&mut self.pending.regrouped) {
            match self.fleet.group(job) {
                // Workers that are told to leave find out why.
                Some(group) => {
                    let assignment = assignment(job, group, &self.fleet, &self.registry, self.batch_mode(job));
                    self.assignments.post(job, Assignment { epoch: Some(self.epoch.0), ..assignment });
                }
                None => {
                    self.assignments.remove(job);
                    self.tokens.forget(job);
                }
            }
        }
        for order in std::mem::take(&mut self.pending.starts) {
            self.backend.start(&order);
            self.may_halt()?;
        }
        if std::mem::take(&mut self.pending.adopts) {
            let known: Vec<ReplicaId> = self.fleet.replicas().map(|(id, _)| id).collect();
            self.backend.adopt(self.epoch, &known);
            let past = self.fleet.groups().flat_map(|(_, group)| &group.past);
            let kept = known.iter().chain(past).chain(self.logged.iter().flatten());
            self.backend.keep_only(self.epoch, &kept.copied().collect::<Vec<_>>());
        }
        for replica in std::mem::take(&mut self.pending.stops) {
            self.backend.stop(self.epoch, replica, self.settings.grace);
            self.may_halt()?;
        }
        for replica in std::mem::take(&mut self.pending.outdated) {
            self.backend.forget(self.epoch, replica);
        }
        Ok(())
    }
}
