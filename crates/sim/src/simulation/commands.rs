//! How the world carries out what the engine commands.

use std::collections::VecDeque;

use pollux_engine::{Command, Event, FailureKind, Revision, StopReason};
use pollux_policy::{Allocation, JobId};

use super::queue::SimEvent;
use super::run::World;

impl World<'_> {
    pub(super) fn apply(&mut self, command: Command, events: &mut VecDeque<Event>) {
        match command {
            Command::Launch { job, revision, allocation, guest_of } => {
                if guest_of.is_some() {
                    self.sharing = Some(self.settings.policy.sharing());
                }
                let idx = self.index_of(job);
                if self.jobs[idx].revision == revision {
                    self.add(idx, &allocation);
                } else {
                    self.launch(idx, revision, allocation);
                }
            }
            Command::Resize { job, revision, keep, remove, add } => {
                self.resize(self.index_of(job), revision, keep, add);
                if !remove.is_empty() {
                    events.push_back(Event::ReplicasReleased { job, revision, allocation: remove });
                }
            }
            Command::Stop { job, revision, allocation, why } => {
                let idx = self.index_of(job);
                match why {
                    StopReason::Failed | StopReason::NodeLost => self.jobs[idx].crash(self.now),
                    StopReason::Preempted => {
                        self.jobs[idx].halt(self.now);
                        self.jobs[idx].suspended = allocation.clone();
                    }
                    StopReason::Moved
                    | StopReason::NodeEnds
                    | StopReason::Resized
                    | StopReason::Paused
                    | StopReason::TimeLimit
                    | StopReason::Cancelled
                    | StopReason::Succeeded => self.jobs[idx].halt(self.now),
                }
                self.jobs[idx].allocation = Allocation::NONE;
                self.jobs[idx].additions = Allocation::NONE;
                self.sample_job(idx);
                events.push_back(Event::ReplicasReleased { job, revision, allocation });
            }
            Command::Refused(refusal) => self.plan_error = Some(refusal.to_string()),
            Command::PlanRejected { error } => self.plan_error = Some(error.to_string()),
        }
    }

    pub(super) fn index_of(&self, id: JobId) -> usize {
        let idx = self.jobs.binary_search_by_key(&id, |job| job.id);
        idx.expect("the engine knows only jobs of this world")
    }

    /// A whole group.
    fn launch(&mut self, idx: usize, revision: Revision, allocation: Allocation) {
        let job = &mut self.jobs[idx];
        let mut pause_s = job.restart_s;
        if std::mem::take(&mut job.suspended) == allocation {
            pause_s = self.settings.resume_delay_s.unwrap_or(pause_s);
        }
        (job.revision, job.allocation) = (revision, allocation);
        (job.awaited, job.additions) = (Allocation::NONE, Allocation::NONE);
        if let Some(after_s) = job.fails_after_s {
            self.queue.push(self.now.after_s(after_s), SimEvent::ReplicaFails { job: idx, revision });
        }
        self.prepare(idx, pause_s);
    }

    /// Another size. As published a resize is a restart, in which all stand still; in place, whoever stays trains on
    /// until the additions are up, and all stand still only to change over.
    fn resize(&mut self, idx: usize, revision: Revision, keep: Allocation, add: Allocation) {
        let job = &mut self.jobs[idx];
        job.revision = revision;
        job.awaited = add.clone();
        let Some(resize_s) = job.resize_s else {
            job.halt(self.now);
            job.allocation = keep.plus(&add);
            let pause_s = job.restart_s;
            return self.prepare(idx, pause_s);
        };
        let trains_on = job.is_training() && !add.is_empty();
        let is_smaller = job.allocation != keep;
        job.additions = add;
        if !trains_on || is_smaller {
            job.halt(self.now);
            job.allocation = keep;
        }
        if trains_on && is_smaller {
            self.begin(idx, self.now);
        }
        self.prepare(idx, resize_s);
    }

    /// The additions of a resize are launched.
    fn add(&mut self, idx: usize, allocation: &Allocation) {
        let job = &mut self.jobs[idx];
        job.awaited = job.awaited.minus(allocation);
        let pause_s = job.restart_s;
        if job.resize_s.is_none() {
            self.prepare(idx, pause_s);
        } else if job.awaited.is_empty() {
            let revision = job.revision;
            self.queue.push(self.now.after_s(pause_s), SimEvent::AdditionsUp { job: idx, revision });
        }
    }

    /// The additions of a resize in place are up: all change over.
    pub(super) fn join_additions(&mut self, idx: usize, revision: Revision) {
        let job = &mut self.jobs[idx];
        if job.revision != revision || job.allocation.is_empty() {
            return;
        }
        job.halt(self.now);
        job.allocation = job.allocation.plus(&std::mem::take(&mut job.additions));
        let pause_s = job.resize_s.unwrap_or_default();
        self.prepare(idx, pause_s);
    }

    /// A replica of a job that is broken ends.
    pub(super) fn fail_replica(&mut self, idx: usize, revision: Revision) {
        let job = &self.jobs[idx];
        let Some((node, _)) = job.allocation.iter().next().filter(|_| job.revision == revision) else { return };
        let job = job.id;
        self.deliver(Event::ReplicaFailed { job, revision, node, kind: FailureKind::Retryable });
        self.interfere();
    }

    /// A group that is complete trains after a pause.
    fn prepare(&mut self, job: usize, pause_s: f64) {
        self.sample_job(job);
        let in_place = self.jobs[job].resize_s.is_some();
        if self.jobs[job].awaited.is_empty() && (!in_place || self.jobs[job].additions.is_empty()) {
            let revision = self.jobs[job].revision;
            let ready = self.now.after_s(pause_s);
            let pause_ms = ready.0 - self.now.0;
            self.queue.push(ready, SimEvent::GroupReady { job, revision, pause_ms });
        }
    }
}
