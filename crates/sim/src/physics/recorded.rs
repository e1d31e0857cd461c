use std::fs;
use std::path::Path;

use pollux_model::{BatchLimits, NoiseStatistics};

use super::delaunay::Point;
use super::step_times::StepTimes;
use super::{ApplicationName, PhysicsError, StepTime};
use crate::table::{Table, is_measure};

const VALIDATION_COLUMNS: &[&str] = &["progress", "iteration", "grad_sqr", "grad_var", "metric"];
/// Below what the model accepts, so that no rounding between two epochs goes above.
const STATISTIC_MAX: f64 = 1e90;

/// An application as it was measured for the paper of Pollux ("osdi21 physics"), or on one type of GPU for that of Sia
/// ("sia physics").
#[derive(Clone, Debug)]
pub struct Recorded {
    name: ApplicationName,
    pace: Pace,
    limits: BatchLimits,
    step_times: StepTimes,
    /// By batch size, ascending.
    validations: Vec<Validation>,
    /// Progress at the end of each epoch: the smallest over the batch sizes.
    targets: Vec<f64>,
}

/// A training run at one total batch.
#[derive(Clone, Debug)]
struct Validation {
    batch_size: u32,
    epochs: Vec<Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    progress: f64,
    iterations: f64,
    noise: NoiseStatistics,
    /// At its end.
    loss: f64,
}

/// What the published simulators make of measurements.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// They are what happens.
    AsMeasured,
    /// Training is slower than its steps by a factor, and a change of GPUs takes its own time.
    Slower { factor: f64, restart_s: f64 },
}

impl Recorded {
    /// Reads the folder of one application: `placements.csv`, `scalability.csv` and a `validation-<batch>.csv` per
    /// validated batch.
    pub fn load(name: ApplicationName, folder: &Path) -> Result<Self, PhysicsError> {
        let step_times = StepTimes::load(name, folder)?;
        Self::new(name, folder, Pace::AsMeasured, step_times, local_batch_cap(name))
    }

    /// Reads what was measured on one type of GPU: `placements-<type>.csv`, `scalability-<type>.csv`, and the validations
    /// that all types share.
    pub fn load_type(name: ApplicationName, folder: &Path, gpu_type: &str) -> Result<Self, PhysicsError> {
        let pace = Pace::Slower { factor: slowness(name), restart_s: restart_s(name) };
        let cap = local_batch_cap_on(name, gpu_type);
        Self::new(name, folder, pace, StepTimes::load_type(folder, gpu_type)?, cap)
    }

    fn new(
        name: ApplicationName,
        folder: &Path,
        pace: Pace,
        step_times: StepTimes,
        cap: u32,
    ) -> Result<Self, PhysicsError> {
        let validations = load_validations(name, folder)?;
        let (local_batch_min, local_batch_max) = step_times.local_batch_range();
        let (smallest, largest) = (&validations[0], &validations[validations.len() - 1]);
        let local_batch_max = local_batch_max.min(cap);
        let limits = BatchLimits::new(smallest.batch_size, largest.batch_size, local_batch_min, local_batch_max)
            .map_err(|source| PhysicsError::Model { application: name, source })?;
        let target =
            |epoch: usize| validations.iter().map(|run| run.epochs[epoch].progress).fold(f64::INFINITY, f64::min);
        let targets = (0..epochs(name)).map(target).collect();
        Ok(Self { name, pace, limits, step_times, validations, targets })
    }

    pub(super) const fn name(&self) -> ApplicationName {
        self.name
    }

    /// How many times slower it trains than its steps say.
    pub(super) const fn slowness(&self) -> f64 {
        match self.pace {
            Pace::AsMeasured => 1.0,
            Pace::Slower { factor, .. } => factor,
        }
    }

    /// Seconds that a change of its GPUs takes, where it is a time of its own.
    pub(super) const fn restart_s(&self) -> Option<f64> {
        match self.pace {
            Pace::AsMeasured => None,
            Pace::Slower { restart_s, .. } => Some(restart_s),
        }
    }

    pub(super) const fn limits(&self) -> &BatchLimits {
        &self.limits
    }

    pub(super) fn epochs(&self) -> u32 {
        self.targets.len() as u32
    }

    pub(super) fn batch_sizes(&self) -> impl Iterator<Item = u32> {
        self.validations.iter().map(|run| run.batch_size)
    }

    pub(super) fn step_time(&self, placement: &[u32], local_batch: u32) -> StepTime {
        self.step_times.at(placement, local_batch)
    }

    pub(super) fn measured_shapes(&self) -> &[(Point, StepTime)] {
        self.step_times.means()
    }

