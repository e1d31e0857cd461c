//! From a view to an optimiser's problem and back, for policies that choose sizes by goodput.

use std::collections::BTreeMap;

use pollux_model::GpuType;

use crate::by_size::BySize;
use crate::cheapest_donors::CheapestDonors;
use crate::optimiser::{JobOptions, Keep, Problem, ProblemNode, Solution};
use crate::speedups::{GoodputTables, Sizes, Speedups};
use crate::waiting::{Settled, WaitLimits, settle};
use crate::{
    Allocation, Assignment, Binding, ClusterView, Flexibility, JobView, NodeId, PlacementRules, Plan, Quality, Reason,
    ReplicaResources, Timestamp,
};

/// A speedup of nothing still counts this much, so that a job without GPUs does not outweigh all others.
pub(crate) const SPEEDUP_FLOOR: f64 = 4e-3;

/// What a policy built on goodput decides about one job's options.
pub(crate) struct Preferences<'a> {
    pub(crate) rules: PlacementRules,
    /// What a change to a speedup leaves of it, for the job at an index of the view.
    pub(crate) restart_factor: &'a dyn Fn(usize, f64) -> f64,
    /// Worth of a speedup for the job at an index of the view.
    pub(crate) utility: &'a dyn Fn(usize, f64) -> f64,
}

/// A view in the words of the optimiser.
pub(crate) struct Elastic<'a> {
    view: &'a ClusterView<'a>,
    /// Nodes that may be used, as indices into the view.
    usable: Vec<usize>,
    kinds: Vec<GpuType>,
    /// Room for each kind of replica that a job has, by kind of GPU: jobs are many, kinds are few.
    rooms: BTreeMap<ReplicaResources, Vec<Room>>,
    pub(crate) speedups: Vec<&'a Speedups>,
    /// What the objective has no say in.
    settled: Settled,
}

/// Replicas that fit on the nodes of a kind of GPU, were they all empty.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    on_a_node: u32,
    in_all: u32,
}

