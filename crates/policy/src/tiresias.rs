use std::collections::{BTreeMap, BTreeSet};

use crate::gang::{GangPlacement, Overtaking, gang_size, plan_gangs};
use crate::{ClusterView, JobId, PlacementRules, Plan, Policy, Timestamp};

/// Settings of [`PolicySettings::Tiresias`](crate::PolicySettings::Tiresias).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct TiresiasSettings {
    /// GPU-hours after which a job moves to the second queue; lower favours short jobs more.
    pub demotion_gpu_hours: f64,
}

impl Default for TiresiasSettings {
    fn default() -> Self {
        Self { demotion_gpu_hours: 16.0 }
    }
}

/// Least attained service first, in two queues (Tiresias, NSDI 2019, as the Pollux paper ran it): a job runs as asked
/// for, those of the first queue before those of the second, each queue in order of arrival.
#[derive(Debug)]
pub(crate) struct Tiresias {
    settings: TiresiasSettings,
    /// Demoted jobs with the order in which they were demoted.
    demoted: BTreeMap<JobId, u64>,
    demotions: u64,
}

impl Tiresias {
    pub(crate) const fn new(settings: TiresiasSettings) -> Self {
        Self { settings, demoted: BTreeMap::new(), demotions: 0 }
    }
}

impl Policy for Tiresias {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let threshold_gpu_s = self.settings.demotion_gpu_hours * 3600.0;
        let present: BTreeSet<JobId> = view.jobs.iter().map(|job| job.id).collect();
        self.demoted.retain(|job, _| present.contains(job));
        for job in view.jobs {
            let attained_gpu_s = job.executed_s * f64::from(gang_size(job));
            if attained_gpu_s >= threshold_gpu_s && !self.demoted.contains_key(&job.id) {
                self.demotions += 1;
                self.demoted.insert(job.id, self.demotions);
            }
        }
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        order.sort_by_key(|&idx| (self.demoted.get(&view.jobs[idx].id), idx));
        plan_gangs(view, &order, GangPlacement::EmptiestFirst, Overtaking::Allowed)
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}
