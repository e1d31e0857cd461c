use std::collections::{BTreeMap, BTreeSet};

use pollux_model::{BatchMode, GpuType, Shape};

use super::objective::{Aim, Demand, Shares, equal_shares, shares};
use super::settings::GavelSettings;
use crate::free_gpus::FreeGpus;
use crate::gang::{gang_size, kind_of, plan_of};
use crate::priority::priority_weights;
use crate::state::Memory;
use crate::{
    Allocation, Binding, ClusterView, JobId, JobView, PlacementRules, Plan, Policy, PolicyState, Priorities, Timestamp,
};

/// Seconds after which times received may be forgotten, when jobs have come or gone.
const RESET_S: f64 = 1_920.0;
/// What a share counts that a job has had nothing of yet.
const UNTOUCHED: f64 = 1e9;
/// Shares below this are none.
const SHARE_MIN: f64 = 1e-6;

/// Gavel (OSDI 2020): shares of time on every type, by a linear program, realised in rounds.
#[derive(Debug)]
pub(crate) struct Gavel {
    settings: GavelSettings,
    memory: GavelMemory,
}

/// Shares and what jobs have had of them.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct GavelMemory {
    jobs: BTreeMap<JobId, Received>,
    seen: Option<Timestamp>,
    round: Option<Timestamp>,
    reset: Option<Timestamp>,
    /// What is to be said of jobs since the program was last solved: that they will be late, or have an equal share because it
    /// could not be.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeMap::is_empty"))]
    notes: BTreeMap<JobId, Binding>,
}

/// A job's share of a type, and what it has had of it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Received {
    /// By type: share, seconds since times were last forgotten, seconds that it is owed from before.
    by_type: BTreeMap<GpuType, Share>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Share {
    share: f64,
    received_s: f64,
    deficit_s: f64,
}

/// A job on a type, in the order in which they are served.
struct Turn {
    priority: f64,
    deficit_s: f64,
    share: f64,
    idx: usize,
    kind: GpuType,
}

impl Gavel {
    pub(crate) fn new(settings: GavelSettings) -> Self {
        Self { settings, memory: GavelMemory::default() }
    }

    /// Counts the time since the last look for whoever has GPUs.
    fn receive(&mut self, now: Timestamp, view: &ClusterView<'_>) {
        let passed_s = self.memory.seen.map_or(0.0, |seen| now.since_s(seen));
        self.memory.seen = Some(now);
        for job in view.jobs {
            let known = self.memory.jobs.get_mut(&job.id);
            if let (Some(known), Some(kind)) = (known, kind_of(job.allocation, view)) {
                known.by_type.entry(kind).or_default().received_s += passed_s;
            }
        }
    }

