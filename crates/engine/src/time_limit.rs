//! The time for which a job may hold GPUs.

use pollux_job::JobId;
use pollux_policy::Timestamp;

use crate::{Command, Engine, FailureReason, JobState, StopReason};

impl Engine {
    /// Starts or stops the clock of a job that has a limit. Time without a group does not count.
    pub(crate) fn set_deadline(&mut self, id: JobId) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let left_s = job.spec.time_limit.map(|limit| limit as f64 - job.usage(now).executed_s());
        let deadline = left_s.filter(|_| job.state.has_group()).map(|left_s| now.after_s(left_s.max(0.0)));
        if let Some(before) = std::mem::replace(&mut job.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.extend(deadline.map(|at| (at, id)));
    }

    /// Ends the jobs whose time is up.
    pub(crate) fn expire_deadlines(&mut self, out: &mut Vec<Command>) {
        while let Some(&(_, id)) = self.deadlines.first().filter(|(at, _)| *at <= self.now) {
            let limit_s = self.jobs.get(&id).and_then(|job| job.spec.time_limit).unwrap_or_default();
            let reason = FailureReason::TimeLimit { limit_s };
            self.end(id, JobState::Failed { reason }, StopReason::TimeLimit, out);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|&(at, _)| at)
    }
}