impl<'a> Elastic<'a> {
    pub(crate) fn new(
        now: Timestamp,
        view: &'a ClusterView<'a>,
        tables: &'a mut GoodputTables,
        profile_limit: f64,
        limits: &WaitLimits,
    ) -> Self {
        let usable: Vec<usize> = (0..view.nodes.len()).filter(|&idx| view.nodes[idx].schedulable).collect();
        let mut kinds: Vec<GpuType> = usable.iter().map(|&idx| view.nodes[idx].gpu_type).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let rooms = rooms(view, &kinds);
        let fair_gpus = view.gpus().div_ceil((view.jobs.len() as u32).max(1)).max(1);
        let share = f64::from(view.gpus()) / (view.jobs.len().max(1) as f64);
        let sizes = |job: &JobView<'_>| {
            let allowed = kinds.iter().zip(&rooms[&job.per_replica()]).filter(|&(&kind, _)| job.allows(kind));
            let (single_max, multi_max) = allowed.fold((0, 0), |(single_max, multi_max): (u32, u32), (_, room)| {
                (single_max.max(room.on_a_node), multi_max.saturating_add(room.in_all))
            });
            Sizes { single_max, multi_max, fair_gpus, share, profile_limit }
        };
        let speedups = tables.speedups(view, &kinds, sizes);
        let possible = |idx: usize, kind: GpuType, replicas: u32| {
            kinds.binary_search(&kind).is_ok_and(|kind| speedups[idx].best(kind, replicas) > 0.0)
        };
        let settled = settle(now, view, limits, &possible);
        Self { view, usable, kinds, rooms, speedups, settled }
    }

    /// GPUs of the largest node of each kind.
    pub(crate) fn node_gpus(&self) -> Vec<u32> {
        let mut largest = vec![1; self.kinds.len()];
        for node in self.usable.iter().map(|&idx| &self.view.nodes[idx]) {
            if let Ok(kind) = self.kinds.binary_search(&node.gpu_type) {
                largest[kind] = largest[kind].max(node.gpus);
            }
        }
        largest
    }

    pub(crate) fn problem(&self, preferences: &Preferences<'_>) -> Problem {
        let rule = preferences.rules.one_multi_node_job_per_node;
        let node = |&idx: &usize| {
            let node = &self.view.nodes[idx];
            let kind = self.kinds.binary_search(&node.gpu_type).unwrap_or(0);
            ProblemNode { resources: node.resources(), hosts_multi: false, kind }
        };
        let mut nodes: Vec<ProblemNode> = self.usable.iter().map(node).collect();
        for (job, fixed) in self.view.jobs.iter().zip(&self.settled.fixed) {
            // A guest is on GPUs that its host has, but needs CPUs and memory of its own.
            let is_guest = job.guest_of.is_some();
            let taken = if is_guest { job.per_replica().as_guest() } else { job.per_replica() };
            let spans = fixed.as_ref().is_some_and(Allocation::is_multi_node);
            for (id, replicas) in fixed.iter().flat_map(Allocation::iter) {
                if let Some(place) = self.place(id) {
                    nodes[place].resources.take(taken, replicas);
                    nodes[place].hosts_multi |= rule && !is_guest && spans;
                }
            }
        }
        for (&id, &gpus) in &self.settled.withheld {
            if let Some(place) = self.place(id) {
                nodes[place].resources.take(ReplicaResources::ONE_GPU, gpus);
            }
        }
        let jobs = (0..self.view.jobs.len()).map(|idx| self.options(idx, preferences)).collect();
        Problem { nodes, jobs, one_multi_node_job_per_node: rule }
    }

    /// A node as an index of the problem.
    fn place(&self, node: NodeId) -> Option<usize> {
        self.usable.binary_search_by_key(&node, |&idx| self.view.nodes[idx].id).ok()
    }

    fn options(&self, idx: usize, preferences: &Preferences<'_>) -> JobOptions {
        let job = &self.view.jobs[idx];
        let speedups = self.speedups[idx];
        let replica = job.per_replica();
        let none_of = |none: f64| JobOptions { replica, none, keep: None, sizes: BySize::default() };
        if let Some(fixed) = &self.settled.fixed[idx] {
            return none_of((preferences.utility)(idx, self.speedup_on(idx, fixed)));
        }
        let none = (preferences.utility)(idx, 0.0);
        if self.settled.barred[idx] {
            return none_of(none);
        }
        let as_it_is = (preferences.utility)(idx, self.speedup_on(idx, job.allocation));
        let keep = self.keep(job).map(|places| Keep { value: as_it_is, places });
        let allowed = match job.flexibility {
            Flexibility::Rigid => job.replicas_requested..=job.replicas_requested,
            Flexibility::Elastic | Flexibility::NonPreemptible => job.replicas_min.max(1)..=job.replicas_max,
        };
        let worth = |replicas: u32, speedup: f64| {
            if speedup > 0.0 && allowed.contains(&replicas) {
                (preferences.utility)(idx, speedup * (preferences.restart_factor)(idx, speedup))
            } else {
                f64::NEG_INFINITY
            }
        };
        JobOptions { replica, none, keep, sizes: speedups.sizes.map(worth) }
    }

    /// What a job holds as places of the problem, if all of it can be kept.
    fn keep(&self, job: &JobView<'_>) -> Option<Vec<(usize, u32)>> {
        if job.allocation.is_empty() {
            return None;
        }
        let place = |(node, replicas): (NodeId, u32)| {
            let place = self.place(node)?;
            let fits = self.view.nodes[self.usable[place]].resources().fits(job.per_replica());
            (fits >= replicas).then_some((place, replicas))
        };
        job.allocation.iter().map(place).collect()
    }

    fn speedup_on(&self, idx: usize, allocation: &Allocation) -> f64 {
        let node = allocation.iter().next().and_then(|(node, _)| {
            let idx = self.view.nodes.binary_search_by_key(&node, |node| node.id).ok()?;
            Some(&self.view.nodes[idx])
        });
        let kind = node.and_then(|node| self.kinds.binary_search(&node.gpu_type).ok());
        kind.map_or(0.0, |kind| self.speedups[idx].at(kind, allocation.replicas(), allocation.is_multi_node()))
    }

    /// The optimiser's answer as a plan with reasons.
    pub(crate) fn plan(&self, problem: &Problem, solution: &Solution, quality: Quality) -> Plan {
        let donors = CheapestDonors::of(problem, solution);
        let assignments = self.view.jobs.iter().enumerate().map(|(idx, job)| {
            let id = |place: usize| self.view.nodes[self.usable[place]].id;
            let (allocation, reason) = match &self.settled.fixed[idx] {
                Some(fixed) => {
                    let places = fixed.iter().filter_map(|(node, replicas)| Some((self.place(node)?, replicas)));
                    (fixed.clone(), self.reason(idx, &places.collect::<Vec<_>>(), problem, &donors))
                }
                None => {
                    let places = &solution.places[idx];
                    let planned = places.iter().map(|&(place, replicas)| (id(place), replicas)).collect();
                    (planned, self.reason(idx, places, problem, &donors))
                }
            };
            Assignment { job: job.id, allocation, guest_of: job.pinned_to(), reason }
        });
        Plan { assignments: assignments.collect(), quality: Some(quality) }
    }

    fn reason(&self, idx: usize, places: &[(usize, u32)], problem: &Problem, donors: &CheapestDonors<'_>) -> Reason {
        let job = &self.view.jobs[idx];
        let speedups = self.speedups[idx];
        if job.is_pinned() {
            return Reason { binding: Binding::Request, ..Reason::default() };
        }
        let replicas: u32 = places.iter().map(|&(_, replicas)| replicas).sum();
        let kind = places.first().map_or(0, |&(place, _)| problem.nodes[place].kind);
        let now = speedups.at(kind, replicas, places.len() > 1);
        let with = |replicas: u32| {
            let value = speedups.best(kind, replicas);
            (value > 0.0 && now > 0.0).then(|| value / now - 1.0)
        };
        let one_more = with(replicas + 1);
        let binding = if job.flexibility == Flexibility::Rigid {
            if replicas == 0 && speedups.best(kind, job.replicas_requested) <= 0.0 {
                self.view.obstacle(job, job.replicas_requested).unwrap_or(Binding::Impossible)
            } else if replicas == 0 {
                Binding::Contention
            } else {
                Binding::Request
            }
        } else if let Some(obstacle) =
            (replicas == 0).then(|| self.view.obstacle(job, job.replicas_min.max(1))).flatten()
        {
            obstacle
        } else if replicas >= job.replicas_max.min(speedups.room)
            || (replicas > 0 && replicas >= self.rooms[&job.per_replica()][kind].in_all)
        {
            Binding::Maximum
        } else if replicas >= speedups.profile_max {
            Binding::Profile
        } else if replicas > 0 && one_more.is_none_or(|gain| gain <= 0.0) {
            Binding::NoGain
        } else if self.waits_for_restart_cost(idx, places, problem) {
            Binding::RestartCost
        } else {
            Binding::Contention
        };
        let payer =
            donors.cheapest_but(idx).filter(|&donor| replicas == 0 || donors.kind(donor, problem) == Some(kind));
        let payer = payer.map(|donor| {
            let places = &donors.places[donor];
            let held: u32 = places.iter().map(|&(_, replicas)| replicas).sum();
            let kind = places.first().map_or(0, |&(place, _)| problem.nodes[place].kind);
            let speedups = self.speedups[donor];
            let now = speedups.at(kind, held, places.len() > 1);
            let left = if held > 1 { speedups.best(kind, held - 1) } else { 0.0 };
            (self.view.jobs[donor].id, if now > 0.0 { left / now - 1.0 } else { 0.0 })
        });
        let one_fewer = if replicas > 1 { with(replicas - 1) } else { (replicas == 1).then_some(-1.0) };
        Reason { binding, one_more, one_fewer, payer }
    }

    /// Whether it stays although an untouched job of its kind would rather be larger.
    fn waits_for_restart_cost(&self, idx: usize, places: &[(usize, u32)], problem: &Problem) -> bool {
        let options = &problem.jobs[idx];
        options.keep.as_ref().is_some_and(|keep| {
            keep.places == places
                && places.first().is_some_and(|&(place, _)| {
                    let kind = problem.nodes[place].kind;
                    let more = keep.replicas() + 1;
                    let at = |is_multi| options.sizes.at(kind, more, is_multi).unwrap_or(f64::NEG_INFINITY);
                    at(false).max(at(true)) <= keep.value
                })
        })
    }
}

