use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::draft::{Draft, take_gang};
use crate::free_gpus::FreeGpus;
use crate::gang::{gang_size, quietest};
use crate::rates::{Rates, busy_share};
use crate::state::Memory;
use crate::{
    Allocation, ClusterView, Flexibility, JobId, JobView, PlacementRules, Plan, Policy, PolicyState, Priorities,
    Sharing, Timestamp,
};

/// Settings of [`PolicySettings::AntMan`](crate::PolicySettings::AntMan).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct AntManSettings {
    /// Whether guaranteed jobs run like opportunistic ones until their turn comes.
    pub queue_runs: bool,
    /// Share of its speed from which on a guaranteed job is rid of a guest that costs it that.
    pub slowdown_max: f64,
}

impl Default for AntManSettings {
    fn default() -> Self {
        Self { queue_runs: true, slowdown_max: 0.1 }
    }
}

/// Guaranteed jobs get their gang, first come, first served, and keep it. Opportunistic ones, of priorities below 0, use
/// what is left: idle GPUs, and those of guaranteed jobs as guests who get what these leave idle; they yield at once
/// (AntMan, OSDI 2020).
///
/// Simplified: there are no quotas of tenants, so that a guarantee is given while GPUs last; memory is taken to suffice for
/// two; how busy a job keeps its GPUs is read from its profile.
#[derive(Debug)]
pub(crate) struct AntMan {
    settings: AntManSettings,
    memory: AntManMemory,
}

/// What it remembers from plan to plan.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct AntManMemory {
    /// Jobs whose turn has come.
    guaranteed: BTreeSet<JobId>,
    /// Hosts and guests that slowed them down.
    bad_pairs: BTreeSet<(JobId, JobId)>,
    rates: Rates,
}

impl AntMan {
    pub(crate) fn new(settings: AntManSettings) -> Self {
        Self { settings, memory: AntManMemory::default() }
    }

    /// Forgets jobs that ended, and notes hosts that suffer.
    fn watch(&mut self, now: Timestamp, view: &ClusterView<'_>) {
        self.memory.rates.watch(now, view);
        let present: BTreeSet<JobId> = view.jobs.iter().map(|job| job.id).collect();
        self.memory.guaranteed.retain(|job| present.contains(job));
        self.memory.bad_pairs.retain(|(host, guest)| present.contains(host) && present.contains(guest));
        for guest in view.jobs {
            let host = guest.guest_of.and_then(|host| view.jobs.iter().find(|job| job.id == host));
            let speed = host.and_then(|host| Some((host.id, self.memory.rates.beside(host)?)));
            if let Some((host, _)) = speed.filter(|(_, speed)| *speed < 1.0 - self.settings.slowdown_max) {
                self.memory.bad_pairs.insert((host, guest.id));
            }
        }
    }

    /// Gives guaranteed jobs their gangs. Nobody overtakes one that does not fit yet.
    fn guarantee(&mut self, draft: &mut Draft<'_>) {
        let view = draft.view;
        let mut queue: Vec<usize> = (0..view.jobs.len()).filter(|&idx| view.jobs[idx].priority >= 0).collect();
        let waits = |job: &JobView<'_>| !self.memory.guaranteed.contains(&job.id);
        queue.sort_by_key(|&idx| (waits(&view.jobs[idx]), Reverse(view.jobs[idx].priority), idx));
        let empty = FreeGpus::of(view);
        for idx in queue {
            let (job, size) = (&view.jobs[idx], gang_size(&view.jobs[idx]));
            let held = job.allocation.replicas() == size && job.guest_of.is_none();
            if !(draft.has(idx) || held && draft.keep(idx, job.allocation)) {
                place(draft, idx);
            }
            if draft.owned(idx).is_some() {
                self.memory.guaranteed.insert(job.id);
            } else if empty.has_room(job, size) {
                return;
            }
        }
    }

