use super::TunedRequest;
use crate::{Application, ApplicationName, SimRng};

/// What users who did not measure ask for: GPUs in the proportions of the published realistic workloads, which follow a
/// real cluster's log, and the baseline batch for each of them.
pub(super) fn realistic_request(application: &Application, replicas_max: u32, rng: &mut SimRng) -> TunedRequest {
    let choices: &[(u32, f64)] = match application.name() {
        ApplicationName::Cifar10 | ApplicationName::Ncf => &[(1, 98.6), (4, 1.0), (8, 0.4)],
        ApplicationName::Bert => &[(1, 1.0)],
        ApplicationName::Deepspeech2 => &[(1, 93.0), (4, 5.2), (8, 1.8)],
        ApplicationName::Yolov3 => &[(1, 50.0), (2, 7.0), (4, 33.0), (8, 7.0), (16, 3.0)],
        ApplicationName::Imagenet => &[(8, 73.0), (16, 27.0)],
    };
    let weights: Vec<f64> = choices.iter().map(|&(_, weight)| weight).collect();
    let replicas = choices[rng.weighted(&weights)].0.min(replicas_max.max(1));
    let limits = application.limits();
    let batch_size = (replicas * limits.batch_size_baseline()).min(limits.batch_size_max());
    TunedRequest { replicas, batch_size }
}