    pub(super) fn noise(&self, epoch: u32, batch_size: u32) -> NoiseStatistics {
        let sqr = self.between(epoch, batch_size, |epoch| epoch.noise.sqr());
        let var = self.between(epoch, batch_size, |epoch| epoch.noise.var());
        NoiseStatistics::new(sqr, var).expect("between two valid statistics lie valid ones")
    }

    pub(super) fn iterations(&self, epoch: u32, batch_size: u32) -> f64 {
        self.between(epoch, batch_size, |epoch| epoch.iterations)
    }

    /// Linear in progress between the ends of epochs.
    pub(super) fn loss(&self, epoch: u32, progress: f64, batch_size: u32) -> f64 {
        let at_end = |epoch| self.between(epoch, batch_size, |epoch| epoch.loss);
        let (start, before) = match epoch.checked_sub(1) {
            Some(last) => (self.progress_target(last), at_end(last)),
            None => (0.0, untrained_loss(self.name, at_end(0))),
        };
        let span = self.progress_target(epoch) - start;
        let share = if span > 0.0 { ((progress - start) / span).clamp(0.0, 1.0) } else { 1.0 };
        before + (at_end(epoch) - before) * share
    }

    pub(super) fn progress_target(&self, epoch: u32) -> f64 {
        self.targets[self.row(epoch)]
    }

    fn row(&self, epoch: u32) -> usize {
        (epoch as usize).min(self.targets.len() - 1)
    }

    /// A value of an epoch, linear in the batch size between validated ones.
    fn between(&self, epoch: u32, batch_size: u32, value: impl Fn(&Epoch) -> f64) -> f64 {
        let row = self.row(epoch);
        let above = self.validations.partition_point(|run| run.batch_size < batch_size);
        let Some(upper) = self.validations.get(above) else {
            return value(&self.validations[above - 1].epochs[row]);
        };
        if above == 0 || upper.batch_size == batch_size {
            return value(&upper.epochs[row]);
        }
        let lower = &self.validations[above - 1];
        let from_lower = f64::from(batch_size - lower.batch_size);
        let to_upper = f64::from(upper.batch_size - batch_size);
        (from_lower * value(&upper.epochs[row]) + to_upper * value(&lower.epochs[row]))
            / f64::from(upper.batch_size - lower.batch_size)
    }
}

/// How long each application was trained for the paper.
const fn epochs(name: ApplicationName) -> usize {
    match name {
        ApplicationName::Bert => 2,
        ApplicationName::Cifar10 => 100,
        ApplicationName::Deepspeech2 => 80,
        ApplicationName::Imagenet => 90,
        ApplicationName::Ncf => 10,
        ApplicationName::Yolov3 => 50,
    }
}

/// Larger local batches of yolov3 were measured, but only on few nodes.
const fn local_batch_cap(name: ApplicationName) -> u32 {
    match name {
        ApplicationName::Yolov3 => 8,
        ApplicationName::Bert
        | ApplicationName::Cifar10
        | ApplicationName::Deepspeech2
        | ApplicationName::Imagenet
        | ApplicationName::Ncf => u32::MAX,
    }
}

/// As the simulator of Sia caps it, below what was measured.
fn local_batch_cap_on(name: ApplicationName, gpu_type: &str) -> u32 {
    if name == ApplicationName::Deepspeech2 && gpu_type == "rtx" { 57 } else { u32::MAX }
}

/// As in the simulator of Sia, whose authors measured that jobs took so much longer than their steps.
const fn slowness(name: ApplicationName) -> f64 {
    match name {
        ApplicationName::Cifar10 => 1.8,
        ApplicationName::Ncf => 1.5,
        ApplicationName::Bert | ApplicationName::Deepspeech2 | ApplicationName::Imagenet | ApplicationName::Yolov3 => {
            1.2
        }
    }
}

/// As in the simulator of Sia.
const fn restart_s(name: ApplicationName) -> f64 {
    match name {
        ApplicationName::Bert => 120.0,
        ApplicationName::Cifar10 => 50.0,
        ApplicationName::Deepspeech2 => 25.0,
        ApplicationName::Imagenet => 250.0,
        ApplicationName::Ncf => 15.0,
        ApplicationName::Yolov3 => 80.0,
    }
}

/// What is to fall in training: the share of mistakes, or a loss where that is what was recorded.
fn loss(name: ApplicationName, metric: f64) -> f64 {
    match name {
        ApplicationName::Cifar10 | ApplicationName::Imagenet | ApplicationName::Ncf => 1.0 - metric,
        ApplicationName::Bert => 1.0 - metric / 100.0,
        ApplicationName::Deepspeech2 => metric / 100.0,
        ApplicationName::Yolov3 => metric,
    }
}

