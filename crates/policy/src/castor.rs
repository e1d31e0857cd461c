use crate::elastic::{Elastic, GoodputTables, Preferences, SPEEDUP_FLOOR, restart_factor};
use crate::optimiser::solve;
use crate::priority::{OPPORTUNISTIC, opportunistic, priority_ranks, priority_step};
use crate::waiting::WaitLimits;
use crate::{ClusterView, JobView, PlacementRules, Plan, Policy, Priorities, Quality, Timestamp};

/// Its weights let nobody wait who has had too little; this is for gangs that others would have to make room for together.
const PATIENCE_S: f64 = 1_800.0;

/// Settings of [`PolicySettings::Castor`](crate::PolicySettings::Castor).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct CastorSettings {
    /// How strongly the jobs soonest done are preferred: 1 treats all alike, 3 finishes short ones early.
    pub size_preference: f64,
    /// The same for jobs of undeclared length, which are taken to last as long as they are old: a guess weighs less.
    pub age_preference: f64,
    /// How many times less than its share of the cluster a job may have had before it weighs more: lower is fairer,
    /// higher lets long jobs wait longer for short ones.
    pub patience: f64,
    /// Most replicas as a multiple of the most a job was measured on; higher explores more boldly.
    pub profile_limit: f64,
    /// Gain below which an allocation is left alone.
    pub hysteresis: f64,
    /// Keep two multi-node jobs off the same node, because they would fight over its network.
    pub avoid_interference: bool,
}

impl Default for CastorSettings {
    fn default() -> Self {
        Self {
            size_preference: 3.0,
            age_preference: 1.75,
            patience: 10.0,
            profile_limit: 4.0,
            hysteresis: 0.2,
            avoid_interference: true,
        }
    }
}

/// The lowest average completion time that does not starve anybody: weighs the logarithm of each job's speedup by its
/// rank in work remaining, which is how parallel jobs of known sizes are best shared out.
#[derive(Debug)]
pub(crate) struct Castor {
    settings: CastorSettings,
    tables: GoodputTables,
}

impl Castor {
    pub(crate) fn new(settings: CastorSettings) -> Self {
        Self { settings, tables: GoodputTables::default() }
    }

    /// The i-th largest of n jobs weighs `(i/n)^a - ((i-1)/n)^a`, scaled to a mean of 1; but a job that has had much less
    /// than its share of the cluster since it came weighs more and more.
    fn weights(&self, now: Timestamp, view: &ClusterView<'_>, elastic: &Elastic<'_>) -> Vec<f64> {
        let jobs = view.jobs.iter().zip(&elastic.speedups);
        let sizes: Vec<f64> = jobs.map(|(job, speedups)| remaining_gpu_s(job, speedups.single_goodput, now)).collect();
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        // Higher priorities rank as if they were sooner done than all of the lower ones.
        let ranks = priority_ranks(view);
        order.sort_by(|&a, &b| ranks[a].cmp(&ranks[b]).then(sizes[b].total_cmp(&sizes[a])).then(b.cmp(&a)));
        let highest = ranks.iter().copied().max().unwrap_or(0);
        let opportunistic = opportunistic(view);
        let count = order.len() as f64;
        let share = f64::from(view.gpus()) / count;
        let mut weights = vec![0.0; order.len()];
        for (rank, &job) in order.iter().enumerate() {
            let preference = match view.jobs[job].remaining_samples {
                Some(_) => self.settings.size_preference,
                None => self.settings.age_preference,
            };
            let power = |rank: usize| (rank as f64 / count).powf(preference);
            let by_rank = (power(rank + 1) - power(rank)) * count;
            let owed = view.jobs[job].age_s(now) * share / view.jobs[job].attained_gpu_s.max(1.0);
            // The largest rank weighs about the preference: twice that goes before everybody.
            let by_need = (owed / self.settings.patience - 1.0).clamp(0.0, 2.0 * self.settings.size_preference);
            let by_need = by_need * priority_step(ranks[job]) / priority_step(highest);
            weights[job] = if opportunistic[job] { by_rank * OPPORTUNISTIC } else { by_rank.max(by_need) };
        }
        weights
    }
}

impl Policy for Castor {
    fn name(&self) -> &'static str {
        "castor"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        if view.jobs.is_empty() {
            return Plan::default();
        }
        let settings = self.settings;
        let rules = self.rules();
        let limits =
            WaitLimits { patience_s: PATIENCE_S, one_multi_node_job_per_node: rules.one_multi_node_job_per_node };
        let elastic = Elastic::new(now, view, &mut self.tables, settings.profile_limit, &limits);
        let weights = self.weights(now, view, &elastic);
        let factor = |idx: usize, speedup: f64| {
            let job = &view.jobs[idx];
            if job.allocation.is_empty() {
                return 1.0;
            }
            let left_s = match (declared(job), elastic.speedups[idx].fair_goodput) {
                (Some(samples), Some(goodput)) => samples / (goodput * speedup),
                _ => job.age_s(now),
            };
            // A change must pay within what is left of the job, and be earned by its past.
            let trained_share = left_s / (left_s + job.restart_cost_s).max(f64::MIN_POSITIVE);
            trained_share.min(restart_factor(job, now)) / (1.0 + settings.hysteresis)
        };
        let preferences = Preferences {
            rules,
            restart_factor: &factor,
            utility: &|job, speedup| weights[job] * (speedup + SPEEDUP_FLOOR).ln(),
        };
        let problem = elastic.problem(&preferences);
        let solution = solve(&problem);
        let total_weight: f64 = weights.iter().sum();
        let mean = |total: f64| (total / total_weight).exp();
        let quality = Quality { objective: mean(solution.total), upper_bound: mean(solution.upper_bound) };
        elastic.plan(&problem, &solution, quality)
    }

    fn priorities(&self) -> Priorities {
        Priorities::Ordered
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: self.settings.avoid_interference }
    }

    fn adapts_batches(&self) -> bool {
        true
    }

    fn plans_on_events(&self) -> bool {
        true
    }
}

/// Seconds of work left on one GPU. A job that was never measured goes first, because a minute measures it. One that
/// declared nothing, or has outlived what it declared, is taken to have as much left as it is old: of jobs of unknown
/// length the older ones last longer, and their order never changes.
fn remaining_gpu_s(job: &JobView<'_>, single_goodput: Option<f64>, now: Timestamp) -> f64 {
    if job.profiles.is_empty() {
        return 0.0;
    }
    match (declared(job), single_goodput) {
        (Some(samples), Some(goodput)) if goodput > 0.0 => samples / goodput * f64::from(job.per_replica().gpus),
        _ => job.age_s(now),
    }
}

/// Samples left of what was declared, if there are any.
fn declared(job: &JobView<'_>) -> Option<f64> {
    job.remaining_samples.filter(|samples| *samples > 0.0)
}
