use crate::marginal::plan_by_gain;
use crate::{Binding, ClusterView, PlacementRules, Plan, Policy, Timestamp};

/// Marginal gains from the truth (Optimus, `EuroSys` 2018, with an oracle, as the Pollux paper ran it): every job gets one
/// GPU in order of arrival, the others go one by one to whoever saves the most time by the next.
///
/// What only a simulator knows replaces both of the paper's predictions: the steps that are left, and the time of a step
/// on any number of GPUs. A job whose number of GPUs does not change keeps them; the others are placed smallest first on
/// the nodes with the most free GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OptimusOracle;

impl Policy for OptimusOracle {
    fn name(&self) -> &'static str {
        "optimus-oracle"
    }

    fn plan(&mut self, _now: Timestamp, view: &ClusterView<'_>) -> Plan {
        let order: Vec<usize> = (0..view.jobs.len()).collect();
        let gain = |idx: usize, _kind, replicas: u32| {
            let oracle = view.jobs[idx].oracle.ok_or(Binding::Profile)?;
            let step_s = |replicas: u32| oracle.step_s.get(replicas as usize - 1).ok_or(Binding::Maximum);
            Ok((step_s(replicas)? - step_s(replicas + 1)?) * oracle.remaining_steps)
        };
        plan_by_gain(view, &order, &gain)
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }

    fn needs_oracle(&self) -> bool {
        true
    }
}
