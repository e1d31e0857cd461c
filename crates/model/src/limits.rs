use crate::{ModelError, Shape};

/// What the user allows: the baseline and largest total batch, and the bounds of a replica's micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "RawLimits"))]
pub struct BatchLimits {
    batch_size_baseline: u32,
    batch_size_max: u32,
    local_batch_min: u32,
    local_batch_max: u32,
}

impl BatchLimits {
    /// Each lower bound must be at least 1 and at most its upper bound.
    pub fn new(
        batch_size_baseline: u32,
        batch_size_max: u32,
        local_batch_min: u32,
        local_batch_max: u32,
    ) -> Result<Self, ModelError> {
        let ordered = |lower_name, lower, upper_name, upper| {
            if lower == 0 || lower > upper {
                return Err(ModelError::Bounds { lower_name, lower, upper_name, upper });
            }
            Ok(())
        };
        ordered("batch_size_baseline", batch_size_baseline, "batch_size_max", batch_size_max)?;
        ordered("local_batch_min", local_batch_min, "local_batch_max", local_batch_max)?;
        Ok(Self { batch_size_baseline, batch_size_max, local_batch_min, local_batch_max })
    }

    /// `M0`: the batch the user's learning rate was chosen for; the total batch never goes below.
    pub const fn batch_size_baseline(&self) -> u32 {
        self.batch_size_baseline
    }

    /// The total batch never goes above.
    pub const fn batch_size_max(&self) -> u32 {
        self.batch_size_max
    }

    /// The same limits with another largest batch, which is never below the baseline.
    #[must_use]
    pub const fn with_batch_size_max(self, batch_size_max: u32) -> Self {
        let baseline = self.batch_size_baseline;
        Self { batch_size_max: if batch_size_max > baseline { batch_size_max } else { baseline }, ..self }
    }

    /// The smallest micro-batch of a replica.
    pub const fn local_batch_min(&self) -> u32 {
        self.local_batch_min
    }

    /// The largest micro-batch of a replica: what fits its memory.
    pub const fn local_batch_max(&self) -> u32 {
        self.local_batch_max
    }

    /// Whether a shape may run this choice. One replica needs two micro-batches above the baseline, because one
    /// gradient alone tells nothing of its noise.
    pub fn allow(&self, shape: Shape, local_batch: u32, accumulation_steps: u32) -> bool {
        let micro_batches = u64::from(accumulation_steps) + 1;
        let per_replica = u64::from(local_batch) * micro_batches;
        let Some(batch_size) = per_replica.checked_mul(u64::from(shape.replicas())) else { return false };
        let baseline = u64::from(self.batch_size_baseline);
        (self.local_batch_min..=self.local_batch_max).contains(&local_batch)
            && (baseline..=u64::from(self.batch_size_max)).contains(&batch_size)
            && (shape.replicas() > 1 || micro_batches > 1 || batch_size == baseline)
    }

    pub(crate) fn no_feasible_batch(&self, shape: Shape) -> ModelError {
        ModelError::NoFeasibleBatch {
            replicas: shape.replicas(),
            local_min: self.local_batch_min,
            local_max: self.local_batch_max,
            batch_min: self.batch_size_baseline,
            batch_max: self.batch_size_max,
        }
    }
}

#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct RawLimits {
    batch_size_baseline: u32,
    batch_size_max: u32,
    local_batch_min: u32,
    local_batch_max: u32,
}

#[cfg(feature = "serde")]
impl TryFrom<RawLimits> for BatchLimits {
    type Error = ModelError;

    fn try_from(raw: RawLimits) -> Result<Self, ModelError> {
        Self::new(raw.batch_size_baseline, raw.batch_size_max, raw.local_batch_min, raw.local_batch_max)
    }
}
