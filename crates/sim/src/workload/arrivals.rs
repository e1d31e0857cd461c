use super::jobs::{Arrival, named};
use super::realistic::realistic_request;
use super::tuned::requests_within;
use super::{Workload, WorkloadError};
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
    /// What users ask for.
    pub requests: Requests,
}

/// What users ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// What they measured to be best beforehand.
    Tuned,
    /// What users of a real cluster asked for: mostly a single GPU, at the baseline batch for each.
    Realistic,
}

impl Default for GeneratorSettings {
    /// The paper's: 160 jobs in eight hours.
    fn default() -> Self {
        Self { jobs: 160, load: 1.0, seed: 0, requested_replicas_max: 64, requests: Requests::Tuned }
    }
}

/// Makes up a day's peak in the manner of the paper: its mix of applications, its rise and fall of arrivals, and
/// requests as users make them.
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
        let request = match settings.requests {
            Requests::Tuned => choices[kind][requests.below(choices[kind].len())],
            Requests::Realistic => {
                realistic_request(applications.get(MIX[kind].0), settings.requested_replicas_max, &mut requests)
            }
        };
        arrivals.push(Arrival { submitted_s, application: MIX[kind].0, request });
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
            for requests in [Requests::Tuned, Requests::Realistic] {
                let settings = GeneratorSettings { requested_replicas_max, requests, ..GeneratorSettings::default() };
                let workload = workload(&settings);
                assert!(workload.jobs().iter().all(|job| job.requested_replicas <= requested_replicas_max));
            }
        }
    }

    #[test]
    fn realistic_users_send_the_same_jobs_and_mostly_ask_for_one_gpu() {
        let settings = GeneratorSettings { jobs: 2000, ..GeneratorSettings::default() };
        let (tuned, realistic) =
            (workload(&settings), workload(&GeneratorSettings { requests: Requests::Realistic, ..settings }));
        let submitted = |workload: &Workload| -> Vec<_> {
            workload.jobs().iter().map(|job| (job.submitted_s, job.application)).collect()
        };
        assert_eq!(submitted(&tuned), submitted(&realistic));
        let single = realistic.jobs().iter().filter(|job| job.requested_replicas == 1).count();
        assert!((1800..1980).contains(&single), "{single}");
        let applications = ApplicationSet::parametric();
        for job in realistic.jobs() {
            let limits = applications.get(job.application).limits();
            let per_gpu = job.requested_batch / job.requested_replicas;
            assert_eq!(per_gpu, limits.batch_size_baseline(), "{job:?}");
        }
    }

    #[test]
    fn counts_that_make_no_workload_are_refused() {
        for (jobs, load) in [(0, 1.0), (160, 0.0), (160, f64::NAN), (160, -1.0), (160, f64::INFINITY), (1, 1e9)] {
            let settings = GeneratorSettings { jobs, load, ..GeneratorSettings::default() };
            let error = generate(&settings, &ApplicationSet::parametric()).unwrap_err().to_string();
            assert_eq!(error, format!("jobs {jobs} at load {load}; accepted: 1 to 100000 jobs in all"));
        }
    }
}
