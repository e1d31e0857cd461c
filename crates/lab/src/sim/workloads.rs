//! Workloads from options: files, logs to draw from, or made up.

use std::collections::BTreeSet;
use std::iter;
use std::path::{Path, PathBuf};

use pollux_sim::{
    ApplicationSet, GeneratorSettings, PhillySettings, Requests, Workload, WorkloadError, generate, is_philly,
    read_osdi21, read_philly, resample,
};

use super::SimError;
use super::options::SimOptions;

/// Jobs, a seed, and what reports call them: no two scenarios the same.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) label: String,
    pub(crate) seed: u64,
    pub(crate) seeded: Seeded,
    pub(crate) workload: Workload,
}

/// What the seed of a scenario decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeded {
    /// The jobs, and the moments of failure unless they have a seed of their own.
    Jobs,
    /// Which jobs of a given workload come how often, and likewise.
    Draws,
    /// The moments of failure only.
    Failures,
    /// Nothing that happens.
    Nothing,
}

/// What is simulated under each policy.
pub(super) fn scenarios(
    options: &SimOptions,
    applications: &ApplicationSet,
    gpus: u32,
    notes: &mut Vec<String>,
) -> Result<Vec<Scenario>, SimError> {
    if let Some(value) = repeated(options.seeds()) {
        return Err(SimError::Repeated { option: "seed", value: value.to_string() });
    }
    let files = files(&options.workloads)?;
    let mut scenarios = Vec::new();
    if files.is_empty() {
        for &seed in options.seeds() {
            let settings = GeneratorSettings {
                jobs: options.generate_jobs,
                load: options.load(),
                seed,
                requested_replicas_max: gpus,
                requests: options.requests,
            };
            scenarios.push(random(seed, generate(&settings, applications))?);
        }
    }
    for file in &files {
        if !is_log(file.path)? {
            scenarios.extend(given(file, options, notes)?);
            continue;
        }
        for &seed in options.seeds() {
            let settings = PhillySettings {
                jobs: drawn_jobs(options),
                seed,
                requested_replicas_max: gpus,
                requests: options.requests,
                ..PhillySettings::default()
            };
            scenarios.push(random(seed, read_philly(file.path, &settings, applications))?);
        }
    }
    tell_apart(&mut scenarios);
    Ok(scenarios)
}

/// A file of jobs, and what reports call it.
struct WorkloadFile<'a> {
    path: &'a Path,
    label: String,
}

/// Files of one name in different folders are called by their paths.
fn files(paths: &[PathBuf]) -> Result<Vec<WorkloadFile<'_>>, SimError> {
    let mut real_paths: Vec<PathBuf> = Vec::new();
    for path in paths {
        let real_path =
            path.canonicalize().map_err(|reason| SimError::WorkloadUnreadable { path: path.clone(), reason })?;
        if real_paths.contains(&real_path) {
            return Err(SimError::Repeated { option: "workload", value: path.display().to_string() });
        }
        real_paths.push(real_path);
    }
    let label = |(path, real_path): (&PathBuf, &PathBuf)| {
        let elsewhere = |(other, real_other): (&PathBuf, &PathBuf)| {
            other.file_stem() == path.file_stem() && real_other.parent() != real_path.parent()
        };
        let is_ambiguous = paths.iter().zip(&real_paths).any(elsewhere);
        let name = if is_ambiguous { Some(path.as_os_str()) } else { path.file_name() };
        name.map_or_else(String::new, |name| Path::new(name).with_extension("").display().to_string())
    };
    let labels: Vec<String> = paths.iter().zip(&real_paths).map(label).collect();
    Ok(paths.iter().zip(labels).map(|(path, label)| WorkloadFile { path, label }).collect())
}

/// A workload that another seed would have made another.
fn random(seed: u64, workload: Result<Workload, WorkloadError>) -> Result<Scenario, SimError> {
    let workload = workload.map_err(SimError::Workload)?;
    Ok(Scenario { label: workload.name().to_owned(), seed, seeded: Seeded::Jobs, workload })
}

/// The workload of a file, drawn from anew where a load asks for it. One with nothing random about it needs one run,
/// unless nodes fail.
fn given(file: &WorkloadFile<'_>, options: &SimOptions, notes: &mut Vec<String>) -> Result<Vec<Scenario>, SimError> {
    let workload = read_osdi21(file.path).map_err(SimError::Workload)?;
    if options.requests == Requests::Realistic {
        notes.push(format!("{} says what its users ask for: requests is for other jobs", file.path.display()));
    }
    if options.resamples() {
        let drawn = |&seed| {
            let scenario = random(seed, resample(&workload, options.load(), seed))?;
            Ok(Scenario { label: format!("{}-{seed}", file.label), seeded: Seeded::Draws, ..scenario })
        };
        return options.seeds().iter().map(drawn).collect();
    }
    let fails = options.failures > 0.0 && options.failure_seed.is_none();
    let (seeded, seeds) =
        if fails { (Seeded::Failures, options.seeds()) } else { (Seeded::Nothing, &options.seeds()[..1]) };
    if seeds.len() < options.seeds().len() {
        notes.push(format!("{} is simulated once: a seed changes nothing about it", file.path.display()));
    }
    let label = |seed| if seeds.len() > 1 { format!("{}-{seed}", file.label) } else { file.label.clone() };
    let scenario = |&seed| Scenario { label: label(seed), seed, seeded, workload: workload.clone() };
    Ok(seeds.iter().map(scenario).collect())
}

/// Numbers all but the first of those that are called the same.
fn tell_apart(scenarios: &mut [Scenario]) {
    let mut taken = BTreeSet::new();
    for scenario in scenarios {
        let numbered = (2..).map(|number: u32| format!("{}#{number}", scenario.label));
        let mut labels = iter::once(scenario.label.clone()).chain(numbered);
        if let Some(label) = labels.find(|label| !taken.contains(label)) {
            taken.insert(label.clone());
            scenario.label = label;
        }
    }
}

fn drawn_jobs(options: &SimOptions) -> usize {
    (f64::from(options.generate_jobs) * options.load()).round() as usize
}

fn is_log(path: &Path) -> Result<bool, SimError> {
    is_philly(path).map_err(|reason| SimError::WorkloadUnreadable { path: path.to_owned(), reason })
}

/// The first value that was there before.
pub(crate) fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    values.iter().enumerate().find(|(idx, value)| values[..*idx].contains(value)).map(|(_, value)| value)
}
