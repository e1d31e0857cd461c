use pollux_model::GpuType;

use crate::fixed_batch::FixedBatch;
use crate::marginal::{GainOptions, Spreading, plan_by_gain};
use crate::{Binding, ClusterView, JobView, PlacementRules, Plan, Policy, Timestamp};

/// Settings of [`PolicySettings::Slaq`](crate::PolicySettings::Slaq).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct SlaqSettings {
    /// Seconds ahead for which losses are predicted; best the time between rounds.
    pub horizon_s: f64,
    /// Most replicas as a multiple of the most a job was measured on; higher explores more boldly.
    pub profile_limit: f64,
    /// How much more than its holder another job must gain by a GPU to get it.
    pub hysteresis: f64,
}

impl Default for SlaqSettings {
    fn default() -> Self {
        Self { horizon_s: 60.0, profile_limit: 2.0, hysteresis: 0.5 }
    }
}

/// The most quality soonest (SLAQ, `SoCC` 2017): GPUs go one by one to the job whose normalised loss falls the most by one
/// more, from now to the horizon.
///
/// Every job gets one GPU first: those whose loss curve is not known yet, because a few rounds tell it, then the others
/// by what it brings them. A fall is measured against the largest the job can have seen, that of its first rounds on one
/// GPU, so that losses of all kinds compare. Simplified: one family of curves (that of Optimus) instead of one per class
/// of optimisers; GPUs that the job holds count a little more, because here a change costs a restart.
#[derive(Debug)]
pub(crate) struct Slaq {
    settings: SlaqSettings,
}

impl Slaq {
    pub(crate) const fn new(settings: SlaqSettings) -> Self {
        Self { settings }
    }

    /// By how much the normalised loss falls more with `more` replicas than with `fewer`, to the horizon.
    fn further_fall(&self, job: &JobView<'_>, fixed: &FixedBatch<'_>, fewer: u32, more: u32) -> Result<f64, Binding> {
        let loss = job.loss.ok_or(Binding::Profile)?;
        let progress = |replicas: u32| match replicas {
            0 => Ok(0.0),
            _ => Ok(self.settings.horizon_s / fixed.step_s(replicas)? * fixed.gain()),
        };
        let largest = loss.at(0.0) - loss.at(progress(1)?);
        let fall = loss.at(job.baseline_steps + progress(fewer)?) - loss.at(job.baseline_steps + progress(more)?);
        Ok(fall / largest)
    }

    /// What the first replica brings a job for each of its GPUs; without a curve, most of all.
    fn first_fall(&self, job: &JobView<'_>, view: &ClusterView<'_>) -> f64 {
        let falls = job.profiles.iter().filter_map(|profile| {
            let fixed = FixedBatch::of(job, profile.gpu_type, view, self.settings.profile_limit).ok()?;
            // A curve that does not fall has no largest fall, either.
            Some(self.further_fall(job, &fixed, 0, 1).ok()?.max(0.0))
        });
        let held = if job.allocation.is_empty() { 0.0 } else { self.settings.hysteresis };
        let gpus = f64::from(job.per_replica().gpus);
        falls.reduce(f64::max).map_or(f64::INFINITY, |fall| fall * (1.0 + held) / gpus)
    }
}

impl Policy for Slaq {
    fn name(&self) -> &'static str {
        "slaq"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let first: Vec<f64> = view.jobs.iter().map(|job| self.first_fall(job, view)).collect();
        let mut order: Vec<usize> = (0..view.jobs.len()).collect();
        order.sort_by(|&a, &b| first[b].total_cmp(&first[a]).then(a.cmp(&b)));
        let gain = |idx: usize, kind: GpuType, replicas: u32| {
            let job = &view.jobs[idx];
            let fixed = FixedBatch::of(job, kind, view, self.settings.profile_limit)?;
            self.further_fall(job, &fixed, replicas, replicas + 1)
        };
        let hysteresis = self.settings.hysteresis;
        let options = GainOptions { hysteresis, spreading: Spreading::Evenly, begin_as_asked: true };
        plan_by_gain(view, &order, &gain, options)
    }

    fn chooses_sizes(&self) -> bool {
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}
