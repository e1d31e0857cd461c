use std::collections::VecDeque;

/// Finished jobs before their sizes are believed.
const JOBS_MIN: usize = 30;
/// Finished jobs that are remembered; what users train changes.
const JOBS_MAX: usize = 1000;

/// How large jobs are, in GPU-seconds: given, or learned from those that finished.
#[derive(Clone, Debug)]
pub(crate) struct JobSizes {
    /// Of jobs that finished, oldest first; not kept where sizes were given.
    finished: Option<VecDeque<f64>>,
    /// In ascending order.
    sorted: Vec<f64>,
}

impl JobSizes {
    /// Sizes that are known beforehand; without any they are learned.
    pub(crate) fn new(given_gpu_s: Vec<f64>) -> Self {
        let mut sorted = given_gpu_s;
        sorted.sort_by(f64::total_cmp);
        Self { finished: sorted.is_empty().then(VecDeque::new), sorted }
    }

    /// A job that finished after so many GPU-seconds.
    pub(crate) fn learn(&mut self, gpu_s: f64) {
        let Some(finished) = self.finished.as_mut().filter(|_| gpu_s.is_finite()) else { return };
        if finished.len() == JOBS_MAX
            && let Some(oldest) = finished.pop_front()
        {
            self.sorted.remove(self.sorted.partition_point(|size| *size < oldest));
        }
        finished.push_back(gpu_s);
        self.sorted.insert(self.sorted.partition_point(|size| *size < gpu_s), gpu_s);
    }

    /// What was learned, oldest first; nothing where sizes were given.
    pub(crate) fn finished(&self) -> Vec<f64> {
        self.finished.iter().flatten().copied().collect()
    }

    /// Whether enough is known to go by.
    pub(crate) fn are_known(&self) -> bool {
        self.finished.as_ref().is_none_or(|finished| finished.len() >= JOBS_MIN)
    }

    /// The Gittins index of a job that has had `attained` and would be let run for `quantum` more: the chance that it
    /// ends within that, over what it is expected to use of it. None has one that outlived all others.
    pub(crate) fn index(&self, attained: f64, quantum: f64) -> f64 {
        let larger = &self.sorted[self.sorted.partition_point(|size| *size <= attained)..];
        let (ending, lasting) = larger.split_at(larger.partition_point(|size| size - attained <= quantum));
        if ending.is_empty() {
            return 0.0;
        }
        let used: f64 = ending.iter().map(|size| size - attained).sum();
        let used_by_lasting = if lasting.is_empty() { 0.0 } else { quantum * lasting.len() as f64 };
        ending.len() as f64 / (used + used_by_lasting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_the_chance_to_end_over_what_it_costs() {
        let sizes = JobSizes::new(vec![10.0, 1.0, 1.0, 10.0]);
        assert_eq!(sizes.index(0.0, 2.0), 0.5 / ((1.0 + 2.0) / 2.0));
        assert_eq!(sizes.index(0.0, f64::INFINITY), 1.0 / 5.5);
        assert_eq!((sizes.index(1.0, 5.0), sizes.index(9.5, 5.0), sizes.index(10.0, 5.0)), (0.0, 2.0, 0.0));
    }

    #[test]
    fn what_is_learned_replaces_the_oldest_and_what_is_given_stays() {
        let mut learned = JobSizes::new(Vec::new());
        for _ in 1..JOBS_MIN {
            learned.learn(5.0);
        }
        assert!(!learned.are_known());
        learned.learn(7.0);
        assert!(learned.are_known());
        for _ in 0..JOBS_MAX {
            learned.learn(2.0);
        }
        assert_eq!((learned.sorted.len(), learned.index(2.0, 10.0)), (JOBS_MAX, 0.0));
        let mut given = JobSizes::new(vec![3.0]);
        given.learn(1.0);
        assert_eq!(given.sorted, [3.0]);
    }
}
