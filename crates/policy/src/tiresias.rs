use std::collections::{BTreeMap, BTreeSet};

use pollux_model::{BatchMode, Shape};

use crate::gang::{GangPlacement, Overtaking, gang_size, plan_placed_gangs};
use crate::gittins::JobSizes;
use crate::state::Memory;
use crate::{ClusterView, JobId, JobView, PlacementRules, Plan, Policy, PolicyState, Timestamp};

const HOUR_S: f64 = 3600.0;
/// Nobody waits longer for GPUs on few nodes.
const CONSOLIDATION_WAIT_S: f64 = 900.0;

/// Settings of [`PolicySettings::Tiresias`](crate::PolicySettings::Tiresias).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct TiresiasSettings {
    /// GPU-hours after which a job moves to the next queue, increasing; lower favours short jobs more.
    pub queue_gpu_hours: Vec<f64>,
    /// A job that waits for so many times as long as it has run starts over in the first queue; none never does.
    pub promote_knob: Option<f64>,
    /// Who goes first within a queue.
    pub priority: TiresiasPriority,
    /// GPU-hours of typical jobs, for the Gittins index; without any they are learned from jobs that finish.
    pub job_gpu_hours: Vec<f64>,
    /// Who is put on as few nodes as possible.
    pub consolidate: Consolidate,
    /// Longer steps over several nodes than on one, as a share, from which a job needs to be consolidated.
    pub consolidate_margin: f64,
}

/// Who goes first within a queue of Tiresias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum TiresiasPriority {
    /// Whoever came to it first: nothing is known but attained service.
    Las,
    /// Whoever is likeliest to end for what it takes, by the sizes of other jobs.
    Gittins,
}

/// Which jobs of Tiresias wait for GPUs on few nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Consolidate {
    /// Those that were measured to be slower over several nodes.
    Needed,
    /// All.
    Always,
    /// None: the emptiest nodes are taken first.
    Never,
}

impl Default for TiresiasSettings {
    /// As the Pollux paper ran it.
    fn default() -> Self {
        Self {
            queue_gpu_hours: vec![16.0],
            promote_knob: None,
            priority: TiresiasPriority::Las,
            job_gpu_hours: Vec::new(),
            consolidate: Consolidate::Never,
            consolidate_margin: 0.1,
        }
    }
}

/// Least attained service first, in discrete queues (Tiresias, NSDI 2019): a job runs as asked for, those of a queue
/// before those of the next; GPUs times seconds decide when it moves on.
///
/// Within a queue jobs go in the order in which they came to it, or by Gittins index: that of the service they attained,
/// up to the next threshold. Simplified: thresholds are given, not found by clustering past jobs, and one distribution
/// stands for all jobs. The paper tells by the skew of tensor sizes which jobs need to be consolidated; here the step
/// times fitted by their agents do. Jobs not measured yet are consolidated where that needs no waiting.
#[derive(Debug)]
pub(crate) struct Tiresias {
    settings: TiresiasSettings,
    states: BTreeMap<JobId, QueueState>,
    /// How often a job came to a queue.
    entries: u64,
    sizes: JobSizes,
}

/// What it remembers from plan to plan.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct TiresiasMemory {
    #[cfg_attr(feature = "serde", serde(rename = "standings"))]
    states: BTreeMap<JobId, QueueState>,
    entries: u64,
    /// GPU-seconds of jobs that finished, oldest first.
    finished_gpu_s: Vec<f64>,
}

/// Where a job stands in the queues.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct QueueState {
    queue: usize,
    /// Numbers those who came to a queue.
    entry: u64,
    /// Seconds it had run when it last started over.
    executed_before_s: f64,
    /// Seconds it had waited when it last ran or started over.
    waited_before_s: f64,
}

impl Tiresias {
    pub(crate) fn new(settings: TiresiasSettings) -> Self {
        let sizes = settings.job_gpu_hours.iter().map(|hours| hours * HOUR_S).collect();
        Self { sizes: JobSizes::new(sizes), settings, states: BTreeMap::new(), entries: 0 }
    }

    /// Moves a job to the queue that its service or its waiting earned it.
    fn update(&mut self, now: Timestamp, job: &JobView<'_>) -> QueueState {
        let mut entries = self.entries;
        let mut enter = || {
            entries += 1;
            entries
        };
        let state = self.states.entry(job.id).or_insert_with(|| QueueState {
            queue: 0,
            entry: enter(),
            executed_before_s: 0.0,
            waited_before_s: 0.0,
        });
        if !job.allocation.is_empty() {
            state.waited_before_s = waited_s(job, now);
        }
        let attained_gpu_s = state.attained_gpu_s(job);
        let is_below = |hours: &&f64| attained_gpu_s >= **hours * HOUR_S;
        let queue = self.settings.queue_gpu_hours.iter().take_while(is_below).count();
        if queue > state.queue {
            (state.queue, state.entry) = (queue, enter());
        }
        let executed_s = job.executed_s - state.executed_before_s;
        let is_starved = |knob| state.waits_s(job, now) >= knob * executed_s;
        if state.queue > 0 && self.settings.promote_knob.is_some_and(is_starved) {
            let (executed_before_s, waited_before_s) = (job.executed_s, waited_s(job, now));
            *state = QueueState { queue: 0, entry: enter(), executed_before_s, waited_before_s };
        }
        self.entries = entries;
        *state
    }

