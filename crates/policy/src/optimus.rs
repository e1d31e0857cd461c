use pollux_model::GpuType;

use crate::fixed_batch::FixedBatch;
use crate::marginal::{GainOptions, Spreading, plan_by_gain};
use crate::{Binding, ClusterView, JobView, PlacementRules, Plan, Policy, Timestamp};

/// Settings of [`PolicySettings::Optimus`](crate::PolicySettings::Optimus).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct OptimusSettings {
    /// A job has converged when another epoch would lower its loss by less than this share of it; lower expects jobs
    /// to train longer.
    pub convergence_threshold: f64,
    /// Most replicas as a multiple of the most a job was measured on; higher explores more boldly.
    pub profile_limit: f64,
    /// How much more than its holder another job must gain by a GPU to get it.
    pub hysteresis: f64,
}

impl Default for OptimusSettings {
    fn default() -> Self {
        Self { convergence_threshold: 0.01, profile_limit: 2.0, hysteresis: 0.5 }
    }
}

/// Marginal gains from fitted models (Optimus, `EuroSys` 2018): every job gets one GPU in order of arrival, the others go
/// one by one to whoever saves the most time by the next, on its way to the convergence that its loss curve predicts.
///
/// A job that was never measured begins with what it asks for, where that is idle.
///
/// Steps until then are those of the loss curve to the point where an epoch brings too little; a job beyond that point is
/// taken to have one more epoch. Before there is a curve, the work that its user declared counts, and where nothing was
/// declared, as much as is done. Jobs that change are placed smallest first, evenly on the fewest nodes. Simplified:
/// workers only, no parameter servers; speeds are Pollux's throughput model, which learns while the job runs instead of
/// from sample runs, so a job grows to a multiple of what it was measured on; no discount for young jobs, but a GPU counts
/// a little more to whoever holds it, because a restart costs more here than in the paper's ten minutes.
#[derive(Debug)]
pub(crate) struct Optimus {
    settings: OptimusSettings,
}

impl Optimus {
    pub(crate) const fn new(settings: OptimusSettings) -> Self {
        Self { settings }
    }

    /// Steps until the job is done, at the batch its user fixed.
    fn remaining_steps(&self, job: &JobView<'_>, fixed: &FixedBatch<'_>) -> f64 {
        let baseline_steps = match (job.loss, job.epoch_steps, job.remaining_samples) {
            (Some(loss), Some(epoch_steps), _) => {
                let end = loss.converges_after(epoch_steps, self.settings.convergence_threshold);
                (end - job.baseline_steps).max(epoch_steps)
            }
            (_, _, Some(samples)) => fixed.baseline_steps(samples),
            (_, _, None) => job.baseline_steps.max(1.0),
        };
        baseline_steps / fixed.gain()
    }
}

impl Policy for Optimus {
    fn name(&self) -> &'static str {
        "optimus"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let order: Vec<usize> = (0..view.jobs.len()).collect();
        let gain = |idx: usize, kind: GpuType, replicas: u32| {
            let job = &view.jobs[idx];
            let fixed = FixedBatch::of(job, kind, view, self.settings.profile_limit)?;
            let saved_s = fixed.step_s(replicas)? - fixed.step_s(replicas + 1)?;
            Ok(saved_s * self.remaining_steps(job, &fixed))
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

/// Marginal gains from the truth (Optimus with an oracle, as the Pollux paper ran it): what only a simulator knows takes
/// the place of both predictions, the steps that are left and the time of a step on any number of GPUs.
///
/// A job whose number of GPUs does not change keeps them; the others are placed smallest first on the nodes with the most
/// free GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OptimusOracle;

impl Policy for OptimusOracle {
    fn name(&self) -> &'static str {
        "optimus-oracle"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let order: Vec<usize> = (0..view.jobs.len()).collect();
        let gain = |idx: usize, kind: GpuType, replicas: u32| {
            let oracle = view.jobs[idx].oracle.ok_or(Binding::Profile)?;
            let step_s = |replicas: u32| oracle.step_s(kind, replicas).ok_or(Binding::Maximum);
            Ok((step_s(replicas)? - step_s(replicas + 1)?) * oracle.remaining_steps)
        };
        // As published: whatever is known from the start need not be measured.
        let options = GainOptions { hysteresis: 0.0, spreading: Spreading::EmptiestFirst, begin_as_asked: false };
        plan_by_gain(view, &order, &gain, options)
    }

    fn chooses_sizes(&self) -> bool {
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }

    fn needs_oracle(&self) -> bool {
        true
    }
}
