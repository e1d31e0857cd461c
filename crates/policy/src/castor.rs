use crate::elastic::{Elastic, Preferences, restart_factor};
use crate::optimiser::solve;
use crate::priority::{OPPORTUNISTIC, opportunistic, priority_ranks, priority_step};
use crate::speedups::GoodputTables;
use crate::waiting::WaitLimits;
use crate::work_left::{WorkLeft, work_left};
use crate::{ClusterView, PlacementRules, Plan, Policy, Priorities, Quality, Timestamp};

/// Its weights let nobody wait who has had too little; this is for gangs that others would have to make room for together.
const PATIENCE_S: f64 = 1_800.0;

/// The exponent of ranks is this over what jobs lose by being larger, at the most [`SIZE_PREFERENCE_MAX`].
const SIZE_PREFERENCE_SCALE: f64 = 1.25;
/// Higher leaves the largest with next to nothing, from which newcomers drive them out again and again: what that costs them
/// is more than what others gain by it.
const SIZE_PREFERENCE_MAX: f64 = 3.0;
/// What the fewest replicas are worth to a job against none, in logarithms of its speedup.
const FIRST_REPLICAS_GAIN: f64 = 1.5;

/// Settings of [`PolicySettings::Castor`](crate::PolicySettings::Castor).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct CastorSettings {
    /// How strongly the jobs soonest done are preferred: 1 treats all alike, 3 finishes short ones early. If left out it
    /// follows from how much jobs would gain by more GPUs.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub size_preference: Option<f64>,
    /// The same for jobs of undeclared length, which are taken to last as long as they are old: a guess weighs less.
    pub age_preference: f64,
    /// Share of the weight that all jobs have alike, whatever is left of them: higher is fairer, lower lets long jobs wait
    /// longer for short ones.
    pub uniform_weight: f64,
    /// Most replicas as a multiple of the most a job was measured on; higher explores more boldly.
    pub profile_limit: f64,
    /// Gain below which an allocation is left alone.
    pub hysteresis: f64,
    /// Keep two multi-node jobs off the same node, because they would fight over its network.
    pub avoid_interference: bool,
    /// What `uniform_weight` replaced: files that name it are read, and it means nothing.
    #[cfg_attr(feature = "serde", serde(skip_serializing))]
    pub patience: Option<f64>,
}

impl Default for CastorSettings {
    fn default() -> Self {
        Self {
            size_preference: None,
            age_preference: 1.75,
            uniform_weight: 0.05,
            profile_limit: 4.0,
            hysteresis: 0.2,
            avoid_interference: true,
            patience: None,
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
}

impl CastorSettings {
    /// The i-th largest of n jobs weighs `(i/n)^a - ((i-1)/n)^a`, scaled to a mean of 1; a part of all weight is everybody's
    /// alike, so that nobody has none.
    fn weights(&self, view: &ClusterView<'_>, elastic: &Elastic<'_>, left: &[WorkLeft]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        // Higher priorities rank as if they were sooner done than all of the lower ones.
        let ranks = priority_ranks(view);
        order.sort_by(|&a, &b| {
            ranks[a]
                .cmp(&ranks[b])
                .then(left[b].size.total_cmp(&left[a].size))
                .then(left[a].trust.total_cmp(&left[b].trust))
                .then(b.cmp(&a))
        });
        let highest = ranks.iter().copied().max().unwrap_or(0);
        let opportunistic = opportunistic(view);
        let count = order.len() as f64;
        let by_size = self.size_preference.unwrap_or_else(|| size_preference(elastic));
        let uniform = self.uniform_weight;
        let mut weights = vec![0.0; order.len()];
        // The preference of the rank before, and the power that it came to.
        let mut reached = (f64::NAN, 0.0);
        for (rank, &job) in order.iter().enumerate() {
            // The less is certain of what is left of it, the less that counts.
            let by_age = self.age_preference.min(by_size);
            let preference = by_age + (by_size - by_age) * left[job].trust;
            let power = |rank: usize| (rank as f64 / count).powf(preference);
            let below = if preference == reached.0 { reached.1 } else { power(rank) };
            reached = (preference, power(rank + 1));
            let by_rank = (1.0 - uniform) * (reached.1 - below) * count;
            let alike = uniform * priority_step(ranks[job]) / priority_step(highest);
            weights[job] = if opportunistic[job] { by_rank * OPPORTUNISTIC } else { by_rank + alike };
        }
        weights
    }
}

/// The less jobs gain by more GPUs, the less it costs the others to let the shortest have what it can use; where everybody
/// would gain in proportion, one after the other is best.
fn size_preference(elastic: &Elastic<'_>) -> f64 {
    let elasticities: f64 = elastic.speedups.iter().map(|speedups| speedups.elasticity).sum();
    let left = 1.0 - elasticities / elastic.speedups.len().max(1) as f64;
    (SIZE_PREFERENCE_SCALE / left.max(f64::MIN_POSITIVE)).clamp(1.0, SIZE_PREFERENCE_MAX)
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
        let left = work_left(now, view, &|idx| elastic.speedups[idx].single_goodput);
        let weights = settings.weights(view, &elastic, &left);
        let restart_factors: Vec<f64> = view.jobs.iter().map(|job| restart_factor(job, now)).collect();
        let factor = |idx: usize, speedup: f64| {
            let job = &view.jobs[idx];
            if job.allocation.is_empty() {
                return 1.0;
            }
            let left_s = match (left[idx].samples, elastic.speedups[idx].fair_goodput) {
                (Some(samples), Some(goodput)) => samples / (goodput * speedup),
                _ => job.age_s(now),
            };
            // A change must pay within what is left of the job, and be earned by its past.
            let trained_share = left_s / (left_s + job.restart_cost_s).max(f64::MIN_POSITIVE);
            trained_share.min(restart_factors[idx]) / (1.0 + settings.hysteresis)
        };
        let floors: Vec<f64> =
            elastic.speedups.iter().map(|speedups| speedups.first / FIRST_REPLICAS_GAIN.exp_m1()).collect();
        let preferences = Preferences {
            rules,
            restart_factor: &factor,
            utility: &|job, speedup| weights[job] * ((speedup + floors[job]) / (1.0 + floors[job])).ln(),
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

    fn profiles_types(&self) -> bool {
        true
    }

    fn shares_measurements(&self) -> bool {
        true
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn settings_that_were_written_with_a_patience_are_read_without_it() {
        let text = r#"{"size_preference": 3.0, "age_preference": 2.0, "patience": 10.0, "hysteresis": 0.1}"#;
        let settings: CastorSettings = serde_json::from_str(text).unwrap();
        let CastorSettings { size_preference, age_preference, uniform_weight, hysteresis, .. } = settings;
        assert_eq!((size_preference, age_preference, uniform_weight, hysteresis), (Some(3.0), 2.0, 0.05, 0.1));
        let written = serde_json::to_value(CastorSettings::default()).unwrap();
        assert_eq!((written.get("patience"), written.get("size_preference")), (None, None));
    }
}