    /// Solves the program again where jobs, types or what is known of speeds may have changed, once a round.
    fn share_out(&mut self, now: Timestamp, view: &ClusterView<'_>) {
        let present: BTreeSet<JobId> = view.jobs.iter().map(|job| job.id).collect();
        let changed =
            self.memory.jobs.len() != present.len() || present.iter().any(|id| !self.memory.jobs.contains_key(id));
        self.memory.jobs.retain(|id, _| present.contains(id));
        let since_s = self.memory.reset.map_or(f64::INFINITY, |reset| now.since_s(reset));
        if changed && since_s >= RESET_S {
            let since_s = if since_s.is_finite() { since_s } else { 0.0 };
            for known in self.memory.jobs.values_mut().flat_map(|known| known.by_type.values_mut()) {
                known.deficit_s += known.share * since_s - known.received_s;
                known.received_s = 0.0;
            }
            self.memory.reset = Some(now);
        }
        let gpus = FreeGpus::of(view).by_kind();
        let kinds: Vec<GpuType> = gpus.keys().copied().collect();
        let counts: Vec<f64> = gpus.values().map(|&gpus| f64::from(gpus)).collect();
        let weights = priority_weights(view);
        let empty = FreeGpus::of(view);
        let (aim, entities) = self.aim(view, &kinds);
        let demand = |((job, weight), entity): ((&JobView<'_>, &f64), usize)| Demand {
            entity,
            ..demand(now, job, *weight, &kinds, &empty)
        };
        let demands: Vec<Demand> = view.jobs.iter().zip(&weights).zip(entities).map(demand).collect();
        let by_job = match shares(&aim, &demands, &counts) {
            Ok(Shares { by_job, late }) => {
                let late = view.jobs.iter().zip(late).filter(|(_, late)| *late);
                self.memory.notes = late.map(|(job, _)| (job.id, Binding::Late)).collect();
                by_job
            }
            Err(_unsolved) => {
                self.memory.notes = view.jobs.iter().map(|job| (job.id, Binding::EqualShare)).collect();
                equal_shares(&demands, &counts)
            }
        };
        for (job, shares) in view.jobs.iter().zip(by_job) {
            let is_new = !self.memory.jobs.contains_key(&job.id);
            let known = self.memory.jobs.entry(job.id).or_default();
            known.by_type.retain(|kind, _| kinds.contains(kind));
            for (&kind, share) in kinds.iter().zip(shares) {
                let own = known.by_type.entry(kind).or_default();
                own.share = share;
                // As if it had had a little of everything, so that newcomers do not drive everybody out.
                own.received_s += if is_new { self.settings.round_s / 2.0 } else { 0.0 };
            }
        }
    }

    /// What shares are to be best for, and whose each job is.
    fn aim(&self, view: &ClusterView<'_>, kinds: &[GpuType]) -> (Aim, Vec<usize>) {
        let cost = |kind: &GpuType| {
            let name = view.gpu_types.get(usize::from(kind.0))?;
            self.settings.gpu_costs.get(name.as_str()).copied()
        };
        let owners: BTreeSet<&str> = view.jobs.iter().map(|job| job.owner).collect();
        let owners: Vec<&str> = owners.into_iter().collect();
        let settings = |owner: &&str| self.settings.owners.get(*owner).copied().unwrap_or_default();
        let aim = Aim {
            objective: self.settings.objective,
            costs: kinds.iter().map(|kind| cost(kind).unwrap_or(1.0)).collect(),
            slowdown_max: self.settings.slowdown_max,
            entities: owners.iter().map(settings).map(|owner| (owner.weight, owner.turn)).collect(),
        };
        (aim, view.jobs.iter().map(|job| owners.binary_search(&job.owner).unwrap_or(0)).collect())
    }

    /// Every job on every type that it may use, those first who have had least of their shares.
    fn turns(&self, view: &ClusterView<'_>) -> Vec<Turn> {
        let mut totals: BTreeMap<GpuType, f64> = BTreeMap::new();
        for (kind, own) in self.memory.jobs.values().flat_map(|known| &known.by_type) {
            *totals.entry(*kind).or_default() += own.received_s;
        }
        let mut turns: Vec<Turn> = Vec::new();
        for (idx, job) in view.jobs.iter().enumerate() {
            let Some(known) = self.memory.jobs.get(&job.id) else { continue };
            for (&kind, own) in known.by_type.iter().filter(|&(&kind, _)| job.allows(kind)) {
                let fraction = own.received_s / totals[&kind].max(f64::MIN_POSITIVE);
                let priority = match own.share {
                    share if share < SHARE_MIN => 0.0,
                    share if fraction <= 0.0 => share * UNTOUCHED,
                    share => share / fraction,
                };
                turns.push(Turn { priority, deficit_s: own.deficit_s, share: own.share, idx, kind });
            }
        }
        turns.sort_by(|a, b| {
            let by = |a: f64, b: f64| b.total_cmp(&a);
            by(a.priority, b.priority)
                .then(by(a.deficit_s, b.deficit_s))
                .then(by(a.share, b.share))
                .then((a.idx, a.kind).cmp(&(b.idx, b.kind)))
        });
        turns
    }

    /// Gives turns while GPUs last; who `stays` keeps what it has without one.
    fn grant(&self, view: &ClusterView<'_>, stays: impl Fn(&JobView<'_>) -> bool) -> Plan {
        let mut granted: Vec<Option<Allocation>> = vec![None; view.jobs.len()];
        let mut free = FreeGpus::beside_pinned(view);
        for (idx, job) in view.jobs.iter().enumerate() {
            let keeps = job.is_pinned() || (stays(job) && free.keep(job.per_replica(), job.allocation));
            granted[idx] = keeps.then(|| job.allocation.clone());
        }
        let mut chosen: Vec<(u32, usize, GpuType)> = Vec::new();
        let mut has_turn = vec![false; view.jobs.len()];
        let mut pools = free.clone();
        for turn in self.turns(view) {
            let job = &view.jobs[turn.idx];
            let (replica, size) = (job.per_replica(), gang_size(job));
            if granted[turn.idx].is_some() || has_turn[turn.idx] {
                continue;
            }
            let held = kind_of(job.allocation, view) == Some(turn.kind) && job.allocation.replicas() == size;
            let room = if held && pools.keep(replica, job.allocation) {
                true
            } else {
                pools.take_consolidated(turn.kind, replica, size).is_some()
            };
            if room {
                has_turn[turn.idx] = true;
                chosen.push((replica.gpus_of(size), turn.idx, turn.kind));
            }
        }
        // Who stays on its type keeps its GPUs; then the largest first.
        chosen.sort_by_key(|&(gpus, idx, _)| (std::cmp::Reverse(gpus), idx));
        let (mut moving, mut left_out) = (Vec::new(), Vec::new());
        for (_, idx, kind) in chosen {
            let job = &view.jobs[idx];
            let held = kind_of(job.allocation, view) == Some(kind) && job.allocation.replicas() == gang_size(job);
            if held && free.keep(job.per_replica(), job.allocation) {
                granted[idx] = Some(job.allocation.clone());
            } else {
                moving.push((idx, kind));
            }
        }
        for (idx, kind) in moving {
            let job = &view.jobs[idx];
            granted[idx] = free.take_consolidated(kind, job.per_replica(), gang_size(job));
            if granted[idx].is_none() {
                left_out.push(idx);
            }
        }
        for idx in left_out {
            let job = &view.jobs[idx];
            granted[idx] = free
                .kind_for(job, gang_size(job))
                .and_then(|kind| free.take_consolidated(kind, job.per_replica(), gang_size(job)));
        }
        let mut plan = plan_of(view, granted);
        for assignment in &mut plan.assignments {
            let note = self.memory.notes.get(&assignment.job);
            if let (Some(&note), Binding::Contention | Binding::Request) = (note, assignment.reason.binding) {
                assignment.reason.binding = note;
            }
        }
        plan
    }
}

