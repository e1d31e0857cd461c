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

/// How far an objective at the recorded parameters may lie from the recorded one.
const RECORDED_TOLERANCE: f64 = 1e-3;
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
    /// Recorded objectives that are not ours at the recorded parameters, by more than 0.1%: then ratios say little.
    pub(crate) objective_differs: usize,
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
        "{}: no such folder; expected one with fits.json, goodput.json or instances.json",
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
        let length = self.num_nodes.len();
        ensure_length("num_replicas", self.num_replicas.len(), "num_nodes", length)?;
        ensure_length("atomic_bsz", self.atomic_bsz.len(), "num_nodes", length)?;
        ensure_length("accum_step_time", self.accum_step_time.len(), "num_nodes", length)?;
        ensure_length("optim_step_time", self.optim_step_time.len(), "num_nodes", length)?;
        (0..length)
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

impl GoodputCase {
    fn job(&self) -> Result<Goodput> {
        Ok(Goodput {
            throughput: Parallelism::DataParallel.model(StepParams::from_array(self.perf_params))?,
            noise: NoiseStatistics::new(self.grad_params[0], self.grad_params[1])?,
            limits: BatchLimits::new(
                self.init_batch_size,
                self.max_batch_size,
                self.min_local_bsz,
                self.max_local_bsz,
            )?,
        })
    }

    /// Each shape with the goodput that the reference reached on it.
    fn rows(&self) -> Result<Vec<(Shape, f64)>> {
        ensure_length("replicas", self.replicas.len(), "nodes", self.nodes.len())?;
        ensure_length("goodput", self.goodput.len(), "nodes", self.nodes.len())?;
        let shapes = self.nodes.iter().zip(&self.replicas);
        shapes
            .zip(&self.goodput)
            .map(|((&nodes, &replicas), &goodput)| Ok((Shape::new(nodes, replicas)?, goodput)))
            .collect()
    }
}

fn ensure_length(name: &str, length: usize, other: &str, expected: usize) -> Result<()> {
    ensure!(length == expected, "{name} has length {length}, {other} has {expected}: expected equal lengths");
    Ok(())
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
    let outcomes = cases
        .iter()
        .enumerate()
        .map(|(idx, case)| compare_fit(case).with_context(|| format!("fits.json: fit {idx}")))
        .collect::<Result<Vec<_>>>()?;
    let objectives: Vec<f64> = outcomes.iter().map(|outcome| outcome.objective).collect();
    let mut ratios: Vec<f64> = cases.iter().zip(&objectives).map(|(case, ours)| ours / case.objective).collect();
    let mut cold: Vec<f64> = outcomes.iter().map(|outcome| outcome.cold_us).collect();
    let (warm_ratios, mut warm): (Vec<f64>, Vec<f64>) = outcomes.iter().filter_map(|outcome| outcome.warm).unzip();
    let by_observations = SIZES.iter().filter_map(|sizes| fit_quality(cases, &objectives, sizes)).collect();
    Ok(FitSummary {
        count: cases.len(),
        objective_differs: outcomes.iter().filter(|outcome| outcome.objective_differs).count(),
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

/// What one recorded fit says of ours.
struct FitOutcome {
    objective: f64,
    objective_differs: bool,
    cold_us: f64,
    /// Ratio to the reference and microseconds of a fit that starts from the model without the last observation.
    warm: Option<(f64, f64)>,
}

fn compare_fit(case: &FitCase) -> Result<FitOutcome> {
    let observations = case.observations()?;
    let recomputed = objective(&observations, &StepParams::from_array(case.params))?;
    let cold = || fit(Parallelism::DataParallel, black_box(&observations), None);
    let earlier = observations.split_last().and_then(|(_, earlier)| fit(Parallelism::DataParallel, earlier, None).ok());
    let warm = earlier
        .map(|earlier| -> Result<_> {
            let again = || fit(Parallelism::DataParallel, black_box(&observations), Some(&earlier.model));
            Ok((again()?.objective / case.objective, microseconds(again)))
        })
        .transpose()?;
    Ok(FitOutcome {
        objective: cold()?.objective,
        objective_differs: (recomputed / case.objective - 1.0).abs() > RECORDED_TOLERANCE,
        cold_us: microseconds(cold),
        warm,
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
    for (idx, case) in cases.iter().enumerate() {
        let context = || format!("goodput.json: case {idx}");
        let goodput = case.job().with_context(context)?;
        for (shape, reference) in case.rows().with_context(context)? {
            ratios.push(goodput.best(shape).with_context(context)?.goodput / reference);
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
    use std::io::{self, Write};

    use super::*;

    #[test]
    fn recorded_results_are_reached_or_beaten() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reference");
        if !folder.is_dir() {
            // Straight to stderr, because the test harness hides what a passing test prints.
            writeln!(io::stderr(), "skipped: recorded results: {} is not here", folder.display()).unwrap();
            return;
        }
        let summary = compare(&folder).unwrap();
        assert_eq!(summary.fits.map(|fits| (fits.objective_differs, fits.worse_than_reference)), Some((0, 0)));
        assert_eq!(summary.goodput.map(|goodput| goodput.worse_than_reference), Some(0));
    }

    fn fits(change: fn(&mut FitCase)) -> Result<FitSummary> {
        let mut broken = FitCase {
            num_nodes: vec![1, 1],
            num_replicas: vec![1, 1],
            atomic_bsz: vec![8, 16],
            accum_step_time: vec![0.1, 0.15],
            optim_step_time: vec![0.1, 0.15],
            params: [0.05, 0.00625, 1e-8, 1e-8, 1e-8, 1e-8, 1.0],
            objective: 0.02,
            seconds: 0.1,
        };
        change(&mut broken);
        compare_fits(&[broken])
    }

    #[test]
    fn a_recorded_objective_that_is_not_ours_is_counted() {
        assert_eq!(fits(|_| {}).unwrap().objective_differs, 0);
        assert_eq!(fits(|case| case.objective *= 1.01).unwrap().objective_differs, 1);
    }

    #[test]
    fn ragged_records_are_named() {
        let message = |change| format!("{:#}", fits(change).unwrap_err());
        let expected = "fits.json: fit 0: atomic_bsz has length 1, num_nodes has 2: expected equal lengths";
        assert_eq!(message(|case| case.atomic_bsz.truncate(1)), expected);
        assert!(message(|case| case.num_replicas.push(1)).contains("num_replicas has length 3"));
        assert!(message(|case| case.accum_step_time.clear()).contains("accum_step_time has length 0"));
        assert!(message(|case| case.optim_step_time.clear()).contains("optim_step_time has length 0"));

        let case = GoodputCase {
            perf_params: [0.02, 0.0007, 0.1, 1e-4, 0.01, 1e-3, 1.3],
            grad_params: [1.0, 9.0],
            init_batch_size: 128,
            max_batch_size: 4096,
            min_local_bsz: 32,
            max_local_bsz: 1024,
            nodes: vec![1, 1],
            replicas: vec![2, 4],
            goodput: vec![1.0],
        };
        let error = compare_goodput(&[case]).unwrap_err();
        let expected = "goodput.json: case 0: goodput has length 1, nodes has 2: expected equal lengths";
        assert_eq!(format!("{error:#}"), expected);
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
