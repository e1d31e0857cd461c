use super::jobs::{Arrival, named};
use super::requests::{guess, guessed_gpus};
use super::tuned::requests_within;
use super::{Requests, Workload, WorkloadError};
use crate::{ApplicationName, ApplicationSet, SimRng};

/// Arrivals per hour, relative to the first: over the eight hours that the paper replays, submissions peak in the fourth
/// at three times the first and fall off more slowly than they rose.
const HOURLY_RATES: [f64; 8] = [1.0, 1.6, 2.3, 3.0, 2.5, 2.0, 1.6, 1.3];

/// The paper's mix: 76% small jobs (below 1 GPU-hour), 17% medium (to 10), 5% large (to 100), 2% extra large; where two
/// applications stand for a size, half each.
const MIX: [(ApplicationName, f64); 6] = [
    (ApplicationName::Cifar10, 38.0),
    (ApplicationName::Ncf, 38.0),
    (ApplicationName::Bert, 8.5),
    (ApplicationName::Deepspeech2, 8.5),
    (ApplicationName::Yolov3, 5.0),
    (ApplicationName::Imagenet, 2.0),
];

const JOBS_MAX: f64 = 100_000.0;

/// What decides a generated workload, besides the applications.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratorSettings {
    /// Jobs over eight hours at load 1.
    pub jobs: u32,
    /// Multiplies the jobs: twice the load is twice the jobs in the same eight hours.
    pub load: f64,
    /// The same seed gives the same workload.
    pub seed: u64,
    /// Nobody asks for more GPUs: those of the cluster.
    pub requested_replicas_max: u32,
    /// How users come to what they ask for.
    pub requests: Requests,
}

impl Default for GeneratorSettings {
    /// The paper's: 160 jobs in eight hours.
    fn default() -> Self {
        Self { jobs: 160, load: 1.0, seed: 0, requested_replicas_max: 64, requests: Requests::Tuned }
    }
}

/// Makes up a day's peak in the manner of the paper: its mix of applications, its rise and fall of arrivals, and
/// requests that users tuned beforehand or guessed.
pub fn generate(settings: &GeneratorSettings, applications: &ApplicationSet) -> Result<Workload, WorkloadError> {
    let count = (f64::from(settings.jobs) * settings.load).round();
    if !(1.0..=JOBS_MAX).contains(&count) {
        let value = format!("{} at load {}", settings.jobs, settings.load);
        return Err(WorkloadError::Setting { name: "jobs", value, accepted: format!("1 to {JOBS_MAX} jobs in all") });
    }
    let mut seeds = SimRng::new(settings.seed);
    let (mut times, mut kinds, mut requests) = (seeds.split(), seeds.split(), seeds.split());
    let weights = MIX.map(|(_, weight)| weight);
    let choices = MIX.map(|(name, _)| requests_within(applications.get(name), settings.requested_replicas_max));
    let mut arrivals = Vec::with_capacity(count as usize);
    for _ in 0..count as u32 {
        let hour = times.weighted(&HOURLY_RATES);
        let submitted_s = (3600.0 * (hour as f64 + times.unit())) as u64;
        let kind = kinds.weighted(&weights);
        let application = MIX[kind].0;
        let request = match settings.requests {
            Requests::Tuned => choices[kind][requests.below(choices[kind].len())],
            Requests::Realistic => {
                let gpus = guessed_gpus(application, &mut requests);
                guess(applications.get(application), gpus, settings.requested_replicas_max)
            }
        };
        arrivals.push(Arrival { submitted_s, application, request });
    }
    let name = format!("generated-{}", settings.seed);
    Workload::new(&name, Some(settings.seed), named(arrivals))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(settings: &GeneratorSettings) -> Workload {
        generate(settings, &ApplicationSet::parametric()).unwrap()
    }

    #[test]
    fn the_seed_decides_everything() {
        let settings = GeneratorSettings { seed: 3, ..GeneratorSettings::default() };
        assert_eq!(workload(&settings), workload(&settings));
        assert_ne!(workload(&settings).jobs(), workload(&GeneratorSettings::default()).jobs());
    }

    #[test]
    fn arrivals_peak_in_the_fourth_hour_and_follow_the_mix() {
        let settings = GeneratorSettings { jobs: 10_000, load: 2.0, seed: 1, ..GeneratorSettings::default() };
        let workload = workload(&settings);
        let in_hour = |hour: u64| workload.jobs().iter().filter(|job| job.submitted_s / 3600 == hour).count() as f64;
        assert!((in_hour(3) / in_hour(0) - 3.0).abs() < 0.25);
        assert!((0..8).all(|hour| in_hour(hour) <= in_hour(3)) && in_hour(8) == 0.0);
        let share = |name| workload.jobs().iter().filter(|job| job.application == name).count() as f64 / 20_000.0;
        assert!(MIX.iter().all(|&(name, weight)| (share(name) - weight / 100.0).abs() < 0.01));
    }

    #[test]
    fn requests_stay_within_the_cluster() {
        for requested_replicas_max in [1, 3, 8] {
            let workload = workload(&GeneratorSettings { requested_replicas_max, ..GeneratorSettings::default() });
            assert!(workload.jobs().iter().all(|job| job.requested_replicas <= requested_replicas_max));
        }
    }

    #[test]
    fn realistic_jobs_are_the_same_but_for_what_they_ask_for() {
        let tuned = workload(&GeneratorSettings::default());
        let settings = GeneratorSettings { requests: Requests::Realistic, ..GeneratorSettings::default() };
        let guessed = workload(&settings);
        assert_eq!(guessed, workload(&settings));
        let pairs = tuned.jobs().iter().zip(guessed.jobs());
        assert!(pairs.clone().all(|(a, b)| (&a.name, a.submitted_s) == (&b.name, b.submitted_s)));
        assert!(pairs.clone().any(|(a, b)| a.requested_batch != b.requested_batch));
        let on_one = guessed.jobs().iter().filter(|job| job.requested_replicas == 1).count();
        assert!((140..160).contains(&on_one), "{on_one}");
    }

    #[test]
    fn counts_that_make_no_workload_are_refused() {
        for (jobs, load) in [(0, 1.0), (160, 0.0), (160, f64::NAN), (160, -1.0), (160, f64::INFINITY), (1, 1e9)] {
            let settings = GeneratorSettings { jobs, load, ..GeneratorSettings::default() };
            let error = generate(&settings, &ApplicationSet::parametric()).unwrap_err().to_string();
            assert_eq!(error, format!("jobs {jobs} at load {load}; expected 1 to 100000 jobs in all"));
        }
    }
}
