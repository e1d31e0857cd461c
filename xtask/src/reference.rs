//! Our model beside the published implementation's recorded results.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pollux_model::{
    BatchLimits, Goodput, NoiseStatistics, Observation, Parallelism, Shape, StepParams, fit, objective,
};
use serde::{Deserialize, Serialize};

use crate::instances::{self, InstanceFile, InstanceSummary};

/// How much above the reference an objective may lie and still count as equal.
const FIT_TOLERANCE: f64 = 1.001;
/// The reference prints ten digits.
const GOODPUT_TOLERANCE: f64 = 1.0 - 1e-8;
/// Sizes of profiles that the quality table tells apart.
const SIZES: [RangeInclusive<usize>; 5] = [1..=1, 2..=5, 6..=12, 13..=24, 25..=usize::MAX];

/// What the folder's files say of us; a file that is missing is left out.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// Throughput fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fits: Option<FitSummary>,
    /// Best batch and accumulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goodput: Option<GoodputSummary>,
    /// Scheduling rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instances: Option<InstanceSummary>,
}

/// Our fits against the recorded ones.
#[derive(Debug, Serialize)]
pub(crate) struct FitSummary {
    /// Profiles fitted.
    pub(crate) count: usize,
    /// Objectives above the reference's by more than 0.1%.
    pub(crate) worse_than_reference: usize,
    /// Objectives below the reference's by more than 0.1%.
    pub(crate) lower_than_reference: usize,
    /// Largest ratio of our objective to the reference's.
    pub(crate) ratio_max: f64,
    /// Median ratio.
    pub(crate) ratio_median: f64,
    /// Median time of a fit from nothing.
    pub(crate) median_us: f64,
    /// Largest ratio of a fit that starts from the model without the last observation.
    pub(crate) warm_ratio_max: f64,
    /// Median time of a fit that starts from the model without the last observation.
    pub(crate) warm_median_us: f64,
    /// The reference's median time.
    pub(crate) reference_median_us: f64,
    /// The same by the size of the profile.
    pub(crate) by_observations: Vec<FitQuality>,
}

/// How profiles of similar size compare.
#[derive(Debug, Serialize)]
pub(crate) struct FitQuality {
    /// Fewest observations of a profile.
    pub(crate) observations_min: usize,
    /// Most observations that a profile has.
    pub(crate) observations_max: usize,
    /// Profiles fitted.
    pub(crate) count: usize,
    /// Median objective of ours.
    pub(crate) objective_median: f64,
    /// Median objective of the reference.
    pub(crate) reference_objective_median: f64,
    /// Smallest ratio of ours to the reference's.
    pub(crate) ratio_min: f64,
    /// Median ratio.
    pub(crate) ratio_median: f64,
    /// Largest ratio.
    pub(crate) ratio_max: f64,
}

/// Our best choices against the recorded ones.
#[derive(Debug, Serialize)]
pub(crate) struct GoodputSummary {
    /// Choices compared.
    pub(crate) count: usize,
    /// Choices with a lower goodput than the reference's.
    pub(crate) worse_than_reference: usize,
    /// Choices with a goodput higher by more than 0.1%.
    pub(crate) higher_than_reference: usize,
    /// Largest ratio of our goodput to the reference's.
    pub(crate) ratio_max: f64,
    /// Median time of a choice.
    pub(crate) median_us: f64,
}

/// Reads the files that `folder` has and compares.
pub(crate) fn compare(folder: &Path) -> Result<Summary> {
    ensure!(
        folder.is_dir(),
        "{}: no such folder; accepted is one with fits.json, goodput.json or instances.json",
        folder.display()
    );
    let summary = Summary {
        fits: read::<FitFile>(folder, "fits.json")?.map(|file| compare_fits(&file.fits)).transpose()?,
        goodput: read::<GoodputFile>(folder, "goodput.json")?.map(|file| compare_goodput(&file.cases)).transpose()?,
        instances: read::<InstanceFile>(folder, "instances.json")?.map(|file| instances::compare(&file)).transpose()?,
    };
    ensure!(
        summary.fits.is_some() || summary.goodput.is_some() || summary.instances.is_some(),
        "{}: holds none of fits.json, goodput.json and instances.json",
        folder.display()
    );
    Ok(summary)
}

