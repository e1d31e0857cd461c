use std::collections::BTreeSet;

use super::GandivaSettings;
use super::trials::{Trials, Verdicts};
use super::turns::{Grown, Turns};
use crate::draft::Draft;
use crate::gang::{gang_size, kind_of};
use crate::rates::{Rates, busy_share, predicted};
use crate::state::Memory;
use crate::{
    Allocation, ClusterView, Flexibility, JobId, JobView, PlacementRules, Plan, Policy, PolicyState, Priorities,
    Timestamp,
};

/// Gangs take turns on a cluster that is too small for all, two at once on GPUs that one does not use up; with idle GPUs
/// jobs move together and grow (Gandiva, OSDI 2018). What is changed is measured, and undone where it does not help.
///
/// Simplified: turns are taken over the whole cluster and not node by node, so that affinity between gangs of one size is
/// left to placement on the fewest nodes; how busy a job keeps its GPUs is read from its profile and not from the GPUs.
#[derive(Debug)]
pub(crate) struct Gandiva {
    settings: GandivaSettings,
    memory: GandivaMemory,
}

/// What it remembers from plan to plan.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct GandivaMemory {
    turns: Turns,
    rates: Rates,
    trials: Trials,
}

impl Gandiva {
    pub(crate) fn new(settings: GandivaSettings) -> Self {
        Self { settings, memory: GandivaMemory::default() }
    }

    /// Takes back what did not help, as far as the GPUs for it are there.
    fn undo(&self, draft: &mut Draft<'_>, verdicts: &Verdicts) {
        for (idx, job) in draft.view.jobs.iter().enumerate() {
            let (Some(before), Some(now)) = (verdicts.undo.get(&job.id), draft.owned(idx).cloned()) else { continue };
            if now != *job.allocation || job.is_pinned() {
                continue;
            }
            draft.free.give_back(job.per_replica(), &now);
            if !draft.keep(idx, before) {
                draft.keep(idx, &now);
            }
        }
    }

    /// Lets a job that waits share the GPUs of one that runs, where both were measured and their profiles promise enough.
    fn pack(&self, draft: &mut Draft<'_>, idx: usize) -> bool {
        let (view, guest) = (draft.view, &draft.view.jobs[idx]);
        let size = gang_size(guest);
        if self.memory.rates.alone(guest.id, size).is_none() || guest.flexibility != Flexibility::Elastic {
            return false;
        }
        let promise = |host: usize| -> Option<(f64, Allocation)> {
            let part = draft.room_beside(host, guest)?;
            let host = &view.jobs[host];
            self.memory.rates.alone(host.id, host.allocation.replicas())?;
            let busy = busy_share(host, host.allocation, view)? + busy_share(guest, &part, view)?;
            Some((2.0 / busy.max(1.0), part)).filter(|(rate, _)| *rate >= self.settings.packing_rate_min)
        };
        let hosting: BTreeSet<JobId> = view.jobs.iter().filter_map(|job| job.guest_of).collect();
        let hosts = view.jobs.iter().enumerate().filter(|&(idx, host)| {
            let free = !hosting.contains(&host.id) && (draft.could_host(idx) || draft.could_stay(idx));
            free && is_movable(host)
        });
        let hosts = hosts
            .filter(|(_, host)| self.memory.trials.may_pack(host.id, guest.id) && !self.memory.trials.is_open(host.id));
        let promises = hosts.filter_map(|(host, _)| Some((host, promise(host)?)));
        let best = promises.max_by(|(a, one), (b, other)| one.0.total_cmp(&other.0).then(b.cmp(a)));
        let Some((host, (_, part))) = best else { return false };
        if !draft.has(host) {
            draft.keep(host, view.jobs[host].allocation);
        }
        draft.invite(idx, view.jobs[host].id, part);
        true
    }

