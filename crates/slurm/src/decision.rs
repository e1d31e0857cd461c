//! What a queue asks for and gives up: pure, so that every case can be tried.

use crate::queue::{Queue, Stage};

/// Failures in a row after which somebody has to look.
const FAILURES_MAX: u32 = 3;
/// After a failure nothing is asked for so long, doubled each time up to the longest.
const BACKOFF_MIN_S: u64 = 10;
const BACKOFF_MAX_S: u64 = 1_800;

/// What jobs are worth to a queue now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Demand {
    /// Allocations beside those that are there or on their way.
    pub allocations: u32,
    /// Whether what is on its way is still wanted.
    pub wants_waiting: bool,
    /// Why, as a sentence.
    pub reason: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Decision {
    /// Allocations to ask for.
    pub(crate) ask: u32,
    /// Numbers of allocations that wait and are not wanted any more.
    pub(crate) give_up: Vec<u64>,
    /// Why nothing is asked for, or why something is.
    pub(crate) sentence: String,
}

/// What to ask for and to give up; `unwanted_since_ms` of the queue is kept by the caller.
pub(crate) fn decide(queue: &Queue, demand: &Demand, now_ms: u64) -> Decision {
    let nothing = |sentence: String| Decision { sentence, ..Decision::default() };
    let resume = || format!("`pollux alloc resume {}` goes on", queue.spec.name);
    if queue.is_removed {
        return nothing("It is removed, and goes with its last allocation.".to_owned());
    }
    if let Some(reason) = &queue.stopped {
        return nothing(format!("Nothing is asked for any more: {reason}; {}.", resume()));
    }
    if queue.is_paused {
        return nothing(format!("It is paused: {}.", resume()));
    }
    let waiting = u32::try_from(queue.waiting().count()).unwrap_or(u32::MAX);
    if demand.allocations == 0 {
        let patience_ms = queue.spec.idle_timeout_s.saturating_mul(1_000);
        let is_over = |since: u64| now_ms.saturating_sub(since) >= patience_ms;
        let is_unwanted = !demand.wants_waiting && queue.unwanted_since_ms.is_some_and(is_over);
        let waits = queue.waiting().filter(|it| it.stage == Stage::Waits);
        let give_up = waits.filter(|_| is_unwanted).map(|it| it.number).collect();
        return Decision { ask: 0, give_up, sentence: demand.reason.clone() };
    }
    if now_ms < queue.not_before_ms {
        let wait_s = (queue.not_before_ms - now_ms).div_ceil(1_000);
        let last = queue.happenings.last().map_or("", |it| it.text.as_str());
        return nothing(format!("Asked again in {wait_s} s: {last}"));
    }
    let backlog = queue.spec.backlog.saturating_sub(waiting);
    if backlog == 0 {
        let what = if waiting == 1 { "allocation waits" } else { "allocations wait" };
        return nothing(format!("{waiting} {what} already, as many as --backlog allows. {}", demand.reason));
    }
    let room =
        queue.spec.max_nodes.map_or(u32::MAX, |most| most.saturating_sub(queue.nodes()) / queue.spec.nodes_per_alloc);
    if room == 0 {
        let most = queue.spec.max_nodes.unwrap_or_default();
        return nothing(format!("It has as many nodes as --max-nodes {most} allows. {}", demand.reason));
    }
    Decision { ask: demand.allocations.min(backlog).min(room), give_up: Vec::new(), sentence: demand.reason.clone() }
}

/// How long nothing is asked for after so many failures in a row.
pub(crate) fn backoff_s(failures: u32) -> u64 {
    let doublings = failures.saturating_sub(1).min(20);
    (BACKOFF_MIN_S << doublings).min(BACKOFF_MAX_S)
}

