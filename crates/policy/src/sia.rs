use crate::elastic::{Elastic, Preferences, restart_factor};
use crate::optimiser::solve;
use crate::speedups::GoodputTables;
use crate::waiting::WaitLimits;
use crate::{ClusterView, Flexibility, JobView, PlacementRules, Plan, Policy, Quality, Timestamp};

/// Nothing counts more than this, however slow it makes a job.
const TERM_MAX: f64 = 3_000.0;

/// Settings of [`PolicySettings::Sia`](crate::PolicySettings::Sia).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct SiaSettings {
    /// The power of every job's normalised goodput: below 0 their sum is made small, which is fairer the lower it is; above
    /// 0 it is made large.
    pub fairness: f64,
    /// What a job without GPUs counts; more than 1, which is what its smallest size counts.
    pub waiting_penalty: f64,
    /// Most replicas as a multiple of the most a job was measured on.
    pub profile_limit: f64,
    /// Give powers of two on one node and whole nodes, as published; otherwise any number of GPUs.
    pub whole_shapes: bool,
    /// Round what jobs count to hundredths, as published: gains below that move nobody.
    pub rounded: bool,
    /// Judge sizes by batches up to the one that its user asked for, as published; otherwise by all that a job may have.
    pub requested_batches: bool,
}

impl Default for SiaSettings {
    fn default() -> Self {
        Self {
            fairness: -0.5,
            waiting_penalty: 1.1,
            profile_limit: 2.0,
            whole_shapes: true,
            rounded: true,
            requested_batches: true,
        }
    }
}

/// Sia (SOSP 2023): the types and sizes with the best sum of powers of all goodputs, each against what is least for its
/// job.
#[derive(Debug)]
pub(crate) struct Sia {
    settings: SiaSettings,
    tables: GoodputTables,
}

impl Sia {
    pub(crate) fn new(settings: SiaSettings) -> Self {
        let tables =
            if settings.requested_batches { GoodputTables::within_requests() } else { GoodputTables::default() };
        Self { settings, tables }
    }

    /// What a normalised goodput counts; more is better.
    fn term(&self, goodput: f64) -> f64 {
        let power = self.settings.fairness;
        let term = goodput.powf(power).min(TERM_MAX);
        let term = if self.settings.rounded { (term * 100.0).round() / 100.0 } else { term };
        power.signum() * term
    }
}

/// The shapes that the paper lets a job have: so many GPUs of each kind as a power of two on a node, or as whole nodes.
struct Shapes {
    /// GPUs of a node of each kind.
    node_gpus: Vec<u32>,
    any: bool,
}

impl Shapes {
    fn allow(&self, job: &JobView<'_>, kind: usize, replicas: u32, is_multi_node: bool) -> bool {
        let (gpus, node) = (job.per_replica().gpus_of(replicas), self.node_gpus[kind]);
        // Who may have no such number gets its fewest.
        let own = replicas == job.fewest() || job.flexibility == Flexibility::Rigid;
        let whole = if is_multi_node { gpus.is_multiple_of(node) } else { gpus.is_power_of_two() || gpus == node };
        self.any || own || whole
    }
}

impl Policy for Sia {
    fn name(&self) -> &'static str {
        "sia"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        if view.jobs.is_empty() {
            return Plan::default();
        }
        let settings = self.settings;
        let rules = self.rules();
        // As published, nobody is let in for having waited.
        let limits =
            WaitLimits { patience_s: f64::INFINITY, one_multi_node_job_per_node: rules.one_multi_node_job_per_node };
        let mut tables = std::mem::take(&mut self.tables);
        let elastic = Elastic::new(now, view, &mut tables, settings.profile_limit, &limits);
        let shapes = Shapes { node_gpus: elastic.node_gpus(), any: !settings.whole_shapes };
        let scales: Vec<f64> =
            view.jobs.iter().enumerate().map(|(idx, job)| scale(job, &elastic.speedups[idx].sizes, &shapes)).collect();
        let factor = |idx: usize, _| {
            let job = &view.jobs[idx];
            let is_new = job.allocation.is_empty() || job.age_s(now) < job.restart_cost_s;
            if is_new { 1.0 } else { restart_factor(job, now) }
        };
        let utility = |idx: usize, speedup: f64| {
            if speedup > 0.0 { self.term(speedup * scales[idx]) } else { -settings.waiting_penalty }
        };
        let mut problem = elastic.problem(&Preferences { rules, restart_factor: &factor, utility: &utility });
        for (job, options) in view.jobs.iter().zip(&mut problem.jobs) {
            options.sizes.retain(|kind, replicas, is_multi_node| shapes.allow(job, kind, replicas, is_multi_node));
        }
        let solution = solve(&problem);
        // What is gained over giving nothing to anybody, a job.
        let nothing = -settings.waiting_penalty * view.jobs.len() as f64;
        let gained = |total: f64| (total - nothing) / view.jobs.len() as f64;
        let quality = Quality { objective: gained(solution.total), upper_bound: gained(solution.upper_bound) };
        let plan = elastic.plan(&problem, &solution, quality);
        self.tables = tables;
        plan
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: true }
    }

    fn adapts_batches(&self) -> bool {
        true
    }

    fn profiles_types(&self) -> bool {
        true
    }
}

/// What makes the least goodput of a job count as many GPUs as it has at the fewest.
fn scale(job: &JobView<'_>, speedups: &crate::by_size::BySize, shapes: &Shapes) -> f64 {
    let fewest = job.fewest();
    let mut least = f64::INFINITY;
    for (kind, (single, multi)) in speedups.by_kind().enumerate() {
        for (figures, is_multi_node) in [(single, false), (multi, true)] {
            for (&speedup, replicas) in figures.iter().zip(1..) {
                let is_option = speedup > 0.0 && replicas >= fewest;
                if is_option && shapes.allow(job, kind, replicas, is_multi_node) {
                    least = least.min(speedup);
                }
            }
        }
    }
    let gpus = f64::from(job.per_replica().gpus_of(fewest));
    if least.is_finite() { gpus / least } else { 1.0 }
}
