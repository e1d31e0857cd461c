use crate::BatchLimits;

/// What every replica does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples of one micro-batch on one replica.
    pub local_batch: u32,
    /// Micro-batches before the one that ends the step.
    pub accumulation_steps: u32,
}

impl Batch {
    /// A total batch that the user fixed, cut for `replicas`.
    ///
    /// Each replica takes its share, rounded up, in the fewest micro-batches that fit it; one replica above the baseline
    /// takes as many as its worker needs to tell noise from signal. Then the micro-batch is cut so that the
    /// total stays within the largest batch. `None` if not even one sample each does, or if there is nothing to cut.
    pub fn fixed(limits: &BatchLimits, batch_size: u32, replicas: u32) -> Option<Self> {
        if batch_size == 0 || replicas == 0 {
            return None;
        }
        let share = batch_size.div_ceil(replicas);
        let is_grown_alone = replicas == 1 && batch_size > limits.batch_size_baseline();
        let fewest = if is_grown_alone { limits.lone_replica().micro_batches_min() } else { 1 };
        let micro_batches = share.div_ceil(limits.local_batch_max()).max(fewest);
        let largest = limits.batch_size_max() / replicas.saturating_mul(micro_batches);
        let local_batch = share.div_ceil(micro_batches).min(largest);
        (local_batch > 0).then_some(Self { local_batch, accumulation_steps: micro_batches - 1 })
    }

    /// `M = K·m·(s+1)`.
    pub fn size(&self, replicas: u32) -> u32 {
        let micro_batches = u64::from(self.accumulation_steps) + 1;
        let size = u64::from(replicas).saturating_mul(u64::from(self.local_batch)).saturating_mul(micro_batches);
        u32::try_from(size).unwrap_or(u32::MAX)
    }
}

/// Who chooses a job's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "mode", rename_all = "snake_case"))]
pub enum BatchMode {
    /// Its user.
    Fixed {
        /// The batch, where the user named one; otherwise the baseline is kept.
        #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
        batch_size: Option<u32>,
    },
    /// Its agent, by goodput. What a newer scheduler may say besides is taken for this.
    #[default]
    #[cfg_attr(feature = "serde", serde(other))]
    Adaptive,
}

impl BatchMode {
    /// What a job does whose user named a batch or did not, under a policy that adapts batches or does not.
    pub const fn of(adapts: bool, batch_size: Option<u32>) -> Self {
        if adapts { Self::Adaptive } else { Self::Fixed { batch_size } }
    }

    /// The batch for so many replicas, if the user chooses it; one sample each where it cannot be cut so far.
    pub fn batch(self, limits: &BatchLimits, replicas: u32) -> Option<Batch> {
        let Self::Fixed { batch_size } = self else { return None };
        let batch = Batch::fixed(limits, batch_size.unwrap_or(limits.batch_size_baseline()), replicas);
        Some(batch.unwrap_or(Batch { local_batch: 1, accumulation_steps: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoneReplica;
    use proptest::prelude::*;

    fn cut(limits: (u32, u32, u32, u32), batch_size: u32, replicas: u32) -> Option<(u32, u32)> {
        let limits = BatchLimits::new(limits.0, limits.1, limits.2, limits.3).unwrap();
        Batch::fixed(&limits, batch_size, replicas).map(|batch| (batch.local_batch, batch.accumulation_steps))
    }

    #[test]
    fn a_fixed_batch_is_cut_as_published() {
        let cifar10 = (128, 4096, 32, 1024);
        assert_eq!(cut(cifar10, 128, 1), Some((128, 0)));
        assert_eq!(cut(cifar10, 256, 1), Some((128, 1)));
        assert_eq!(cut(cifar10, 4096, 1), Some((1024, 3)));
        assert_eq!(cut(cifar10, 4096, 3), Some((682, 1)));
        assert_eq!(cut(cifar10, 4096, 12), Some((341, 0)));
        assert_eq!(cut(cifar10, 2048, 6), Some((342, 0)));
        assert_eq!(cut((8, 512, 4, 8), 64, 4), Some((8, 1)));
    }

    #[test]
    fn a_worker_that_measures_in_halves_runs_a_fixed_batch_whole() {
        let limits = BatchLimits::new(128, 4096, 32, 1024).unwrap().with_lone_replica(LoneReplica::Whole);
        let cut = |batch_size| Batch::fixed(&limits, batch_size, 1).unwrap();
        assert_eq!(cut(256), Batch { local_batch: 256, accumulation_steps: 0 });
        assert_eq!(cut(4096), Batch { local_batch: 1024, accumulation_steps: 3 });
    }

    #[test]
    fn a_mode_says_who_chooses_the_batch() {
        let limits = BatchLimits::new(128, 4096, 32, 1024).unwrap();
        let cut = |mode: BatchMode, replicas| mode.batch(&limits, replicas).map(|batch| batch.size(replicas));
        assert_eq!(cut(BatchMode::of(true, Some(512)), 2), None);
        assert_eq!(cut(BatchMode::of(false, Some(512)), 2), Some(512));
        assert_eq!(cut(BatchMode::of(false, None), 4), Some(128));
        assert_eq!(cut(BatchMode::of(false, Some(64)), 5000), Some(5000));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_mode_reads_as_documented() {
        let read = |text: &str| serde_json::from_str::<BatchMode>(text).unwrap();
        let fixed = BatchMode::Fixed { batch_size: Some(64) };
        assert_eq!(read(r#"{"mode":"fixed","batch_size":64}"#), fixed);
        assert_eq!(read(&serde_json::to_string(&fixed).unwrap()), fixed);
        assert_eq!(read(r#"{"mode":"fixed"}"#), BatchMode::Fixed { batch_size: None });
        assert_eq!(read(r#"{"mode":"adaptive"}"#), BatchMode::Adaptive);
        assert_eq!(read(r#"{"mode":"of a later version"}"#), BatchMode::Adaptive);
        assert_eq!(serde_json::to_string(&BatchMode::Adaptive).unwrap(), r#"{"mode":"adaptive"}"#);
    }

    #[test]
    fn no_batch_is_left_for_too_many_replicas() {
        let limits = (8, 512, 4, 8);
        assert_eq!([cut(limits, 64, 513), cut(limits, 0, 1), cut(limits, 64, 0)], [None; 3]);
        assert_eq!(cut(limits, 64, 512), Some((1, 0)));
    }

    proptest! {
        #[test]
        fn a_fixed_batch_never_exceeds_the_limits(
            baseline in 1..5000_u32,
            above in 0..100_000_u32,
            local_batch_min in 1..100_u32,
            local_above in 0..5000_u32,
            batch_size in 0..200_000_u32,
            replicas in 0..2000_u32,
        ) {
            let local_batch_max = local_batch_min + local_above;
            let limits = BatchLimits::new(baseline, baseline + above, local_batch_min, local_batch_max).unwrap();
            match Batch::fixed(&limits, batch_size, replicas) {
                Some(batch) => {
                    prop_assert!(batch.local_batch >= 1 && batch.local_batch <= local_batch_max);
                    prop_assert!(batch.size(replicas) <= limits.batch_size_max());
                    prop_assert!(replicas > 1 || batch_size <= baseline || batch.accumulation_steps > 0);
                }
                None => {
                    let least = u64::from(replicas) * u64::from(batch_size.div_ceil(replicas.max(1)).div_ceil(local_batch_max));
                    let nothing = batch_size == 0 || replicas == 0;
                    prop_assert!(nothing || least.max(2) > u64::from(limits.batch_size_max()));
                }
            }
        }
    }
}
