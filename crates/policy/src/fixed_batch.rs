use pollux_model::{Batch, Goodput, GpuType, Shape};

use crate::{Binding, ClusterView, JobView};

/// What a job's agent has learned, read at the total batch that its user fixed.
pub(crate) struct FixedBatch<'a> {
    goodput: &'a Goodput,
    batch_size: u32,
    /// Replicas on the largest node of the kind.
    node_replicas: u32,
    /// The most replicas to be tried.
    profile_max: u32,
}

impl<'a> FixedBatch<'a> {
    /// On a kind of GPU that the job was measured on; up to `profile_limit` times the replicas it was measured on.
    pub(crate) fn of(
        job: &'a JobView<'_>,
        kind: GpuType,
        view: &ClusterView<'_>,
        profile_limit: f64,
    ) -> Result<Self, Binding> {
        let profile = job.profiles.iter().find(|profile| profile.gpu_type == kind).ok_or(Binding::Profile)?;
        let of_kind = view.nodes.iter().filter(|node| node.gpu_type == kind && node.schedulable);
        Ok(Self {
            goodput: &profile.goodput,
            batch_size: job.batch_size.unwrap_or_else(|| profile.goodput.limits.batch_size_baseline()),
            node_replicas: of_kind.map(|node| node.resources().fits(job.per_replica())).max().unwrap_or(1).max(1),
            profile_max: (f64::from(profile.replicas_profiled) * profile_limit).ceil().max(1.0) as u32,
        })
    }

    /// Seconds of a step on the fewest nodes; otherwise why it is not to be tried.
    pub(crate) fn step_s(&self, replicas: u32) -> Result<f64, Binding> {
        let limits = &self.goodput.limits;
        if replicas > self.profile_max {
            return Err(Binding::Profile);
        }
        if replicas > (self.batch_size / limits.local_batch_min()).max(1) {
            return Err(Binding::Maximum);
        }
        let batch = Batch::fixed(limits, self.batch_size, replicas).ok_or(Binding::Maximum)?;
        let shape = Shape::new(replicas.div_ceil(self.node_replicas), replicas).map_err(|_| Binding::Maximum)?;
        let (local_batch, accumulation_steps) = (f64::from(batch.local_batch), f64::from(batch.accumulation_steps));
        Ok(self.goodput.throughput.step_s(shape, local_batch, accumulation_steps))
    }

    /// What a step is worth, in steps at the baseline batch.
    pub(crate) fn gain(&self) -> f64 {
        let baseline = f64::from(self.goodput.limits.batch_size_baseline());
        self.goodput.noise.gain(f64::from(self.batch_size) / baseline)
    }

    /// Steps that samples are worth, at the baseline batch.
    pub(crate) fn baseline_steps(&self, samples: f64) -> f64 {
        samples / f64::from(self.goodput.limits.batch_size_baseline())
    }
}
