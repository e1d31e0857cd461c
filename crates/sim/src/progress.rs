//! How a job moves through its epochs.

use pollux_model::BatchLimits;

use crate::Application;

/// How far a job has trained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingState {
    /// Epochs behind it.
    pub epoch: u32,
    /// Steps at the baseline batch that its training so far is worth.
    pub progress: f64,
}

/// What every replica does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples of one micro-batch on one replica.
    pub local_batch: u32,
    /// Micro-batches before the one that ends the step.
    pub accumulation_steps: u32,
}

impl Batch {
    /// `M = K·m·(s+1)`.
    pub fn size(&self, replicas: u32) -> u32 {
        let micro_batches = u64::from(self.accumulation_steps) + 1;
        let size = u64::from(replicas).saturating_mul(u64::from(self.local_batch)).saturating_mul(micro_batches);
        u32::try_from(size).unwrap_or(u32::MAX)
    }
}

/// A total batch that the user fixed, cut for `replicas` by [`BatchLimits::split`].
pub fn fixed_batch(limits: &BatchLimits, batch_size: u32, replicas: u32) -> Option<Batch> {
    let (local_batch, accumulation_steps) = limits.split(batch_size, replicas)?;
    Some(Batch { local_batch, accumulation_steps })
}

/// What a job runs with between two decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running<'a> {
    /// Replicas node by node, in the order of their ranks.
    pub placement: &'a [u32],
    /// What each replica does.
    pub batch: Batch,
    /// Share of the speed lost to interference: 0 for none, below 1.
    pub slowdown: f64,
}

/// How far a job came in the time it was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// It trained all the time within one epoch.
    Ran,
    /// It ended an epoch, and may now choose another batch for the time that is left.
    EpochEnded {
        /// Seconds that took.
        after_s: f64,
    },
    /// It ended its last epoch.
    Finished {
        /// Seconds that took.
        after_s: f64,
    },
}

impl Application {
    /// Progress per second.
    pub fn progress_rate(&self, epoch: u32, running: &Running<'_>) -> f64 {
        let Running { placement, batch, slowdown } = *running;
        let gain = self.gain(epoch, batch.size(placement.iter().sum()));
        let step_s = self.step_time(placement, batch.local_batch).with_accumulation(batch.accumulation_steps);
        gain / step_s * (1.0 - slowdown)
    }

    /// Trains for `seconds`, or until the epoch ends if that comes first. The time to the end of an epoch is rounded to
    /// whole seconds, halves to even, as in the published simulator; it may be 0.
    pub fn run(&self, state: &mut TrainingState, running: &Running<'_>, seconds: f64) -> Outcome {
        assert!((0.0..1.0).contains(&running.slowdown), "slowdown {}: a job always moves", running.slowdown);
        if state.epoch >= self.epochs() {
            return Outcome::Finished { after_s: 0.0 };
        }
        let rate = self.progress_rate(state.epoch, running);
        let target = self.progress_target(state.epoch);
        if state.progress + rate * seconds < target {
            state.progress += rate * seconds;
            return Outcome::Ran;
        }
        let after_s = ((target - state.progress) / rate).round_ties_even().clamp(0.0, seconds);
        state.progress = target;
        state.epoch += 1;
        if state.epoch == self.epochs() { Outcome::Finished { after_s } } else { Outcome::EpochEnded { after_s } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(limits: (u32, u32, u32, u32), batch_size: u32, replicas: u32) -> Option<(u32, u32)> {
        let limits = BatchLimits::new(limits.0, limits.1, limits.2, limits.3).unwrap();
        fixed_batch(&limits, batch_size, replicas).map(|batch| (batch.local_batch, batch.accumulation_steps))
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
    fn no_batch_is_left_for_too_many_replicas() {
        let limits = (8, 512, 4, 8);
        assert_eq!([cut(limits, 64, 513), cut(limits, 0, 1), cut(limits, 64, 0)], [None; 3]);
        assert_eq!(cut(limits, 64, 512), Some((1, 0)));
    }
}