fn rooms(view: &ClusterView<'_>, kinds: &[GpuType]) -> BTreeMap<ReplicaResources, Vec<Room>> {
    let mut rooms: BTreeMap<ReplicaResources, Vec<Room>> = BTreeMap::new();
    for job in view.jobs {
        let replica = job.per_replica();
        rooms.entry(replica).or_insert_with(|| {
            let mut by_kind = vec![Room::default(); kinds.len()];
            for node in view.nodes.iter().filter(|node| node.schedulable) {
                let fits = node.resources().fits(replica);
                if let Ok(kind) = kinds.binary_search(&node.gpu_type) {
                    let room = &mut by_kind[kind];
                    *room = Room { on_a_node: room.on_a_node.max(fits), in_all: room.in_all.saturating_add(fits) };
                }
            }
            by_kind
        });
    }
    rooms
}

/// What a changed allocation leaves of a job's speedup: it has its age to win back what its restarts cost
/// (section 4.2.1 of the paper).
pub(crate) fn restart_factor(job: &JobView<'_>, now: Timestamp) -> f64 {
    let age_s = job.age_s(now);
    let lost_s = f64::from(job.restarts) * job.restart_cost_s;
    (age_s - lost_s).max(0.0) / (age_s + job.restart_cost_s).max(f64::MIN_POSITIVE)
}
