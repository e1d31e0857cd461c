use pollux_model::{GpuTypeName, ModelError, Observation, Shape};

/// What a job runs on, as far as its speed is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Placement {
    /// Replicas and nodes.
    pub shape: Shape,
    /// Type of GPU under every replica.
    #[cfg_attr(feature = "serde", serde(default))]
    pub gpu_type: GpuTypeName,
}

impl From<Shape> for Placement {
    fn from(shape: Shape) -> Self {
        Self { shape, gpu_type: GpuTypeName::default() }
    }
}

/// The measured times of one optimiser step.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepObservation {
    /// Where the step ran.
    pub placement: Placement,
    /// Samples of one micro-batch on one replica.
    pub local_batch: u32,
    /// Micro-batches before the one that ended the step.
    pub accumulation_steps: u32,
    /// Seconds of compute of one micro-batch.
    pub compute_s: f64,
    /// Seconds from the last local gradient to the end of the step.
    pub sync_s: f64,
}

impl StepObservation {
    /// In the form a fit takes; refused if the times cannot be those of a training step.
    pub(crate) fn checked(&self) -> Result<Observation, ModelError> {
        let observation = Observation {
            shape: self.placement.shape,
            local_batch: self.local_batch,
            compute_s: self.compute_s,
            step_s: self.compute_s + self.sync_s,
        };
        observation.check()?;
        Ok(observation)
    }
}
