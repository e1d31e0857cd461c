//! Two jobs on one GPU: how busy each keeps it, and how fast both then are.

use pollux_model::Batch;
use pollux_policy::Sharing;

use crate::Application;

/// Share of its speed that a job loses to a GPU that serves another, too, however idle that is: the order of what both
/// Gandiva (OSDI 2018) and AntMan (OSDI 2020) report of themselves, a few percent at most.
const OVERHEAD: f64 = 0.02;
/// No job keeps a GPU idle or busy all the time, so that a guest always moves.
const DUTY_MIN: f64 = 0.01;
const DUTY_MAX: f64 = 0.99;

impl Application {
    /// Share of a step in which its GPUs are busy: the compute that grows with the batch. What a step takes beside that,
    /// however small its batch, and what it spends on synchronisation are left to others.
    ///
    /// The part that does not grow is where the line through the compute times of the smallest and the largest local
    /// batch, on the same placement, meets a batch of 0. Where only one batch can be run all compute counts as busy.
    pub fn duty(&self, placement: &[u32], batch: Batch) -> f64 {
        let step = self.step_time(placement, batch.local_batch);
        let (low, high) = (self.limits().local_batch_min(), self.limits().local_batch_max());
        let compute_s = |local_batch| {
            let step = self.step_time(placement, local_batch);
            step.step_s - step.sync_s
        };
        let fixed_s = if low < high {
            let slope = (compute_s(high) - compute_s(low)) / f64::from(high - low);
            (compute_s(low) - slope * f64::from(low)).max(0.0)
        } else {
            0.0
        };
        let busy_s = (step.step_s - step.sync_s - fixed_s).max(0.0) * (f64::from(batch.accumulation_steps) + 1.0);
        (busy_s / step.with_accumulation(batch.accumulation_steps)).clamp(DUTY_MIN, DUTY_MAX)
    }
}

/// Speeds of a host and its guest with these duties, against each alone. Both are as fast as the slowest replica, which
/// is one that shares.
pub fn shared_speeds(sharing: Sharing, host: f64, guest: f64) -> [f64; 2] {
    let speeds = match sharing {
        Sharing::Equal => [1.0 / (host + guest).max(1.0); 2],
        Sharing::HostFirst => [1.0, ((1.0 - host) / guest).min(1.0)],
    };
    speeds.map(|speed| speed * (1.0 - OVERHEAD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApplicationName, ApplicationSet};

    #[test]
    fn two_jobs_share_what_a_gpu_has() {
        let close = |speeds: [f64; 2], expected: [f64; 2]| {
            let scaled = expected.map(|speed| speed * (1.0 - OVERHEAD));
            assert!(speeds.iter().zip(scaled).all(|(speed, expected)| (speed - expected).abs() < 1e-12), "{speeds:?}");
        };
        close(shared_speeds(Sharing::Equal, 0.3, 0.7), [1.0, 1.0]);
        close(shared_speeds(Sharing::Equal, 0.8, 0.8), [0.625, 0.625]);
        close(shared_speeds(Sharing::HostFirst, 0.8, 0.8), [1.0, 0.25]);
        close(shared_speeds(Sharing::HostFirst, 0.4, 0.5), [1.0, 1.0]);
    }

    #[test]
    fn larger_batches_keep_a_gpu_busier_and_synchronisation_leaves_it_idle() {
        let applications = ApplicationSet::parametric();
        let cifar10 = applications.get(ApplicationName::Cifar10);
        let duty = |placement: &[u32], local_batch, accumulation_steps| {
            cifar10.duty(placement, Batch { local_batch, accumulation_steps })
        };
        assert!(duty(&[1], 32, 0) < duty(&[1], 512, 0) && duty(&[1], 512, 0) < DUTY_MAX);
        assert!(duty(&[1, 1], 64, 0) < duty(&[1], 64, 0));
        assert!(duty(&[1, 1], 64, 3) > duty(&[1, 1], 64, 0), "it synchronises less often");
        for application in applications.iter() {
            let limits = application.limits();
            for local_batch in [limits.local_batch_min(), limits.local_batch_max()] {
                let duty = application.duty(&[4, 4], Batch { local_batch, accumulation_steps: 0 });
                assert!((DUTY_MIN..=DUTY_MAX).contains(&duty), "{duty} of {:?}", application.name());
            }
        }
    }
}