    /// Lets the others have what is left, those first that have it already.
    fn fill(&self, draft: &mut Draft<'_>) {
        let view = draft.view;
        let runs = |job: &JobView<'_>| job.priority < 0 || self.settings.queue_runs;
        let mut rest: Vec<usize> =
            (0..view.jobs.len()).filter(|&idx| !draft.has(idx) && runs(&view.jobs[idx])).collect();
        rest.sort_by_key(|&idx| (Reverse(view.jobs[idx].priority), idx));
        rest.retain(|&idx| {
            let job = &view.jobs[idx];
            let held = job.guest_of.is_none() && job.allocation.replicas() == gang_size(job);
            !(held && draft.keep(idx, job.allocation))
        });
        rest.retain(|&idx| !draft.place(idx));
        rest.retain(|&idx| !(self.may_stay(&view.jobs[idx]) && draft.stay(idx)));
        let mut hosts = self.hosts(draft);
        for idx in rest {
            if let Some((place, part)) = self.host_for(draft, &hosts, &view.jobs[idx]) {
                draft.invite(idx, view.jobs[hosts.remove(place)].id, part);
            }
        }
    }

    /// Guaranteed jobs that can take a guest in, the least busy first, as indices of the view.
    fn hosts(&self, draft: &Draft<'_>) -> Vec<usize> {
        let view = draft.view;
        let known = view
            .jobs
            .iter()
            .enumerate()
            .filter(|(idx, host)| self.memory.guaranteed.contains(&host.id) && draft.could_host(*idx));
        let mut hosts: Vec<(f64, usize)> =
            known.filter_map(|(idx, host)| Some((busy_share(host, host.allocation, view)?, idx))).collect();
        hosts.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        hosts.into_iter().map(|(_, idx)| idx).collect()
    }

    fn may_stay(&self, guest: &JobView<'_>) -> bool {
        guest.guest_of.is_some_and(|host| {
            self.memory.guaranteed.contains(&host) && !self.memory.bad_pairs.contains(&(host, guest.id))
        })
    }

    /// The first of the hosts that a guest fits beside. Only one that can be sent away at any time is let in.
    fn host_for(&self, draft: &Draft<'_>, hosts: &[usize], guest: &JobView<'_>) -> Option<(usize, Allocation)> {
        if guest.flexibility != Flexibility::Elastic {
            return None;
        }
        hosts.iter().enumerate().find_map(|(place, &idx)| {
            let host = &draft.view.jobs[idx];
            let may = !self.memory.bad_pairs.contains(&(host.id, guest.id));
            Some((place, draft.room_beside(idx, guest).filter(|_| may)?))
        })
    }
}

impl Policy for AntMan {
    fn name(&self) -> &'static str {
        "antman"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        self.watch(now, view);
        let mut draft = Draft::new(view);
        self.guarantee(&mut draft);
        self.fill(&mut draft);
        let plan = draft.plan();
        self.memory.rates.expect(now, &plan);
        plan
    }

    fn priorities(&self) -> Priorities {
        Priorities::Ordered
    }

    fn save(&self) -> Option<PolicyState> {
        Some(PolicyState::new(Memory::AntMan(self.memory.clone())))
    }

    fn restore(&mut self, state: PolicyState) -> bool {
        let Memory::AntMan(memory) = state.memory else { return false };
        self.memory = memory;
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }

    fn sharing(&self) -> Sharing {
        Sharing::HostFirst
    }

    fn plans_on_events(&self) -> bool {
        true
    }
}

/// Places a guaranteed job where it drives nobody out, unless that takes more nodes.
fn place(draft: &mut Draft<'_>, idx: usize) {
    let job = &draft.view.jobs[idx];
    let mut idle = draft.free.clone();
    for (other, job) in draft.view.jobs.iter().enumerate() {
        if !draft.has(other) && job.guest_of.is_none() {
            idle.pin_job(job);
        }
    }
    let chosen = quietest(&mut draft.free.clone(), idle, |free| take_gang(free, job));
    if let Some(allocation) = chosen {
        draft.keep(idx, &allocation);
    }
}
