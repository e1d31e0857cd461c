use super::{Workload, WorkloadError, WorkloadJob};
use crate::SimRng;

const JOBS_MAX: f64 = 1_000_000.0;

/// Draws another workload from one, in which any job may come any number of times, each at its own moment: `load` times
/// as many jobs in the same time. The same seed draws the same jobs. They wait for no others: those may not be drawn.
pub fn resample(workload: &Workload, load: f64, seed: u64) -> Result<Workload, WorkloadError> {
    let given = workload.jobs();
    let count = (given.len() as f64 * load).round();
    if !(1.0..=JOBS_MAX).contains(&count) {
        let value = format!("{load} of {} jobs", given.len());
        return Err(WorkloadError::Setting { name: "load", value, accepted: format!("1 to {JOBS_MAX} jobs in all") });
    }
    let mut rng = SimRng::new(seed);
    let mut drawn: Vec<usize> = (0..count as usize).map(|_| rng.below(given.len())).collect();
    // Jobs are in order of time, and so is what they are drawn into.
    drawn.sort_unstable();
    let job = |(place, idx): (usize, usize)| {
        let job = &given[idx];
        WorkloadJob { name: format!("{}-{place}", job.application), depends_on: Vec::new(), ..job.clone() }
    };
    let jobs = drawn.into_iter().enumerate().map(job).collect();
    Workload::new(&format!("{}-{seed}", workload.name()), Some(seed), jobs)
}

/// The same workload so many times at once, for a cluster that is as many times larger: every job comes that often, at its
/// own moment. They wait for no others.
pub fn repeat(workload: &Workload, times: u32) -> Result<Workload, WorkloadError> {
    let count = workload.jobs().len() as f64 * f64::from(times);
    if !(1.0..=JOBS_MAX).contains(&count) {
        let value = format!("{times} times {} jobs", workload.jobs().len());
        return Err(WorkloadError::Setting { name: "repeat", value, accepted: format!("1 to {JOBS_MAX} jobs in all") });
    }
    let copies = workload.jobs().iter().flat_map(|job| (0..times).map(move |_| job)).enumerate();
    let jobs = copies.map(|(place, job)| WorkloadJob {
        name: format!("{}-{place}", job.application),
        depends_on: Vec::new(),
        ..job.clone()
    });
    Workload::new(workload.name(), workload.seed(), jobs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApplicationName, ApplicationSet, GeneratorSettings, generate};

    #[test]
    fn every_job_comes_as_often_as_asked_at_its_own_moment() {
        let (given, twice) = (given(), repeat(&given(), 2).unwrap());
        let doubled: Vec<(u64, ApplicationName)> =
            given.jobs().iter().flat_map(|job| [(job.submitted_s, job.application); 2]).collect();
        let came: Vec<_> = twice.jobs().iter().map(|job| (job.submitted_s, job.application)).collect();
        assert_eq!(came, doubled);
        let expected = "repeat 0 times 40 jobs; expected 1 to 1000000 jobs in all";
        assert_eq!(repeat(&given, 0).unwrap_err().to_string(), expected);
    }

    fn given() -> Workload {
        generate(&GeneratorSettings { jobs: 40, ..GeneratorSettings::default() }, &ApplicationSet::parametric())
            .unwrap()
    }

    #[test]
    fn the_seed_decides_which_jobs_come_how_often() {
        let drawn = resample(&given(), 1.5, 3).unwrap();
        assert_eq!(drawn, resample(&given(), 1.5, 3).unwrap());
        assert_ne!(drawn.jobs(), resample(&given(), 1.5, 4).unwrap().jobs());
        assert_eq!((drawn.jobs().len(), drawn.seed()), (60, Some(3)));
    }

    #[test]
    fn drawn_jobs_are_given_ones_at_their_own_moments() {
        let (given, drawn) = (given(), resample(&given(), 2.0, 0).unwrap());
        let same = |a: &WorkloadJob, b: &WorkloadJob| {
            WorkloadJob { name: String::new(), ..a.clone() } == WorkloadJob { name: String::new(), ..b.clone() }
        };
        assert!(drawn.jobs().iter().all(|job| given.jobs().iter().any(|other| same(job, other))));
        let copies = |job: &WorkloadJob| drawn.jobs().iter().filter(|other| same(job, other)).count();
        assert!(given.jobs().iter().any(|job| copies(job) > 2) && given.jobs().iter().any(|job| copies(job) == 0));
    }

    #[test]
    fn loads_that_make_no_workload_are_refused() {
        for load in [0.0, 0.001, -1.0, f64::NAN, 1e9] {
            let error = resample(&given(), load, 0).unwrap_err().to_string();
            assert_eq!(error, format!("load {load} of 40 jobs; expected 1 to 1000000 jobs in all"));
        }
    }
}
