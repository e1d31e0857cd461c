//! Workloads from arguments: files, logs to draw from, or made up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use pollux_sim::{ApplicationSet, GeneratorSettings, PhillySettings, Workload, generate, read_osdi21, read_philly};

use super::SimError;
use super::args::SimArgs;
use crate::output;

/// More of a header is no header.
const HEADER_BYTES_MAX: u64 = 1 << 16;

/// Jobs, the seed that decides everything random about them, and what reports call them.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) label: String,
    pub(super) seed: u64,
    pub(super) workload: Workload,
}

/// What is simulated under each policy.
pub(super) fn scenarios(args: &SimArgs, applications: &ApplicationSet, gpus: u32) -> Result<Vec<Scenario>, SimError> {
    if let Some(value) = repeated(&args.seed) {
        return Err(SimError::Repeated { option: "--seed", value: value.to_string() });
    }
    if let Some(path) = repeated(&args.workload) {
        return Err(SimError::Repeated { option: "--workload", value: path.display().to_string() });
    }
    let mut scenarios = Vec::new();
    if args.workload.is_empty() {
        for &seed in &args.seed {
            let settings =
                GeneratorSettings { jobs: args.generate_jobs, load: args.load, seed, requested_replicas_max: gpus };
            let workload = generate(&settings, applications).map_err(SimError::Workload)?;
            scenarios.push(Scenario { label: workload.name().to_owned(), seed, workload });
        }
    }
    for path in &args.workload {
        if is_log(path)? {
            for &seed in &args.seed {
                let settings = PhillySettings {
                    jobs: drawn_jobs(args),
                    seed,
                    requested_replicas_max: gpus,
                    ..PhillySettings::default()
                };
                let workload = read_philly(path, &settings, applications).map_err(SimError::Workload)?;
                scenarios.push(Scenario { label: workload.name().to_owned(), seed, workload });
            }
        } else {
            scenarios.extend(given(path, args)?);
        }
    }
    tell_apart(&mut scenarios, args);
    Ok(scenarios)
}

/// A workload with nothing random about it needs one run, unless nodes fail.
fn given(path: &Path, args: &SimArgs) -> Result<Vec<Scenario>, SimError> {
    let workload = read_osdi21(path).map_err(SimError::Workload)?;
    let seeds = if args.failures > 0.0 && args.failure_seed.is_none() { &args.seed[..] } else { &args.seed[..1] };
    if seeds.len() < args.seed.len() {
        output::note(&format!("{} is simulated once: a seed changes nothing about it", path.display()));
    }
    let scenario = |&seed| Scenario { label: workload.name().to_owned(), seed, workload: workload.clone() };
    Ok(seeds.iter().map(scenario).collect())
}

/// Files of one name in different folders are called by their paths.
fn tell_apart(scenarios: &mut [Scenario], args: &SimArgs) {
    let stem = |path: &Path| path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in &args.workload {
        paths.entry(stem(path)).or_default().push(path.with_extension("").display().to_string());
    }
    let mut seen: BTreeMap<(String, u64), usize> = BTreeMap::new();
    for scenario in scenarios {
        let Some(paths) = paths.get(&scenario.label).filter(|paths| paths.len() > 1) else { continue };
        let count = seen.entry((scenario.label.clone(), scenario.seed)).or_default();
        if let Some(path) = paths.get(*count) {
            scenario.label.clone_from(path);
        }
        *count += 1;
    }
}

fn drawn_jobs(args: &SimArgs) -> usize {
    (f64::from(args.generate_jobs) * args.load).round() as usize
}

/// Whether the header is that of a cluster's log.
fn is_log(path: &Path) -> Result<bool, SimError> {
    let header = || -> io::Result<Vec<u8>> {
        let mut header = Vec::new();
        BufReader::new(File::open(path)?.take(HEADER_BYTES_MAX)).read_until(b'\n', &mut header)?;
        Ok(header)
    };
    let header = header().map_err(|reason| SimError::WorkloadUnreadable { path: path.to_owned(), reason })?;
    let header = String::from_utf8_lossy(&header);
    let has = |column: &str| header.split(',').any(|name| name.trim().trim_matches('"') == column);
    Ok(has("timestamp") && has("gpu_time"))
}

/// The first value that was there before.
pub(super) fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    values.iter().enumerate().find(|(idx, value)| values[..*idx].contains(value)).map(|(_, value)| value)
}
