use serde::Deserialize;

use crate::{Application, ApplicationName, SimRng};

/// What a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// GPUs.
    pub replicas: u32,
    /// Total batch.
    pub batch_size: u32,
}

/// How users come to what they ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requests {
    /// They measured their job beforehand: [`tuned_requests`](crate::tuned_requests).
    #[default]
    Tuned,
    /// They guess: as many GPUs as users of the paper's cluster log asked for, for jobs of that size, each with the
    /// application's baseline batch.
    ///
    /// This is the rule behind the published realistic workloads. In them small and medium jobs ask for what the log
    /// says, and large ones for what those of their size in the log asked for that ended within a day: who waits longer
    /// than that asks for more GPUs.
    Realistic,
}

impl Requests {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Tuned, Self::Realistic];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tuned => "tuned",
            Self::Realistic => "realistic",
        }
    }

    /// The one that is written so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|requests| requests.name() == name)
    }
}

/// Jobs of the log by the GPUs they asked for, in the hours that the paper replays, those beyond a minute and within a
/// day: below 1 GPU-hour, below 10, below 100, below 1000.
const LOGGED: [&[(u32, f64)]; 4] = [
    &[(1, 24063.0), (2, 74.0), (4, 241.0), (8, 109.0), (16, 11.0)],
    &[(1, 4540.0), (2, 9.0), (4, 93.0), (8, 103.0), (12, 1.0), (16, 15.0), (24, 2.0), (32, 8.0)],
    &[(1, 504.0), (2, 38.0), (4, 256.0), (8, 169.0), (12, 1.0), (16, 12.0), (32, 9.0), (64, 2.0)],
    &[(8, 41.0), (16, 16.0), (32, 5.0)],
];

/// GPUs that the user of such an application guesses.
pub(super) fn guessed_gpus(application: ApplicationName, rng: &mut SimRng) -> u32 {
    let size = match application {
        ApplicationName::Cifar10 | ApplicationName::Ncf => 0,
        ApplicationName::Bert | ApplicationName::Deepspeech2 => 1,
        ApplicationName::Yolov3 => 2,
        ApplicationName::Imagenet => 3,
    };
    let weights: Vec<f64> = LOGGED[size].iter().map(|&(_, jobs)| jobs).collect();
    LOGGED[size][rng.weighted(&weights)].0
}

/// What a user asks for who guesses so many GPUs, on a cluster of `replicas_max`.
pub(super) fn guess(application: &Application, gpus: u32, replicas_max: u32) -> Request {
    let limits = application.limits();
    // More replicas than the largest batch has smallest shares could not run.
    let useful = limits.batch_size_max() / limits.local_batch_min();
    let replicas = gpus.min(replicas_max).min(useful).max(1);
    let batch_size = limits.batch_size_baseline().saturating_mul(replicas).min(limits.batch_size_max());
    Request { replicas, batch_size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApplicationSet;
    use pollux_model::Batch;

    #[test]
    fn a_guess_keeps_the_baseline_on_every_gpu_and_can_always_run() {
        for application in ApplicationSet::parametric().iter() {
            let limits = application.limits();
            for gpus in [1, 4, 64, 1000] {
                let request = guess(application, gpus, 16);
                assert!(request.replicas <= gpus.min(16));
                assert_eq!(request.batch_size, limits.batch_size_baseline() * request.replicas);
                let huge = guess(application, gpus, u32::MAX);
                let batch = Batch::fixed(limits, huge.batch_size, huge.replicas).expect("a batch");
                assert!(batch.local_batch >= limits.local_batch_min() && huge.batch_size <= limits.batch_size_max());
            }
        }
    }
}