#[derive(Deserialize)]
struct FitFile {
    fits: Vec<FitCase>,
}

#[derive(Deserialize)]
struct FitCase {
    num_nodes: Vec<u32>,
    num_replicas: Vec<u32>,
    atomic_bsz: Vec<u32>,
    accum_step_time: Vec<f64>,
    optim_step_time: Vec<f64>,
    params: [f64; 7],
    objective: f64,
    seconds: f64,
}

impl FitCase {
    fn observations(&self) -> Result<Vec<Observation>> {
        (0..self.num_nodes.len())
            .map(|idx| {
                Ok(Observation {
                    shape: Shape::new(self.num_nodes[idx], self.num_replicas[idx])?,
                    local_batch: self.atomic_bsz[idx],
                    compute_s: self.accum_step_time[idx],
                    step_s: self.optim_step_time[idx],
                })
            })
            .collect()
    }
}

#[derive(Deserialize)]
struct GoodputFile {
    cases: Vec<GoodputCase>,
}

#[derive(Deserialize)]
struct GoodputCase {
    perf_params: [f64; 7],
    grad_params: [f64; 2],
    init_batch_size: u32,
    max_batch_size: u32,
    min_local_bsz: u32,
    max_local_bsz: u32,
    nodes: Vec<u32>,
    replicas: Vec<u32>,
    goodput: Vec<f64>,
}

fn read<T: for<'de> Deserialize<'de>>(folder: &Path, name: &str) -> Result<Option<T>> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).map(Some).with_context(|| format!("{}: not the expected form", path.display()))
}

fn compare_fits(cases: &[FitCase]) -> Result<FitSummary> {
    ensure!(!cases.is_empty(), "fits.json: no fits");
    let mut ratios = Vec::new();
    let mut objectives = Vec::new();
    let mut cold = Vec::new();
    let mut warm = Vec::new();
    let mut warm_ratios = Vec::new();
    for case in cases {
        let observations = case.observations()?;
        let recomputed = objective(&observations, &StepParams::from_array(case.params))?;
        ensure!(
            (recomputed / case.objective - 1.0).abs() < 1e-3,
            "fits.json: objective {} recorded, {recomputed} at the recorded parameters",
            case.objective
        );
        let ours = fit(Parallelism::DataParallel, &observations, None)?;
        ratios.push(ours.objective / case.objective);
        objectives.push(ours.objective);
        cold.push(microseconds(|| fit(Parallelism::DataParallel, black_box(&observations), None)));
        if let Ok(earlier) = fit(Parallelism::DataParallel, &observations[..observations.len() - 1], None) {
            let again = || fit(Parallelism::DataParallel, black_box(&observations), Some(&earlier.model));
            warm_ratios.push(again()?.objective / case.objective);
            warm.push(microseconds(again));
        }
    }
    let by_observations = SIZES.iter().filter_map(|sizes| fit_quality(cases, &objectives, sizes)).collect();
    Ok(FitSummary {
        count: cases.len(),
        worse_than_reference: ratios.iter().filter(|&&ratio| ratio > FIT_TOLERANCE).count(),
        lower_than_reference: ratios.iter().filter(|&&ratio| ratio < 2.0 - FIT_TOLERANCE).count(),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        ratio_median: median(&mut ratios),
        median_us: median(&mut cold),
        warm_ratio_max: warm_ratios.iter().copied().fold(0.0, f64::max),
        warm_median_us: median(&mut warm),
        reference_median_us: median(&mut cases.iter().map(|case| case.seconds * 1e6).collect::<Vec<_>>()),
        by_observations,
    })
}

