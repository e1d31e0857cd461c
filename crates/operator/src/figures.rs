//! Which jobs are due for new figures. Those change all the time: however many jobs there are, a look writes few of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pollux_job::JobId;

/// Figures of one job are told this often, unless there are many jobs.
const FIGURES: Duration = Duration::from_secs(10);
/// Jobs that one look tells new figures of.
const FIGURES_MAX: usize = 20;

/// What was told of a job last.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    phase: String,
    replicas: u32,
    /// Its resource has been edited since.
    is_edited: bool,
    /// Never, in this life of the operator, if there is none.
    at: Option<Instant>,
}

impl Told {
    pub(crate) fn new(phase: &str, replicas: u32, at: Option<Instant>) -> Self {
        Self { phase: phase.to_owned(), replicas, is_edited: false, at }
    }

    /// The same, of a resource with these generations: what it is now, and of which it was told.
    pub(crate) fn of_generation(self, now: Option<i64>, told: Option<i64>) -> Self {
        Self { is_edited: now != told, ..self }
    }

    /// Whether a job still is as it was told.
    pub(crate) fn is_about(&self, phase: &str, replicas: u32) -> bool {
        !self.is_edited && self.phase == phase && self.replicas == replicas
    }
}

/// Those of which nothing was told for the longest time, and for long enough.
pub(crate) fn those_due(told: &BTreeMap<JobId, Told>, now: Instant) -> BTreeSet<JobId> {
    let is_due = |at: Option<Instant>| at.is_none_or(|at| now.saturating_duration_since(at) >= FIGURES);
    let mut due: Vec<(Option<Instant>, JobId)> =
        told.iter().filter(|(_, told)| is_due(told.at)).map(|(id, told)| (told.at, *id)).collect();
    due.sort_unstable();
    due.into_iter().take(FIGURES_MAX).map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_many_jobs_are_told_a_few_at_a_time_and_of_each_in_turn() {
        let start = Instant::now();
        let mut told: BTreeMap<JobId, Told> =
            (0..2_000).map(|id| (JobId(id), Told::new("Queued", 0, Some(start)))).collect();
        assert_eq!(those_due(&told, start + Duration::from_secs(9)), BTreeSet::new());
        let mut turns: BTreeMap<JobId, u32> = BTreeMap::new();
        for second in 10..110 {
            let now = start + Duration::from_secs(second);
            let due = those_due(&told, now);
            assert_eq!(due.len(), FIGURES_MAX);
            for id in due {
                *turns.entry(id).or_default() += 1;
                told.insert(id, Told::new("Queued", 0, Some(now)));
            }
        }
        assert_eq!(turns.len(), 2_000, "each had its turn");
        assert!(turns.values().all(|turns| *turns == 1));
    }

    #[test]
    fn jobs_that_this_operator_never_told_of_come_first() {
        let start = Instant::now();
        let told = [(1, Some(start)), (2, None), (3, Some(start + Duration::from_secs(9)))];
        let told = told.into_iter().map(|(id, at)| (JobId(id), Told::new("Running", 1, at))).collect();
        assert_eq!(those_due(&told, start + Duration::from_secs(10)), [JobId(1), JobId(2)].into());
    }

    #[test]
    fn a_job_whose_resource_was_edited_does_not_wait_for_its_turn() {
        let told = Told::new("Running", 1, Some(Instant::now()));
        assert!(told.clone().of_generation(Some(1), Some(1)).is_about("Running", 1));
        assert!(!told.of_generation(Some(2), Some(1)).is_about("Running", 1), "it may have been suspended");
    }
}
