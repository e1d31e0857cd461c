use crate::elastic::{Elastic, Preferences, SPEEDUP_FLOOR, restart_factor};
use crate::optimiser::solve;
use crate::priority::priority_weights;
use crate::speedups::GoodputTables;
use crate::type_blind::TypeBlind;
use crate::waiting::WaitLimits;
use crate::{ClusterView, JobView, PlacementRules, Plan, Policy, Priorities, Quality, Timestamp};

/// Stands in for minus infinity: at this power the smallest speedup outweighs all others by orders of magnitude.
const MAX_MIN_POWER: f64 = -64.0;

/// Its objective cannot tell starved jobs apart, so that they are helped before long.
const PATIENCE_S: f64 = 600.0;

/// Settings of [`PolicySettings::Pollux`](crate::PolicySettings::Pollux).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct PolluxSettings {
    /// The power `p` of the mean over jobs' speedups: 1 for throughput, lower for fairness, minus infinity for the
    /// worst-off job alone, which all below -64 comes down to.
    pub fairness: f64,
    /// Most replicas as a multiple of the most a job was measured on; lower is more careful.
    pub profile_limit: f64,
    /// Keep two multi-node jobs off the same node, because they would fight over its network.
    pub avoid_interference: bool,
    /// Count a first start as a restart, as the published implementation does; it makes new jobs wait longer.
    pub first_start_costs: bool,
    /// Take all GPUs for alike, with one model for each job, as Sia's evaluation ran it; what a plan gives a job on other
    /// types than the one that it has most GPUs of is left idle.
    pub type_blind: bool,
}

impl Default for PolluxSettings {
    fn default() -> Self {
        Self {
            fairness: -1.0,
            profile_limit: 2.0,
            avoid_interference: true,
            first_start_costs: false,
            type_blind: false,
        }
    }
}

/// The paper's policy: the allocation with the highest power mean of speedups over fair share.
#[derive(Debug)]
pub(crate) struct Pollux {
    settings: PolluxSettings,
    tables: GoodputTables,
}

impl Pollux {
    pub(crate) fn new(settings: PolluxSettings) -> Self {
        Self { settings, tables: GoodputTables::default() }
    }

    fn plan_seen(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let settings = self.settings;
        let rules = self.rules();
        let limits =
            WaitLimits { patience_s: PATIENCE_S, one_multi_node_job_per_node: rules.one_multi_node_job_per_node };
        let elastic = Elastic::new(now, view, &mut self.tables, settings.profile_limit, &limits);
        let weights = priority_weights(view);
        let mean = PowerMean::new(settings.fairness);
        let factor = |job: usize, _| {
            let job: &JobView<'_> = &view.jobs[job];
            if job.allocation.is_empty() && job.restarts == 0 && job.executed_s == 0.0 && !settings.first_start_costs {
                1.0
            } else {
                restart_factor(job, now)
            }
        };
        let preferences =
            Preferences { rules, restart_factor: &factor, utility: &|job, speedup| weights[job] * mean.term(speedup) };
        let problem = elastic.problem(&preferences);
        let solution = solve(&problem);
        let weight: f64 = weights.iter().sum();
        let quality =
            Quality { objective: mean.of(solution.total, weight), upper_bound: mean.of(solution.upper_bound, weight) };
        elastic.plan(&problem, &solution, quality)
    }
}

impl Policy for Pollux {
    fn name(&self) -> &'static str {
        "pollux"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        if view.jobs.is_empty() {
            return Plan::default();
        }
        if self.settings.type_blind {
            TypeBlind::of(view).plan(view, |seen| self.plan_seen(now, seen))
        } else {
            self.plan_seen(now, view)
        }
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
}

/// A power mean as a sum of terms that is to be made large.
#[derive(Clone, Copy)]
struct PowerMean {
    power: f64,
}

impl PowerMean {
    fn new(fairness: f64) -> Self {
        Self { power: fairness.max(MAX_MIN_POWER) }
    }

    fn term(self, speedup: f64) -> f64 {
        let floored = speedup + SPEEDUP_FLOOR;
        if self.power == 0.0 {
            floored.ln()
        } else if self.power == -1.0 {
            -1.0 / floored
        } else {
            self.power.signum() * floored.powf(self.power)
        }
    }

    fn of(self, sum: f64, weight: f64) -> f64 {
        let mean = sum / weight;
        if self.power == 0.0 { mean.exp() } else { mean.abs().powf(1.0 / self.power) }
    }
}
