use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use pollux_api::Assignment;
use pollux_policy::JobId;
use tokio::sync::watch;

/// Where workers read who belongs to their group, without asking the scheduler.
#[derive(Debug, Default)]
pub(crate) struct Assignments {
    assignments: Mutex<BTreeMap<JobId, watch::Sender<Assignment>>>,
}

impl Assignments {
    pub(crate) fn post(&self, job: JobId, assignment: Assignment) {
        let mut assignments = self.assignments();
        match assignments.get(&job) {
            Some(posted) => drop(posted.send_replace(assignment)),
            None => drop(assignments.insert(job, watch::Sender::new(assignment))),
        }
    }

    pub(crate) fn remove(&self, job: JobId) {
        self.assignments().remove(&job);
    }

    pub(crate) fn watch(&self, job: JobId) -> Option<watch::Receiver<Assignment>> {
        self.assignments().get(&job).map(watch::Sender::subscribe)
    }

    fn assignments(&self) -> MutexGuard<'_, BTreeMap<JobId, watch::Sender<Assignment>>> {
        self.assignments.lock().expect("nobody panics with it")
    }
}