/// A job as the program sees it, at the batch that its user fixed and on the GPUs that it asked for. One that was never
/// measured is taken to be as fast everywhere.
fn demand(now: Timestamp, job: &JobView<'_>, weight: f64, kinds: &[GpuType], empty: &FreeGpus) -> Demand {
    let (replica, size) = (job.per_replica(), gang_size(job));
    let steps = |kind: GpuType| -> Option<f64> {
        let profile = job.profiles.iter().find(|profile| profile.gpu_type == kind)?;
        let on_a_node = empty.most_on_a_node(kind, replica).max(1);
        let shape = Shape::new(size.div_ceil(on_a_node), size).ok()?;
        let choice = profile.goodput.chosen(shape, BatchMode::Fixed { batch_size: job.batch_size })?;
        Some(choice.throughput / f64::from(choice.batch_size().max(1)))
    };
    let runs = |kind: GpuType| job.allows(kind) && empty.most(kind, replica) >= size;
    let speed = |&kind: &GpuType| match (runs(kind), job.profiles.is_empty()) {
        (false, _) => 0.0,
        (true, true) => 1.0,
        (true, false) => steps(kind).unwrap_or(0.0),
    };
    let mut speeds: Vec<f64> = kinds.iter().map(speed).collect();
    if speeds.iter().all(|speed| *speed == 0.0) {
        // A batch that the model has no place for says nothing about where it would run.
        speeds = kinds.iter().map(|&kind| f64::from(u8::from(runs(kind)))).collect();
    }
    let batch = job.profiles.first().map(|profile| profile.goodput.limits.batch_size_baseline());
    let batch = f64::from(job.batch_size.or(batch).unwrap_or(1).max(1));
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    // What nobody declared is taken to be as much as is done.
    let remaining_steps = job.remaining_samples.map_or(job.executed_s * fastest, |samples| samples / batch).max(1.0);
    let baseline =
        job.profiles.first().map_or(batch, |profile| f64::from(profile.goodput.limits.batch_size_baseline()));
    let total_steps = remaining_steps + job.baseline_steps * baseline / batch;
    let gpus = f64::from(replica.gpus_of(size));
    Demand { gpus, speeds, weight, remaining_steps, age_s: job.age_s(now), total_steps, entity: 0 }
}

impl Policy for Gavel {
    fn name(&self) -> &'static str {
        "gavel"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        self.receive(now, view);
        // Rounds of a live cluster are not to the second.
        let is_round = self.memory.round.is_none_or(|round| now.since_s(round) >= self.settings.round_s - 1.0);
        if is_round {
            self.share_out(now, view);
            self.memory.round = Some(now);
            return self.grant(view, |_| false);
        }
        if view.jobs.iter().any(|job| !self.memory.jobs.contains_key(&job.id)) {
            self.share_out(now, view);
        }
        self.grant(view, |job| !job.allocation.is_empty())
    }

    fn save(&self) -> Option<PolicyState> {
        Some(PolicyState::new(Memory::Gavel(self.memory.clone())))
    }

    fn restore(&mut self, state: PolicyState) -> bool {
        let Memory::Gavel(memory) = state.memory else { return false };
        self.memory = memory;
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }

    fn priorities(&self) -> Priorities {
        Priorities::Ordered
    }

    fn profiles_types(&self) -> bool {
        true
    }
}
