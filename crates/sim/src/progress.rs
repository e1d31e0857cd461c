//! How a job moves through its epochs.

use pollux_model::Batch;

use crate::Application;

/// How far a job has trained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingState {
    /// Epochs behind it.
    pub epoch: u32,
    /// Steps at the baseline batch that its training so far is worth.
    pub progress: f64,
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
        gain / step_s * (1.0 - slowdown) / self.slowness()
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
