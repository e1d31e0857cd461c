use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::GandivaSettings;
use crate::draft::{Draft, part_of, take_gang};
use crate::free_gpus::FreeGpus;
use crate::gang::gang_size;
use crate::{Allocation, ClusterView, JobId, JobView, Plan, Timestamp};

/// A turn lasts so many times what it costs to begin one, so that where suspending is dear little is lost to it.
const TURN_TO_COST: f64 = 10.0;

/// Jobs that begin to share in a round: each is an experiment on two.
const PACKINGS_MAX: usize = 4;

/// Puts a job beside another, if there is one that it should share with.
pub(super) type Pack<'a> = &'a dyn Fn(&mut Draft<'_>, usize) -> bool;

/// What becomes of jobs that have more than they asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grown {
    Stay,
    Shrink,
}

/// Who runs, who waits, and since when.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Turns {
    jobs: BTreeMap<JobId, Turn>,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Turn {
    since: Timestamp,
    /// Whether it has GPUs since then, or waits.
    runs: bool,
    /// When a plan last gave it GPUs that it had not had.
    granted: Option<Timestamp>,
    /// Where it last ran on GPUs of its own, and its state may still be.
    home: Allocation,
}

impl Turns {
    pub(super) fn watch(&mut self, now: Timestamp, view: &ClusterView<'_>) {
        let mut before = std::mem::take(&mut self.jobs);
        for job in view.jobs {
            let runs = !job.allocation.is_empty();
            let since = if runs { now } else { job.eligible_since };
            let new = || Turn { since, runs, granted: None, home: Allocation::NONE };
            let mut turn = before.remove(&job.id).unwrap_or_else(new);
            if turn.runs != runs {
                (turn.since, turn.runs) = (turn.granted.filter(|_| runs).unwrap_or(now), runs);
            }
            if runs && job.guest_of.is_none() {
                turn.home = job.allocation.clone();
            }
            self.jobs.insert(job.id, turn);
        }
    }

    /// Notes whose turn a plan begins.
    pub(super) fn begin(&mut self, now: Timestamp, plan: &Plan) {
        for assignment in plan.assignments.iter().filter(|assignment| !assignment.allocation.is_empty()) {
            if let Some(turn) = self.jobs.get_mut(&assignment.job).filter(|turn| !turn.runs) {
                turn.granted = Some(now);
            }
        }
    }

    /// Gives GPUs out: to those whose turn is not over, to those who wait, longest first, and what is left to those who
    /// had their turn. Whoever waits longest and does not fit is not overtaken, unless it could not fit anyway.
    pub(super) fn take<'a>(
        &self,
        settings: &GandivaSettings,
        now: Timestamp,
        view: &'a ClusterView<'a>,
        grown: Grown,
        pack: Pack<'_>,
    ) -> Draft<'a> {
        let mut draft = Draft::new(view);
        let open: Vec<usize> = (0..view.jobs.len()).filter(|&idx| !draft.has(idx)).collect();
        let owners = |over: bool| {
            let on_turn = move |job: &JobView<'_>| !job.allocation.is_empty() && job.guest_of.is_none();
            let is =
                move |&idx: &usize| on_turn(&view.jobs[idx]) && self.is_over(&view.jobs[idx], settings, now) == over;
            open.iter().copied().filter(is)
        };
        let mut over: Vec<usize> = owners(true).collect();
        over.sort_by_key(|&idx| (Reverse(self.since(&view.jobs[idx])), idx));
        let mut waiting: Vec<usize> =
            open.iter().copied().filter(|&idx| view.jobs[idx].allocation.is_empty()).collect();
        waiting.sort_by_key(|&idx| (self.since(&view.jobs[idx]), idx));

        let movable = draft.free.clone();
        for idx in owners(false).collect::<Vec<_>>() {
            keep(&mut draft, idx, grown);
        }
        self.start(&mut draft, &waiting, &over, &movable, pack);
        for idx in over {
            if !draft.has(idx) {
                keep(&mut draft, idx, grown);
            }
        }
        draft
    }

    /// Starts those who wait: where they were or where nobody is, beside somebody, or where somebody had a turn.
    fn start(&self, draft: &mut Draft<'_>, waiting: &[usize], over: &[usize], movable: &FreeGpus, pack: Pack<'_>) {
        let view = draft.view;
        let mut packings = 0;
        let mut idle = draft.free.clone();
        for &idx in over {
            idle.pin_job(&view.jobs[idx]);
        }
        let mut blocked = false;
        for &idx in waiting {
            let job = &view.jobs[idx];
            let (replica, size) = (job.per_replica(), gang_size(job));
            let home = self.jobs.get(&job.id).map(|turn| &turn.home).filter(|home| home.replicas() == size);
            let unused = if blocked { None } else { take_at(&mut idle, home, job) };
            if let Some(allocation) = unused {
                draft.free.pin(replica, &allocation);
                draft.give(idx, allocation);
            } else if packings < PACKINGS_MAX && pack(draft, idx) {
                packings += 1;
                if let Some(part) = draft.share(idx) {
                    idle.pin(replica.as_guest(), part);
                }
            } else if let Some(allocation) = if blocked { None } else { take_at(&mut draft.free, home, job) } {
                idle.pin(replica, &allocation);
                draft.give(idx, allocation);
            } else {
                blocked |= movable.has_room(job, size);
            }
        }
    }

    fn is_over(&self, job: &JobView<'_>, settings: &GandivaSettings, now: Timestamp) -> bool {
        let turn_s = settings.quantum_s.max(TURN_TO_COST * job.restart_cost_s);
        now.since_s(self.since(job)) >= turn_s
    }

    fn since(&self, job: &JobView<'_>) -> Timestamp {
        self.jobs.get(&job.id).map_or(job.eligible_since, |turn| turn.since)
    }
}

/// A gang where it was, or else anywhere.
fn take_at(free: &mut FreeGpus, home: Option<&Allocation>, job: &JobView<'_>) -> Option<Allocation> {
    home.filter(|home| free.keep(job.per_replica(), home)).cloned().or_else(|| take_gang(free, job))
}

fn keep(draft: &mut Draft<'_>, idx: usize, grown: Grown) {
    let job = &draft.view.jobs[idx];
    let (held, size) = (job.allocation.replicas(), gang_size(job));
    let part = if grown == Grown::Shrink && held > size { part_of(job.allocation, size) } else { None };
    let kept = held >= size && draft.keep(idx, part.as_ref().unwrap_or(job.allocation));
    if !kept {
        draft.place(idx);
    }
}
