//! What happens to single jobs, from submission to their end.

use pollux_agent::AgentReport;
use pollux_job::{JobId, JobSpec, Phase};
use pollux_policy::{NodeId, Oracle, SucceededJob, Timestamp};

use crate::job::check_report;
use crate::{
    Command, Engine, FailureCause, FailureKind, FailureReason, Job, JobState, Refusal, ResizeCause, Revision,
    StopReason,
};

const PAUSE_MAX_S: f64 = 1e6;

impl Engine {
    pub(crate) fn submit(&mut self, id: JobId, spec: JobSpec, out: &mut Vec<Command>) -> Result<(), Refusal> {
        if let Some(last) = self.last_job.filter(|&last| id <= last) {
            return Err(Refusal::JobIdUsed { job: id, last });
        }
        self.admit(&spec)?;
        self.check_dependencies(id, &spec)?;
        if self.jobs.is_empty() {
            self.rounds.wake(self.now);
        }
        self.last_job = Some(id);
        let mut job = Job::new(id, spec, self.now);
        job.learn_types(&self.gpu_types, &self.type_knowledge);
        self.jobs.insert(id, job);
        self.await_dependencies(id, out);
        self.rounds.request(self.now);
        Ok(())
    }

    pub(crate) fn learn(&mut self, id: JobId, revision: Revision, report: AgentReport) -> Result<(), Refusal> {
        self.heard(id, revision)?;
        check_report(&report).map_err(|fault| Refusal::Report { job: id, fault })?;
        self.break_silence(id);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.learn(self.now, report, &self.gpu_types, &self.type_knowledge);
        }
        Ok(())
    }

    pub(crate) fn set_oracle(&mut self, id: JobId, oracle: Oracle) -> Result<(), Refusal> {
        self.live(id)?.oracle = Some(oracle);
        Ok(())
    }

    pub(crate) fn ready(&mut self, id: JobId, revision: Revision, pause_s: Option<f64>) -> Result<(), Refusal> {
        let now = self.now;
        let job = self.heard(id, revision)?;
        if job.silent && job.phase() == Phase::Running && revision == job.revision {
            self.break_silence(id);
            return Ok(());
        }
        let job = self.settling(id, revision)?;
        if let Some(value) = pause_s.filter(|seconds| !(0.0..=PAUSE_MAX_S).contains(seconds)) {
            return Err(Refusal::Pause { job: id, value });
        }
        job.measure_change(pause_s, now);
        job.silent = false;
        self.train(id);
        self.hurry_on(id);
        Ok(())
    }

    /// A job that has reported before is known to speak: its group is waited for.
    pub(crate) fn silent(&mut self, id: JobId, revision: Revision) -> Result<(), Refusal> {
        let job = self.settling(id, revision)?;
        if job.report.is_some() || job.state != JobState::Starting {
            return Err(Refusal::WrongPhase { job: id, phase: job.phase() });
        }
        job.silent = true;
        self.train(id);
        Ok(())
    }

    /// The group's time to train begins when it runs, which is waited for much longer.
    pub(crate) fn pending(&mut self, id: JobId, revision: Revision) -> Result<(), Refusal> {
        let limit_s = self.settings.pending_timeout_s;
        let job = self.settling(id, revision)?;
        let limit = job.commanded.after_s(limit_s);
        if !std::mem::replace(&mut job.pending, true) {
            self.set_timer(id, Some(limit));
        }
        Ok(())
    }

    pub(crate) fn placed(&mut self, id: JobId, revision: Revision) -> Result<(), Refusal> {
        let limit = self.now.after_s(self.settings.settle_timeout_s);
        if std::mem::take(&mut self.settling(id, revision)?.pending) {
            self.set_timer(id, Some(limit));
        }
        Ok(())
    }

    /// A group that was taken for one that never speaks does: only now it is known how long its launch took.
    fn break_silence(&mut self, id: JobId) {
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.silent) {
            job.silent = false;
            if job.phase() == Phase::Running {
                job.usage.measure_launch(now.since_s(job.commanded));
            }
        }
    }

    fn train(&mut self, id: JobId) {
        let now = self.now;
        let job = self.jobs.get_mut(&id).expect("the caller has seen it");
        job.machine_failures = 0;
        job.revision_heard = job.revision;
        job.enter(JobState::Running, now);
        self.set_timer(id, None);
    }

    /// A job whose newest group is complete and does not train yet.
    fn settling(&mut self, id: JobId, revision: Revision) -> Result<&mut Job, Refusal> {
        let job = self.heard(id, revision)?;
        if revision != job.revision {
            return Err(Refusal::StaleRevision { job: id, revision, current: job.revision });
        }
        let is_settling = matches!(job.state, JobState::Starting | JobState::Resizing { .. });
        if !is_settling || job.group != job.target {
            return Err(Refusal::WrongPhase { job: id, phase: job.phase() });
        }
        Ok(job)
    }

    /// Success counts in every phase but an end: a group that was told to stop may have got there first.
    pub(crate) fn succeed(&mut self, id: JobId, revision: Revision, out: &mut Vec<Command>) -> Result<(), Refusal> {
        let now = self.now;
        let job = self.heard(id, revision)?;
        let usage = job.usage(now);
        if let (Some(application), Some(ended)) = (job.spec.application.clone(), job.ended()) {
            self.type_knowledge.end(now, &application, ended);
        }
        let (attained_gpu_s, executed_s) = (usage.attained_gpu_s(), usage.executed_s());
        self.succeeded.push(SucceededJob { id, attained_gpu_s, executed_s });
        self.end(id, JobState::Succeeded, StopReason::Succeeded, out);
        Ok(())
    }

    pub(crate) fn replica_failed(
        &mut self,
        id: JobId,
        revision: Revision,
        node: NodeId,
        kind: FailureKind,
        out: &mut Vec<Command>,
    ) -> Result<(), Refusal> {
        self.failed_on(id, revision, node, kind)?;
        self.fail(id, FailureCause::Replica { node }, kind, out);
        Ok(())
    }

    pub(crate) fn launch_failed(
        &mut self,
        id: JobId,
        revision: Revision,
        node: NodeId,
        kind: FailureKind,
        out: &mut Vec<Command>,
    ) -> Result<(), Refusal> {
        self.failed_on(id, revision, node, kind)?;
        if kind != FailureKind::Permanent {
            self.nodes.blame_for_launch(node, self.now);
        }
        self.fail(id, FailureCause::Launch { node }, kind, out);
        Ok(())
    }

    pub(crate) fn cancel(&mut self, id: JobId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        self.live(id)?;
        self.end(id, JobState::Cancelled, StopReason::Cancelled, out);
        Ok(())
    }

    pub(crate) fn pause(&mut self, id: JobId, out: &mut Vec<Command>) -> Result<(), Refusal> {
        let job = self.live(id)?;
        if job.state == JobState::Paused {
            return Err(Refusal::WrongPhase { job: id, phase: Phase::Paused });
        }
        self.stop_group(id, JobState::Paused, StopReason::Paused, out);
        self.rounds.request(self.now);
        Ok(())
    }

    pub(crate) fn resume(&mut self, id: JobId) -> Result<(), Refusal> {
        let now = self.now;
        let job = self.live(id)?;
        if job.state != JobState::Paused {
            return Err(Refusal::WrongPhase { job: id, phase: job.phase() });
        }
        job.enter(JobState::QUEUED, now);
        // Its user has perhaps mended it.
        job.start_history.forgive();
        self.rounds.request(now);
        Ok(())
    }

    /// The backoff of a job is over, or its group should train by now.
    pub(crate) fn timer_expired(&mut self, id: JobId, out: &mut Vec<Command>) {
        let now = self.now;
        let job = self.jobs.get_mut(&id).expect("only jobs in the table have timers");
        job.timer = None;
        if matches!(job.state, JobState::Queued { .. }) {
            // Its time in the queue goes on, so that this is no new phase.
            job.state = JobState::QUEUED;
            self.rounds.request(now);
        } else {
            self.fail(id, FailureCause::Timeout, FailureKind::Retryable, out);
        }
    }

    pub(crate) fn set_timer(&mut self, id: JobId, at: Option<Timestamp>) {
        let job = self.jobs.get_mut(&id).expect("only jobs in the table get timers");
        if let Some(before) = std::mem::replace(&mut job.timer, at) {
            self.timers.remove(&(before, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    /// Moves a job that has ended out of the table once its last replica is gone.
    pub(crate) fn retire(&mut self, id: JobId) {
        if self.jobs.get(&id).is_some_and(|job| job.state.is_ended() && job.leaving.is_empty()) {
            self.ended.extend(self.jobs.remove(&id));
            if self.ended.len() > self.settings.ended_jobs_max {
                self.ended.pop_front();
            }
        }
    }

    /// A failure of a replica that the group has.
    fn failed_on(&mut self, id: JobId, revision: Revision, node: NodeId, kind: FailureKind) -> Result<(), Refusal> {
        let job = self.heard(id, revision)?;
        if !job.state.has_group() {
            return Err(Refusal::WrongPhase { job: id, phase: job.phase() });
        }
        if job.group.replicas_on(node) == 0 {
            return Err(Refusal::NoReplica { job: id, node });
        }
        match kind {
            FailureKind::Retryable | FailureKind::Machine => self.nodes.blame(node, id, self.now),
            FailureKind::Permanent => {} // The job's own fault.
        }
        Ok(())
    }

    fn fail(&mut self, id: JobId, cause: FailureCause, kind: FailureKind, out: &mut Vec<Command>) {
        let job = self.jobs.get_mut(&id).expect("the caller has seen it");
        let failing_over = matches!(job.state, JobState::Resizing { cause: ResizeCause::NodeLoss, .. });
        let retries = job.usage.retries;
        let reason = match kind {
            FailureKind::Permanent => FailureReason::Permanent { cause },
            // Survivors of a lost node often break with it. That is no fault of the job: it starts anew.
            FailureKind::Retryable if failing_over => {
                self.stop_group(id, JobState::QUEUED, StopReason::Failed, out);
                self.rounds.request(self.now);
                return;
            }
            FailureKind::Retryable if retries >= job.spec.retries => FailureReason::RetriesExhausted { retries, cause },
            FailureKind::Machine if job.machine_failures >= self.settings.machine_failures_max => {
                FailureReason::MachineFailures { failures: job.machine_failures + 1, cause }
            }
            FailureKind::Retryable | FailureKind::Machine => {
                // Whoever is to blame: others would be driven out for the next group in vain, too.
                job.note_failure(self.now);
                let is_own = kind == FailureKind::Retryable;
                let count = if is_own { &mut job.usage.retries } else { &mut job.machine_failures };
                *count += 1;
                let retry_at = self.now.after_s(self.settings.backoff_s(*count));
                self.stop_group(id, JobState::Queued { retry_at: Some(retry_at) }, StopReason::Failed, out);
                self.set_timer(id, Some(retry_at));
                self.rounds.request(self.now);
                return;
            }
        };
        self.end(id, JobState::Failed { reason }, StopReason::Failed, out);
    }

    pub(crate) fn end(&mut self, id: JobId, state: JobState, why: StopReason, out: &mut Vec<Command>) {
        let phase = state.phase();
        self.stop_waiting(id);
        self.stop_group(id, state, why, out);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.usage.ended = Some(self.now);
        }
        self.retire(id);
        self.note_outcome(id, phase);
        self.settle_dependents(id, phase, out);
        self.rounds.request(self.now);
    }

    fn live(&mut self, id: JobId) -> Result<&mut Job, Refusal> {
        if self.last_job.is_none_or(|last| id > last) {
            return Err(Refusal::UnknownJob { job: id });
        }
        let job = self.jobs.get_mut(&id).filter(|job| !job.state.is_ended());
        job.ok_or(Refusal::EndedJob { job: id })
    }

    fn heard(&mut self, id: JobId, revision: Revision) -> Result<&mut Job, Refusal> {
        let job = self.live(id)?;
        if !job.hears(revision) {
            return Err(Refusal::StaleRevision { job: id, revision, current: job.revision });
        }
        Ok(job)
    }
}