/// Why a queue is stopped after a failure, if it is.
pub(crate) fn breaks(queue: &Queue, said: &str) -> Option<String> {
    if queue.refusals >= FAILURES_MAX {
        return Some(format!("sbatch has failed {} times in a row, the last time with: {said}", queue.refusals));
    }
    (queue.misses >= FAILURES_MAX).then(|| {
        format!("{} allocations in a row have ended before a node of them joined, the last one: {said}", queue.misses)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::spec;
    use crate::queue::{Allocation, Happening};
    use pollux_api::AllocationQueueSpec;

    fn queue(stages: &[Stage]) -> Queue {
        let allocation = |(number, stage): (u64, &Stage)| Allocation {
            number,
            name: format!("pollux-ab-a-{number}"),
            stage: *stage,
            asked_ms: 0,
            job: Some(number),
            state: String::new(),
            reason: String::new(),
            start_ms: None,
            end_ms: None,
            hosts: String::new(),
            has_joined: true,
            is_settled: true,
            given_up: None,
        };
        Queue { allocations: (1..).zip(stages).map(allocation).collect(), ..Queue::new(spec("a")) }
    }

    fn wants(allocations: u32) -> Demand {
        Demand { allocations, wants_waiting: true, reason: "Jobs wait.".to_owned() }
    }

    #[test]
    fn it_asks_for_what_is_wanted_within_backlog_and_nodes() {
        let ask = |queue: &Queue, wanted| decide(queue, &wants(wanted), 0).ask;
        assert_eq!([0, 1, 2, 9].map(|wanted| ask(&queue(&[]), wanted)), [0, 1, 2, 2]);
        assert_eq!(ask(&queue(&[Stage::Asked]), 9), 1);
        assert_eq!(ask(&queue(&[Stage::Asked, Stage::Waits]), 9), 0);
        assert_eq!(ask(&queue(&[Stage::Runs; 3]), 9), 1);
        assert_eq!(ask(&queue(&[Stage::Runs; 4]), 9), 0);
        let pairs = AllocationQueueSpec { nodes_per_alloc: 2, max_nodes: Some(5), ..spec("a") };
        assert_eq!(ask(&Queue { spec: pairs, ..queue(&[Stage::Runs]) }, 9), 1);
    }

    #[test]
    fn it_says_why_nothing_is_asked_for() {
        let sentence = |queue: Queue, wanted| decide(&queue, &wants(wanted), 1_000).sentence;
        assert_eq!(
            sentence(queue(&[Stage::Waits; 2]), 1),
            "2 allocations wait already, as many as --backlog allows. Jobs wait."
        );
        assert_eq!(sentence(queue(&[Stage::Runs; 4]), 1), "It has as many nodes as --max-nodes 4 allows. Jobs wait.");
        assert_eq!(
            sentence(Queue { is_paused: true, ..queue(&[]) }, 1),
            "It is paused: `pollux alloc resume a` goes on."
        );
        let said = vec![Happening { at_ms: 0, text: "sbatch failed: no account".to_owned() }];
        let late = Queue { not_before_ms: 21_000, happenings: said, ..queue(&[]) };
        assert_eq!(sentence(late, 1), "Asked again in 20 s: sbatch failed: no account");
        let stopped = Queue { stopped: Some("sbatch has failed".to_owned()), ..queue(&[]) };
        assert_eq!(
            sentence(stopped, 1),
            "Nothing is asked for any more: sbatch has failed; `pollux alloc resume a` goes on."
        );
    }

    #[test]
    fn what_waits_is_given_up_once_nobody_has_wanted_it_for_long() {
        let nobody = Demand { allocations: 0, wants_waiting: false, reason: "No job wants it.".to_owned() };
        let waits = queue(&[Stage::Runs, Stage::Waits, Stage::Asked]);
        let after = |since, now| decide(&Queue { unwanted_since_ms: since, ..waits.clone() }, &nobody, now).give_up;
        assert_eq!(after(None, 900_000), Vec::<u64>::new());
        assert_eq!(after(Some(300_001), 900_000), Vec::<u64>::new());
        assert_eq!(after(Some(300_000), 900_000), [2]);
    }

    #[test]
    fn failures_make_it_wait_longer_and_stop_it() {
        assert_eq!([1, 2, 3, 8, 9, 100].map(backoff_s), [10, 20, 40, 1_280, 1_800, 1_800]);
        let failed = |refusals, misses| breaks(&Queue { refusals, misses, ..queue(&[]) }, "no account");
        assert_eq!([failed(2, 0), failed(0, 2)], [None, None]);
        assert_eq!(failed(3, 0).unwrap(), "sbatch has failed 3 times in a row, the last time with: no account");
        assert!(failed(0, 3).unwrap().starts_with("3 allocations in a row have ended before a node of them joined"));
    }
}
