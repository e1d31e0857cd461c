//! Finish-time fairness: what a job's completion time is against the time it would have taken alone on its share.

use std::collections::BTreeMap;

use pollux_model::{Batch, BatchMode, GpuTypeName};

use crate::{Application, ApplicationName, Running};

/// Application, type of GPU, fixed batch, replicas, and how many of them fit on a node.
type Case = (Option<ApplicationName>, GpuTypeName, Option<u32>, u32, u32);

/// Times of jobs alone on part of the cluster, each computed once.
#[derive(Default)]
pub(super) struct Isolated {
    times_s: BTreeMap<Case, f64>,
}

/// A job that has part of the cluster for itself.
pub(super) struct Alone<'a> {
    /// What it is on GPUs of this type.
    pub(super) application: &'a Application,
    pub(super) gpu_type: &'a GpuTypeName,
    pub(super) mode: BatchMode,
    /// Replicas that fit on a node.
    pub(super) on_a_node: u32,
}

impl Isolated {
    /// Seconds alone on a possibly fractional number of replicas: below one it is shared in time, between two whole numbers speeds are interpolated.
    pub(super) fn time_s(&mut self, alone: &Alone<'_>, replicas: f64) -> f64 {
        if replicas <= 1.0 {
            return self.whole_s(alone, 1) / replicas;
        }
        let (low, high) = (replicas.floor(), replicas.ceil());
        let low_speed = 1.0 / self.whole_s(alone, low as u32);
        let high_speed = 1.0 / self.whole_s(alone, high as u32);
        1.0 / (low_speed + (high_speed - low_speed) * (replicas - low))
    }

    fn whole_s(&mut self, alone: &Alone<'_>, replicas: u32) -> f64 {
        let Alone { application, gpu_type, mode, on_a_node } = *alone;
        let fixed = match mode {
            BatchMode::Adaptive => None,
            BatchMode::Fixed { batch_size } => batch_size.or(Some(application.limits().batch_size_baseline())),
        };
        *self
            .times_s
            .entry((application.name(), gpu_type.clone(), fixed, replicas, on_a_node))
            .or_insert_with(|| whole_s(application, fixed, replicas, on_a_node))
    }
}

/// Every epoch at the best of the batches one would try by hand, or at the fixed one.
fn whole_s(application: &Application, fixed: Option<u32>, replicas: u32, on_a_node: u32) -> f64 {
    let placement = consolidated(replicas, on_a_node);
    let sizes = fixed.map_or_else(|| application.batch_sizes(), |batch_size| vec![batch_size]);
    let batches: Vec<_> =
        sizes.iter().filter_map(|&batch_size| Batch::fixed(application.limits(), batch_size, replicas)).collect();
    if batches.is_empty() && replicas > 1 {
        // More replicas than there are samples in a batch: the rest would stand idle.
        return whole_s(application, fixed, replicas / 2, on_a_node);
    }
    let mut start = 0.0;
    let mut total_s = 0.0;
    for epoch in 0..application.epochs() {
        let rate = |&batch| application.progress_rate(epoch, &Running { placement: &placement, batch, slowdown: 0.0 });
        let best = batches.iter().map(rate).fold(0.0, f64::max);
        let target = application.progress_target(epoch);
        total_s += (target - start) / best;
        start = target;
    }
    total_s
}

/// Replicas per node on the fewest nodes.
pub(super) fn consolidated(replicas: u32, on_a_node: u32) -> Vec<u32> {
    let full_nodes = (replicas / on_a_node) as usize;
    let mut placement = vec![on_a_node; full_nodes];
    placement.extend(Some(replicas % on_a_node).filter(|&rest| rest > 0));
    placement
}

/// The average number of jobs present between two moments, by the moments at which they came and went.
pub(super) struct Presence {
    /// Moments, the number present from then on, and the job-seconds until then.
    steps: Vec<(f64, f64, f64)>,
}

impl Presence {
    pub(super) fn new(lives: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut changes: Vec<(f64, f64)> = lives.flat_map(|(from, to)| [(from, 1.0), (to, -1.0)]).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut steps: Vec<(f64, f64, f64)> = Vec::with_capacity(changes.len());
        for (at, change) in changes {
            let (before, present, area) = steps.last().copied().unwrap_or((at, 0.0, 0.0));
            steps.push((at, present + change, area + present * (at - before)));
        }
        Self { steps }
    }

    pub(super) fn mean(&self, from: f64, to: f64) -> f64 {
        let area = |until: f64| {
            let idx = self.steps.partition_point(|step| step.0 <= until);
            idx.checked_sub(1).map_or(0.0, |idx| {
                let (at, present, area) = self.steps[idx];
                area + present * (until - at)
            })
        };
        if to > from { (area(to) - area(from)) / (to - from) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence_is_averaged_over_time() {
        let presence = Presence::new([(0.0, 10.0), (5.0, 10.0), (10.0, 20.0)].into_iter());
        assert_eq!(presence.mean(0.0, 10.0), 1.5);
        assert_eq!(presence.mean(5.0, 10.0), 2.0);
        assert_eq!(presence.mean(0.0, 20.0), 1.25);
    }
}