fn fit_quality(cases: &[FitCase], objectives: &[f64], sizes: &RangeInclusive<usize>) -> Option<FitQuality> {
    let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = cases
        .iter()
        .zip(objectives)
        .filter(|(case, _)| sizes.contains(&case.num_nodes.len()))
        .map(|(case, objective)| (objective, case.objective))
        .unzip();
    let mut ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    let ratio_median = if ratios.is_empty() { return None } else { median(&mut ratios) };
    Some(FitQuality {
        observations_min: *sizes.start(),
        observations_max: cases.iter().map(|case| case.num_nodes.len()).filter(|size| sizes.contains(size)).max()?,
        count: ratios.len(),
        objective_median: median(&mut ours),
        reference_objective_median: median(&mut theirs),
        ratio_min: ratios[0],
        ratio_median,
        ratio_max: ratios[ratios.len() - 1],
    })
}

fn compare_goodput(cases: &[GoodputCase]) -> Result<GoodputSummary> {
    let mut ratios = Vec::new();
    let mut times = Vec::new();
    for case in cases {
        let goodput = Goodput {
            throughput: Parallelism::DataParallel.model(StepParams::from_array(case.perf_params))?,
            noise: NoiseStatistics::new(case.grad_params[0], case.grad_params[1])?,
            limits: BatchLimits::new(
                case.init_batch_size,
                case.max_batch_size,
                case.min_local_bsz,
                case.max_local_bsz,
            )?,
        };
        for ((&nodes, &replicas), reference) in case.nodes.iter().zip(&case.replicas).zip(&case.goodput) {
            let shape = Shape::new(nodes, replicas)?;
            ratios.push(goodput.best(shape)?.goodput / reference);
            times.push(microseconds(|| black_box(&goodput).best(black_box(shape))));
        }
    }
    ensure!(!ratios.is_empty(), "goodput.json: no cases");
    Ok(GoodputSummary {
        count: ratios.len(),
        worse_than_reference: ratios.iter().filter(|&&ratio| ratio < GOODPUT_TOLERANCE).count(),
        higher_than_reference: ratios.iter().filter(|&&ratio| ratio > 1.001).count(),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        median_us: median(&mut times),
    })
}

/// Time of one call: the median of batches long enough for the clock, on a machine that others use too.
fn microseconds<T>(call: impl Fn() -> T) -> f64 {
    let batch = Duration::from_micros(200);
    let start = Instant::now();
    black_box(call());
    let calls = (batch.as_nanos() / start.elapsed().as_nanos().max(1)).clamp(1, 10_000);
    let mut samples: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                black_box(call());
            }
            start.elapsed().as_secs_f64() * 1e6 / calls as f64
        })
        .collect();
    median(&mut samples)
}

/// The middle value; of an even number, the upper one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_results_are_reached_or_beaten() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference");
        if !folder.is_dir() {
            eprintln!("skipped: {} is not here", folder.display());
            return;
        }
        let summary = compare(&folder).unwrap();
        assert_eq!(summary.fits.map(|fits| fits.worse_than_reference), Some(0));
        assert_eq!(summary.goodput.map(|goodput| goodput.worse_than_reference), Some(0));
    }

    #[test]
    fn a_folder_with_some_of_the_files_is_enough_and_one_with_none_is_refused() {
        let folder = std::env::temp_dir().join(format!("pollux-reference-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let refused = compare(&folder).unwrap_err().to_string();
        let case = r#"{"cases":[{"perf_params":[0.02,0.0007,0.1,1e-4,0.01,1e-3,1.3],"grad_params":[1.0,9.0],
            "init_batch_size":128,"max_batch_size":4096,"min_local_bsz":32,"max_local_bsz":1024,
            "nodes":[1],"replicas":[2],"goodput":[1.0],"atomic_bsz":[64],"accum_steps":[0]}]}"#;
        std::fs::write(folder.join("goodput.json"), case).unwrap();
        let summary = compare(&folder);
        std::fs::write(folder.join("goodput.json"), "[1").unwrap();
        let broken = compare(&folder);
        std::fs::remove_dir_all(&folder).unwrap();

        assert!(refused.contains("holds none"), "{refused}");
        let summary = summary.unwrap();
        assert!(summary.fits.is_none());
        assert_eq!(summary.goodput.map(|goodput| (goodput.count, goodput.worse_than_reference)), Some((1, 0)));
        assert!(format!("{:#}", broken.unwrap_err()).contains("goodput.json"));
    }
}
