use crate::ClusterView;

/// How much more a job counts than one of the next lower priority that there is.
const STEP: f64 = 4.0;
/// Priorities that are told apart; beyond that a step more makes no difference.
const STEPS_MAX: usize = 8;
/// What an opportunistic job counts beside others: so little that it only gets what they would hardly use.
pub(crate) const OPPORTUNISTIC: f64 = 1e-6;

/// What a policy makes of the priorities of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priorities {
    /// Nothing.
    Ignored,
    /// Jobs below 0 use what others leave; all others are alike.
    Opportunistic,
    /// Higher goes first, and jobs below 0 use what others leave.
    Ordered,
}

/// The rank of every job among the priorities of the view, from 0 for the lowest.
pub(crate) fn priority_ranks(view: &ClusterView<'_>) -> Vec<usize> {
    let mut present: Vec<i32> = view.jobs.iter().map(|job| job.priority).collect();
    present.sort_unstable();
    present.dedup();
    view.jobs.iter().map(|job| present.binary_search(&job.priority).unwrap_or(0)).collect()
}

/// What a job of a rank counts against one of the lowest.
pub(crate) fn priority_step(rank: usize) -> f64 {
    STEP.powi(rank.min(STEPS_MAX) as i32)
}

/// What every job counts by its priority: exactly 1 where all are alike.
pub(crate) fn priority_weights(view: &ClusterView<'_>) -> Vec<f64> {
    let weight = |(opportunistic, rank): (bool, usize)| {
        if opportunistic { priority_step(rank) * OPPORTUNISTIC } else { priority_step(rank) }
    };
    opportunistic(view).into_iter().zip(priority_ranks(view)).map(weight).collect()
}

/// Which jobs are to use only what others leave. Where all jobs are such there are no others.
pub(crate) fn opportunistic(view: &ClusterView<'_>) -> Vec<bool> {
    let regular = view.jobs.iter().any(|job| job.priority >= 0);
    view.jobs.iter().map(|job| regular && job.priority < 0).collect()
}