    fn index(&self, job: &JobView<'_>, state: &QueueState) -> f64 {
        match self.settings.priority {
            TiresiasPriority::Gittins if self.sizes.are_known() => {
                let attained_gpu_s = state.attained_gpu_s(job);
                let threshold = self.settings.queue_gpu_hours.get(state.queue);
                let quantum = threshold.map_or(f64::INFINITY, |hours| hours * HOUR_S - attained_gpu_s);
                self.sizes.index(attained_gpu_s, quantum)
            }
            TiresiasPriority::Gittins | TiresiasPriority::Las => 0.0,
        }
    }

    fn placement(&self, now: Timestamp, job: &JobView<'_>, state: &QueueState) -> GangPlacement {
        let needed = || match state.waits_s(job, now) {
            waits_s if waits_s < CONSOLIDATION_WAIT_S => GangPlacement::FewestNodes,
            _ => GangPlacement::Consolidated,
        };
        match self.settings.consolidate {
            Consolidate::Never => GangPlacement::EmptiestFirst,
            Consolidate::Always => needed(),
            Consolidate::Needed => match spreading_slowdown(job) {
                None => GangPlacement::Consolidated,
                Some(slowdown) if slowdown > self.settings.consolidate_margin => needed(),
                Some(_) => GangPlacement::EmptiestFirst,
            },
        }
    }
}

impl QueueState {
    fn attained_gpu_s(&self, job: &JobView<'_>) -> f64 {
        (job.executed_s - self.executed_before_s) * f64::from(job.per_replica().gpus_of(gang_size(job)))
    }

    /// Seconds since it last ran.
    fn waits_s(&self, job: &JobView<'_>, now: Timestamp) -> f64 {
        waited_s(job, now) - self.waited_before_s
    }
}

impl Policy for Tiresias {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        for job in view.succeeded {
            self.sizes.learn(job.attained_gpu_s);
        }
        let present: BTreeSet<JobId> = view.jobs.iter().map(|job| job.id).collect();
        self.states.retain(|job, _| present.contains(job));
        let states: Vec<QueueState> = view.jobs.iter().map(|job| self.update(now, job)).collect();
        let indices: Vec<f64> = view.jobs.iter().zip(&states).map(|(job, of_job)| self.index(job, of_job)).collect();
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        order.sort_by(|&a, &b| {
            let queues = states[a].queue.cmp(&states[b].queue);
            queues.then(indices[b].total_cmp(&indices[a])).then(states[a].entry.cmp(&states[b].entry))
        });
        let placement = |idx: usize| self.placement(now, &view.jobs[idx], &states[idx]);
        plan_placed_gangs(view, &order, &placement, Overtaking::Allowed)
    }

    fn save(&self) -> Option<PolicyState> {
        let (states, finished_gpu_s) = (self.states.clone(), self.sizes.finished());
        let memory = TiresiasMemory { states, entries: self.entries, finished_gpu_s };
        Some(PolicyState::new(Memory::Tiresias(memory)))
    }

    fn restore(&mut self, state: PolicyState) -> bool {
        let Memory::Tiresias(memory) = state.memory else { return false };
        (self.states, self.entries) = (memory.states, memory.entries);
        memory.finished_gpu_s.into_iter().for_each(|gpu_s| self.sizes.learn(gpu_s));
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}

/// Seconds without GPUs so far.
fn waited_s(job: &JobView<'_>, now: Timestamp) -> f64 {
    job.age_s(now) - job.executed_s
}

/// How much longer a step takes over two nodes than on one, as a share, at the job's size and batch; none before it was
/// measured.
fn spreading_slowdown(job: &JobView<'_>) -> Option<f64> {
    let size = gang_size(job);
    if size < 2 {
        return Some(0.0);
    }
    let slowdowns = job.profiles.iter().filter_map(|profile| {
        let mode = BatchMode::Fixed { batch_size: job.batch_size };
        let speed = |nodes| Some(profile.goodput.chosen(Shape::new(nodes, size).ok()?, mode)?.throughput);
        Some(speed(1)? / speed(2)? - 1.0)
    });
    slowdowns.reduce(f64::max)
}
