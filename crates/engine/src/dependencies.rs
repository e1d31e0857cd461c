//! Jobs that wait for others to end.

use pollux_job::{After, Dependency, JobId, JobSpec, Phase};

use crate::{Command, Engine, FailureReason, Job, JobState, Refusal, StopReason};

/// Jobs whose end is remembered.
const OUTCOMES_MAX: usize = 1_024;

impl Engine {
    /// Whether a job that is submitted may wait for another. Jobs that are long over are forgotten here: a driver
    /// leaves out dependencies that were met before.
    pub(crate) fn check_dependencies(&self, id: JobId, spec: &JobSpec) -> Result<(), Refusal> {
        let unknown = spec.depends_on.iter().find(|dependency| self.phase_of(dependency.job).is_none());
        match unknown {
            Some(&Dependency { job: dependency, .. }) => Err(Refusal::Dependency { job: id, dependency }),
            None => Ok(()),
        }
    }

    /// Lets a job that was just submitted wait for others, if any of them has not ended.
    pub(crate) fn await_dependencies(&mut self, id: JobId, out: &mut Vec<Command>) {
        let depends_on = self.jobs[&id].spec.depends_on.clone();
        let outcome = |dependency: &Dependency| is_met(*dependency, self.phase_of(dependency.job)?);
        let failed = depends_on.iter().find(|dependency| outcome(dependency) == Some(false)).copied();
        let unmet = depends_on.iter().filter(|dependency| outcome(dependency).is_none()).copied().collect();
        self.wait_for(id, unmet);
        if let Some(Dependency { job, .. }) = failed {
            let reason = FailureReason::Dependency { job };
            self.end(id, JobState::Failed { reason }, StopReason::Failed, out);
        }
    }

    /// Of a job that is in the table, or has ended a short while ago.
    fn phase_of(&self, id: JobId) -> Option<Phase> {
        let ended = || self.outcomes.iter().rev().find(|(job, _)| *job == id).map(|&(_, phase)| phase);
        self.jobs.get(&id).map(Job::phase).or_else(ended)
    }

    /// Remembers for a while how a job ended, for those that are submitted at that moment.
    pub(crate) fn note_outcome(&mut self, id: JobId, phase: Phase) {
        self.outcomes.push_back((id, phase));
        if self.outcomes.len() > OUTCOMES_MAX {
            self.outcomes.pop_front();
        }
    }

    fn wait_for(&mut self, id: JobId, unmet: Vec<Dependency>) {
        for dependency in &unmet {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.waits_for = unmet;
        }
    }

    /// A job has ended: those that waited for it may start, or never will.
    pub(crate) fn settle_dependents(&mut self, ended: JobId, phase: Phase, out: &mut Vec<Command>) {
        for id in self.dependents.remove(&ended).unwrap_or_default() {
            let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_ended()) else { continue };
            let failed = |dependency: &Dependency| dependency.job == ended && is_met(*dependency, phase) == Some(false);
            if job.waits_for.iter().any(failed) {
                let reason = FailureReason::Dependency { job: ended };
                self.end(id, JobState::Failed { reason }, StopReason::Failed, out);
            } else {
                // What it waited for so far were no GPUs.
                job.accrue(self.now);
                job.waits_for.retain(|dependency| dependency.job != ended);
                if job.waits_for.is_empty() {
                    job.start_history.become_eligible(self.now);
                }
            }
        }
    }

    /// Nobody has to tell a job that has ended about others.
    pub(crate) fn stop_waiting(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        for dependency in std::mem::take(&mut job.waits_for) {
            if let Some(dependents) = self.dependents.get_mut(&dependency.job) {
                dependents.remove(&id);
                if dependents.is_empty() {
                    self.dependents.remove(&dependency.job);
                }
            }
        }
    }

    pub(crate) fn index_dependents(&mut self) {
        let waits = self.jobs.values().flat_map(|job| job.waits_for.iter().map(|dependency| (dependency.job, job.id)));
        let waits: Vec<_> = waits.collect();
        for (job, dependent) in waits {
            self.dependents.entry(job).or_default().insert(dependent);
        }
    }
}

/// Whether a job has ended as it had to; nothing while it has not ended.
fn is_met(dependency: Dependency, phase: Phase) -> Option<bool> {
    phase.is_ended().then_some(phase == Phase::Succeeded || dependency.after == After::End)
}