/// Nobody recorded what a job knows before its first epoch: nothing, so that all it says is wrong. A loss that is no
/// share is taken to fall by half in that epoch.
fn untrained_loss(name: ApplicationName, after_first_epoch: f64) -> f64 {
    match name {
        ApplicationName::Yolov3 => 2.0 * after_first_epoch,
        ApplicationName::Bert
        | ApplicationName::Cifar10
        | ApplicationName::Deepspeech2
        | ApplicationName::Imagenet
        | ApplicationName::Ncf => 1.0,
    }
}

fn load_validations(name: ApplicationName, folder: &Path) -> Result<Vec<Validation>, PhysicsError> {
    let unreadable = |source| PhysicsError::Folder { folder: folder.display().to_string(), source };
    let mut validations = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let batch = path.file_name().and_then(|file| file.to_str()?.strip_prefix("validation-")?.strip_suffix(".csv"));
        if let Some(batch_size) = batch.and_then(|batch| batch.parse().ok()) {
            let table = Table::read(&path, VALIDATION_COLUMNS)?;
            validations.push(Validation { batch_size, epochs: epochs_of(name, &table)? });
        }
    }
    if validations.is_empty() {
        return Err(PhysicsError::NoValidation { folder: folder.display().to_string() });
    }
    validations.sort_by_key(|run| run.batch_size);
    Ok(validations)
}

fn epochs_of(application: ApplicationName, table: &Table) -> Result<Vec<Epoch>, PhysicsError> {
    let mut rows: Vec<Epoch> = Vec::new();
    for row in table.rows() {
        let before = rows.last().copied();
        let rises = |value: &f64, before: Option<f64>| is_measure(value) && *value > before.unwrap_or(0.0);
        let progress =
            row.get(0, "more than the epoch before", |value| rises(value, before.map(|row| row.progress)))?;
        let iterations =
            row.get(1, "more than the epoch before", |value| rises(value, before.map(|row| row.iterations)))?;
        let is_statistic = |value: &f64| is_measure(value) && *value < STATISTIC_MAX;
        let sqr = row.get(2, "0 to 1e90", is_statistic)?;
        let var = row.get(3, "0 to 1e90", is_statistic)?;
        let noise = NoiseStatistics::new(sqr, var).map_err(|_| row.refuse(3, "above 0 where grad_sqr is 0"))?;
        let is_loss = |metric: &f64| (1e-6..1e6).contains(&loss(application, *metric));
        let loss = loss(application, row.get(4, "one that leaves something to learn", is_loss)?);
        rows.push(Epoch { progress, iterations, noise, loss });
    }
    if rows.len() < epochs(application) {
        let file = table.file().to_owned();
        return Err(PhysicsError::FewEpochs { file, rows: rows.len(), epochs: epochs(application), application });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epochs_read(rows: &str) -> Result<usize, String> {
        let text = format!("progress,iteration,metric,grad_sqr,grad_var\n{rows}");
        let table = Table::parse("v.csv", text.as_bytes(), VALIDATION_COLUMNS).map_err(|error| error.to_string())?;
        epochs_of(ApplicationName::Bert, &table).map(|epochs| epochs.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn broken_training_runs_are_refused() {
        let check = |rows: &str, expected: &str| assert_eq!(epochs_read(rows).unwrap_err(), expected);
        assert_eq!(epochs_read("1.5,1,0,1,1\n3,2,0,0,1\n"), Ok(2));
        check("1.5,1,0,1,1\n", "v.csv: 1 epochs; expected 2 or more for bert");
        check("2,1,0,1,1\n1,2,0,1,1\n", "v.csv:3: progress \"1\"; expected more than the epoch before");
        check("NaN,1,0,1,1\n", "v.csv:2: progress \"NaN\"; expected more than the epoch before");
        check("1,1,0,-1,1\n", "v.csv:2: grad_sqr \"-1\"; expected 0 to 1e90");
        check("1,1,100,1,1\n", "v.csv:2: metric \"100\"; expected one that leaves something to learn");
        check("1,1,0,0,0\n", "v.csv:2: grad_var \"0\"; expected above 0 where grad_sqr is 0");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = Recorded::load(ApplicationName::Bert, Path::new("no-such-folder")).unwrap_err().to_string();
        assert!(error.starts_with("no-such-folder/placements.csv: ") && error.lines().count() == 1, "{error}");
    }

    proptest! {
        #[test]
        fn no_row_makes_the_reader_panic(rows in "([0-9e,.\\-\n]|1,1,0,1,1\n|inf|NaN){0,60}") {
            let _outcome = epochs_read(&rows);
        }
    }
}