    /// Moves jobs onto fewer nodes where that pays before long: a job is taken to last as long as it has run.
    fn migrate(&mut self, draft: &mut Draft<'_>) {
        for _ in 0..self.settings.migrations_max {
            let moves = (0..draft.view.jobs.len()).filter_map(|idx| self.migration(draft, idx));
            let Some((idx, _, allocation)) = moves.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))) else {
                return;
            };
            let job = &draft.view.jobs[idx];
            let Some(rate) = self.memory.rates.current(job.id) else { return };
            draft.free.give_back(job.per_replica(), job.allocation);
            draft.keep(idx, &allocation);
            self.memory.trials.begin(job.id, job.allocation.clone(), allocation, rate);
        }
    }

    /// Where a job would be better off, and the seconds it would save.
    fn migration(&self, draft: &Draft<'_>, idx: usize) -> Option<(usize, f64, Allocation)> {
        let (job, view) = (&draft.view.jobs[idx], draft.view);
        let may = is_movable(job) && job.allocation.is_multi_node() && draft.could_host(idx);
        if !may || !self.memory.trials.may_migrate(job.id) || self.memory.rates.current(job.id).is_none() {
            return None;
        }
        let mut free = draft.free.clone();
        free.give_back(job.per_replica(), job.allocation);
        let kind = kind_of(job.allocation, view)?;
        let better = free.take_consolidated(kind, job.per_replica(), job.allocation.replicas())?;
        let gain = predicted(job, &better, view)? / predicted(job, job.allocation, view)?;
        let saved_s = job.executed_s * (1.0 - 1.0 / gain);
        let fewer = better.iter().len() < job.allocation.iter().len();
        let pays = gain >= 1.0 + self.settings.gain_min && saved_s > job.restart_cost_s;
        (fewer && pays).then_some((idx, saved_s, better))
    }

    /// Lets jobs that may grow have idle GPUs, up to twice what they have at a time.
    fn grow(&mut self, draft: &mut Draft<'_>) {
        for (idx, job) in draft.view.jobs.iter().enumerate() {
            let opportunistic = self.settings.grow_all || job.priority < 0;
            let held = job.allocation.replicas();
            let size_max = job.replicas_max.min(self.memory.trials.size_max(job.id)).min(held.saturating_mul(2));
            let may = opportunistic && is_movable(job) && draft.could_host(idx) && !self.memory.trials.is_open(job.id);
            let (Some(kind), Some(rate)) = (kind_of(job.allocation, draft.view), self.memory.rates.current(job.id))
            else {
                continue;
            };
            if !may || size_max <= held {
                continue;
            }
            let more = draft.free.take_beside(job, kind, size_max - held);
            if !more.is_empty() {
                let grown = job.allocation.plus(&more);
                self.memory.trials.begin(job.id, job.allocation.clone(), grown.clone(), rate);
                draft.give(idx, grown);
            }
        }
    }
}

impl Policy for Gandiva {
    fn name(&self) -> &'static str {
        "gandiva"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        self.memory.turns.watch(now, view);
        self.memory.rates.watch(now, view);
        let verdicts = self.memory.trials.judge(&self.settings, &self.memory.rates, view);
        let waits = |draft: &Draft<'_>| {
            let outside = |idx: &usize| !draft.has(*idx) && view.jobs[*idx].guest_of.is_none();
            (0..view.jobs.len()).any(|idx| outside(&idx))
        };
        let pack = |draft: &mut Draft<'_>, idx: usize| self.pack(draft, idx);
        let mut draft = self.memory.turns.take(&self.settings, now, view, Grown::Stay, &pack);
        if waits(&draft) {
            draft = self.memory.turns.take(&self.settings, now, view, Grown::Shrink, &pack);
        }
        let overload = waits(&draft);
        self.undo(&mut draft, &verdicts);
        for (idx, job) in view.jobs.iter().enumerate().filter(|(_, job)| job.guest_of.is_some()) {
            let bad = job.guest_of.is_some_and(|host| self.memory.trials.is_bad(host, job.id));
            let alone = !draft.has(idx) && !overload && draft.place(idx);
            if !draft.has(idx) && !alone && !bad {
                draft.stay(idx);
            }
        }
        if !overload {
            self.migrate(&mut draft);
            self.grow(&mut draft);
        }
        let plan = draft.plan();
        self.memory.turns.begin(now, &plan);
        self.memory.rates.expect(now, &plan);
        plan
    }

    fn priorities(&self) -> Priorities {
        Priorities::Opportunistic
    }

    fn save(&self) -> Option<PolicyState> {
        Some(PolicyState::new(Memory::Gandiva(self.memory.clone())))
    }

    fn restore(&mut self, state: PolicyState) -> bool {
        let Memory::Gandiva(memory) = state.memory else { return false };
        self.memory = memory;
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }

    fn plans_on_events(&self) -> bool {
        true
    }
}

/// Whether its place and size may be chosen now.
fn is_movable(job: &JobView<'_>) -> bool {
    job.flexibility == Flexibility::Elastic && !job.allocation.is_empty()
}
