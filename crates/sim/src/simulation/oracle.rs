//! What only the world knows of a job's future, for policies that are defined with an oracle.

use std::collections::BTreeMap;

use pollux_model::{Batch, GpuType, GpuTypeName};
use pollux_policy::Oracle;

use super::fairness::consolidated;
use super::job::SimJob;
use super::requests::REPLICAS_MAX;
use crate::{Application, ApplicationName};

/// Application, type of GPU, batch, and how many replicas fit on a node.
type Case = (Option<ApplicationName>, Option<GpuTypeName>, u32, u32);

/// Step times at user-fixed batches, each computed once.
#[derive(Default)]
pub(super) struct Oracles {
    step_s: BTreeMap<Case, Vec<f64>>,
}

impl Oracles {
    /// The truth about a job whose user fixed this batch, and of which so many replicas fit on a node; `types` has the types
    /// of the cluster with their numbers and what fits on a node of each. As published, its steps are counted from the end
    /// of the epoch it is in, and one is left in the last.
    pub(super) fn of(
        &mut self,
        job: &SimJob<'_>,
        batch_size: u32,
        on_a_node: u32,
        types: &[(GpuTypeName, GpuType, u32)],
    ) -> Oracle {
        let application = job.application;
        let last = application.epochs() - 1;
        let steps = |epoch| application.iterations(epoch, batch_size);
        let remaining_steps = if job.epochs() < last { steps(last) - steps(job.epochs()) } else { 1.0 };
        let mut step_s = |application: &Application, gpu_type: Option<&GpuTypeName>, on_a_node: u32| {
            let entry = self.step_s.entry((application.name(), gpu_type.cloned(), batch_size, on_a_node));
            entry.or_insert_with(|| step_times(application, batch_size, on_a_node)).clone()
        };
        let known = |wanted: &GpuTypeName| job.types().iter().find(|(gpu_type, _)| gpu_type == wanted);
        let by_type = types.iter().filter_map(|(name, number, on_a_node)| {
            let (name, application) = known(name)?;
            Some((*number, step_s(application, Some(name), *on_a_node)))
        });
        let by_type = by_type.collect();
        Oracle { by_type, ..Oracle::alike(remaining_steps, step_s(application, None, on_a_node)) }
    }
}

/// Seconds of a step on as many replicas as the smallest micro-batch allows.
fn step_times(application: &Application, batch_size: u32, on_a_node: u32) -> Vec<f64> {
    let limits = application.limits();
    let most = (batch_size / limits.local_batch_min()).clamp(1, REPLICAS_MAX);
    let step_s = |replicas: u32| {
        let batch = Batch::fixed(limits, batch_size, replicas)?;
        let time = application.step_time(&consolidated(replicas, on_a_node), batch.local_batch);
        Some(time.with_accumulation(batch.accumulation_steps))
    };
    (1..=most).map_while(step_s).collect()
}
