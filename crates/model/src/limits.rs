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
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "LoneReplica::is_published"))]
    lone_replica: LoneReplica,
}

/// How one replica runs a batch above the baseline. One gradient alone tells nothing of its noise, so it has to compare
/// micro-batches with the step that they are a part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum LoneReplica {
    /// In one micro-batch where it fits: the worker runs some of its steps in halves, only to measure them.
    Whole,
    /// Every step in two micro-batches or more, as published. What a newer worker may say besides is taken for this.
    #[default]
    #[cfg_attr(feature = "serde", serde(other))]
    Accumulates,
}

impl LoneReplica {
    /// The fewest micro-batches of one replica above the baseline.
    pub(crate) const fn micro_batches_min(self) -> u32 {
        match self {
            Self::Accumulates => 2,
            Self::Whole => 1,
        }
    }

    #[cfg(feature = "serde")]
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    const fn is_published(&self) -> bool {
        matches!(self, Self::Accumulates)
    }
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
        let lone_replica = LoneReplica::default();
        Ok(Self { batch_size_baseline, batch_size_max, local_batch_min, local_batch_max, lone_replica })
    }

    /// The same limits for a worker that runs alone in this way.
    #[must_use]
    pub const fn with_lone_replica(self, lone_replica: LoneReplica) -> Self {
        Self { lone_replica, ..self }
    }

    /// How one replica runs a batch above the baseline.
    pub const fn lone_replica(&self) -> LoneReplica {
        self.lone_replica
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

    /// The same limits where another micro-batch fits the memory, which is never below the smallest.
    #[must_use]
    pub const fn with_local_batch_max(self, local_batch_max: u32) -> Self {
        let smallest = self.local_batch_min;
        Self { local_batch_max: if local_batch_max > smallest { local_batch_max } else { smallest }, ..self }
    }

    /// The smallest micro-batch of a replica.
    pub const fn local_batch_min(&self) -> u32 {
        self.local_batch_min
    }

    /// The largest micro-batch of a replica: what fits its memory.
    pub const fn local_batch_max(&self) -> u32 {
        self.local_batch_max
    }

    /// Whether a shape may run this choice. One replica needs two micro-batches above the baseline, unless its worker
    /// measures otherwise.
    pub fn allow(&self, shape: Shape, local_batch: u32, accumulation_steps: u32) -> bool {
        let micro_batches = u64::from(accumulation_steps) + 1;
        let per_replica = u64::from(local_batch) * micro_batches;
        let Some(batch_size) = per_replica.checked_mul(u64::from(shape.replicas())) else { return false };
        let baseline = u64::from(self.batch_size_baseline);
        (self.local_batch_min..=self.local_batch_max).contains(&local_batch)
            && (baseline..=u64::from(self.batch_size_max)).contains(&batch_size)
            && (shape.replicas() > 1
                || micro_batches >= u64::from(self.lone_replica.micro_batches_min())
                || batch_size == baseline)
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
    #[serde(default)]
    lone_replica: LoneReplica,
}

#[cfg(feature = "serde")]
impl TryFrom<RawLimits> for BatchLimits {
    type Error = ModelError;

    fn try_from(raw: RawLimits) -> Result<Self, ModelError> {
        let limits = Self::new(raw.batch_size_baseline, raw.batch_size_max, raw.local_batch_min, raw.local_batch_max)?;
        Ok(limits.with_lone_replica(raw.lone_replica))
    }
}
