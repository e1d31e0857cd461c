use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;
use std::{fmt, fs};

use pollux_model::{BatchLimits, GpuTypeName, NoiseStatistics};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Parametric, PhysicsError, Recorded, Reported};
use crate::table::shown;

/// The applications of the paper's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApplicationName {
    /// Question answering on `SQuAD`.
    Bert,
    /// `ResNet18` on CIFAR-10.
    Cifar10,
    /// Speech recognition on CMU-ARCTIC.
    Deepspeech2,
    /// `ResNet-50` on `ImageNet`.
    Imagenet,
    /// `NeuMF` on `MovieLens`.
    Ncf,
    /// Object detection on PASCAL-VOC.
    Yolov3,
}

/// A name that is none of [`ApplicationName::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("application {name}; expected {}", ApplicationName::accepted())]
pub struct UnknownApplication {
    /// The name read, quoted.
    pub name: String,
}

impl ApplicationName {
    /// All of them, in alphabetical order.
    pub const ALL: [Self; 6] = [Self::Bert, Self::Cifar10, Self::Deepspeech2, Self::Imagenet, Self::Ncf, Self::Yolov3];

    /// As it is written in workloads and folders.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Cifar10 => "cifar10",
            Self::Deepspeech2 => "deepspeech2",
            Self::Imagenet => "imagenet",
            Self::Ncf => "ncf",
            Self::Yolov3 => "yolov3",
        }
    }

    pub(crate) fn accepted() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for ApplicationName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

impl FromStr for ApplicationName {
    type Err = UnknownApplication;

    fn from_str(name: &str) -> Result<Self, UnknownApplication> {
        let known = Self::ALL.into_iter().find(|known| known.as_str() == name);
        known.ok_or_else(|| UnknownApplication { name: shown(name) })
    }
}

/// Seconds of one micro-batch that ends a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// All of it, synchronisation included.
    pub step_s: f64,
    /// The part after the last local gradient; an accumulation step does without.
    pub sync_s: f64,
}

impl StepTime {
    /// Seconds of a whole optimiser step with this many accumulation steps before its end.
    pub fn with_accumulation(&self, accumulation_steps: u32) -> f64 {
        self.step_s + f64::from(accumulation_steps) * (self.step_s - self.sync_s)
    }
}

/// One kind of job and what it really does. Epochs count from 0; progress counts steps at the baseline batch.
#[derive(Clone, Debug)]
pub enum Application {
    /// Measured, as published with the paper.
    Recorded(Recorded),
    /// A fitted description that ships with the project.
    Parametric(Parametric),
    /// What a live job has told of itself. It has one epoch, and none of the names.
    Reported(Reported),
}

impl Application {
    /// Which application this is, of those with a name.
    pub fn name(&self) -> Option<ApplicationName> {
        match self {
            Self::Recorded(recorded) => Some(recorded.name()),
            Self::Parametric(parametric) => Some(parametric.name()),
            Self::Reported(_) => None,
        }
    }

    /// Batch sizes it can train with.
    pub fn limits(&self) -> &BatchLimits {
        match self {
            Self::Recorded(recorded) => recorded.limits(),
            Self::Parametric(parametric) => parametric.limits(),
            Self::Reported(reported) => reported.limits(),
        }
    }

    /// Epochs until it is complete.
    pub fn epochs(&self) -> u32 {
        match self {
            Self::Recorded(recorded) => recorded.epochs(),
            Self::Parametric(parametric) => parametric.epochs(),
            Self::Reported(_) => 1,
        }
    }

    /// Seconds of a micro-batch on replicas placed like this: `placement` counts them node by node, in the order of
    /// the job's ranks; zeros are skipped. At least one replica is needed.
    pub fn step_time(&self, placement: &[u32], local_batch: u32) -> StepTime {
        assert!(placement.iter().any(|&replicas| replicas > 0), "a step needs a replica");
        match self {
            Self::Recorded(recorded) => recorded.step_time(placement, local_batch),
            Self::Parametric(parametric) => parametric.step_time(placement, local_batch),
            Self::Reported(reported) => reported.step_time(placement, local_batch),
        }
    }

    /// How many times slower it trains than its steps say.
    pub fn slowness(&self) -> f64 {
        match self {
            Self::Recorded(recorded) => recorded.slowness(),
            Self::Parametric(_) | Self::Reported(_) => 1.0,
        }
    }

    /// Seconds that a change of its GPUs takes, where it is a time of its own.
    pub fn restart_s(&self) -> Option<f64> {
        match self {
            Self::Recorded(recorded) => recorded.restart_s(),
            Self::Parametric(_) | Self::Reported(_) => None,
        }
    }

    /// Gradient statistics during an epoch at a total batch. Beyond the ends, the last epoch and the nearest batch.
    pub fn noise(&self, epoch: u32, batch_size: u32) -> NoiseStatistics {
        match self {
            Self::Recorded(recorded) => recorded.noise(epoch, batch_size),
            Self::Parametric(parametric) => parametric.noise(epoch),
            Self::Reported(reported) => reported.noise(),
        }
    }

    /// Progress of one step during an epoch at a total batch.
    pub fn gain(&self, epoch: u32, batch_size: u32) -> f64 {
        let scale = f64::from(batch_size) / f64::from(self.limits().batch_size_baseline());
        let noise = self.noise(epoch, batch_size);
        // Written as the published simulator writes it: progress is compared with a target to the last bit.
        (noise.var() + noise.sqr()) / (noise.var() / scale + noise.sqr())
    }

    /// Progress, counted from the start of training, at which an epoch ends.
    pub fn progress_target(&self, epoch: u32) -> f64 {
        match self {
            Self::Recorded(recorded) => recorded.progress_target(epoch),
            Self::Parametric(parametric) => parametric.progress_target(epoch),
            Self::Reported(reported) => reported.progress_target(),
        }
    }

    /// Steps from the start of training to the end of an epoch, had all of it run at one total batch.
    pub fn iterations(&self, epoch: u32, batch_size: u32) -> f64 {
        match self {
            Self::Recorded(recorded) => recorded.iterations(epoch, batch_size),
            Self::Parametric(_) | Self::Reported(_) => {
                let mut start = 0.0;
                let mut steps = 0.0;
                for epoch in 0..=epoch.min(self.epochs() - 1) {
                    let end = self.progress_target(epoch);
                    steps += (end - start) / self.gain(epoch, batch_size);
                    start = end;
                }
                steps
            }
        }
    }

    /// What the training is to lower, in an epoch at a progress, at a total batch: mostly the share of mistakes.
    pub fn loss(&self, epoch: u32, progress: f64, batch_size: u32) -> f64 {
        match self {
            Self::Recorded(recorded) => recorded.loss(epoch, progress, batch_size),
            Self::Parametric(parametric) => parametric.profile().loss.at(progress),
            Self::Reported(reported) => reported.loss(progress),
        }
    }

    /// Total batches to try when one is chosen by hand: the validated ones, or powers of two of the baseline.
    pub fn batch_sizes(&self) -> Vec<u32> {
        match self {
            Self::Recorded(recorded) => recorded.batch_sizes().collect(),
            Self::Parametric(_) | Self::Reported(_) => {
                let (baseline, largest) = (self.limits().batch_size_baseline(), self.limits().batch_size_max());
                let doubled = |&batch_size: &u32| batch_size.checked_mul(2).filter(|&next| next <= largest);
                std::iter::successors(Some(baseline), doubled).collect()
            }
        }
    }
}

/// All applications under one kind of physics.
#[derive(Clone, Debug)]
pub struct ApplicationSet {
    /// In the order of [`ApplicationName::ALL`].
    applications: Vec<OnTypes>,
    /// Whether a GPU may be of no type in particular.
    has_unnamed_type: bool,
}

/// One application on all types of GPU that are known.
#[derive(Clone, Debug)]
struct OnTypes {
    /// On GPUs of no type in particular.
    usual: Application,
    /// Ordered by name; empty where the type makes no difference.
    types: Vec<(GpuTypeName, Application)>,
}

impl ApplicationSet {
    /// Measured applications, each from its folder of `traces`: those with files per type of GPU are as the simulator of
    /// Sia has them, the others as that of Pollux.
    pub fn recorded(traces: &Path) -> Result<Self, PhysicsError> {
        let load = |name: ApplicationName| {
            let folder = traces.join(name.as_str());
            let types = measured_types(&folder)?;
            let on_type = |gpu_type: &String| {
                let application = Application::Recorded(Recorded::load_type(name, &folder, gpu_type)?);
                Ok((GpuTypeName::nearest(gpu_type), application))
            };
            let types = types.iter().map(on_type).collect::<Result<Vec<_>, PhysicsError>>()?;
            let usual = match types.first() {
                Some((_, first)) => first.clone(),
                None => Application::Recorded(Recorded::load(name, &folder)?),
            };
            Ok(OnTypes { usual, types })
        };
        let applications = ApplicationName::ALL.into_iter().map(load).collect::<Result<Vec<_>, PhysicsError>>()?;
        let has_unnamed_type = applications.iter().all(|on_types| on_types.types.is_empty());
        Ok(Self { applications, has_unnamed_type })
    }

    /// The applications that ship with the project.
    pub fn parametric() -> Self {
        let shipped = |name| OnTypes {
            usual: Application::Parametric(Parametric::shipped(name)),
            types: Parametric::shipped_on_types(name)
                .into_iter()
                .map(|(gpu_type, on_type)| (gpu_type, Application::Parametric(on_type)))
                .collect(),
        };
        Self { applications: ApplicationName::ALL.map(shipped).into(), has_unnamed_type: true }
    }

    /// The application of this name, on GPUs of no type in particular.
    pub fn get(&self, name: ApplicationName) -> &Application {
        &self.applications[name as usize].usual
    }

    /// What the application of this name is on each type of GPU, ordered by name; empty where the type makes no difference.
    pub fn on_types(&self, name: ApplicationName) -> &[(GpuTypeName, Application)] {
        &self.applications[name as usize].types
    }

    /// Whether jobs are known on GPUs that no type is said of.
    pub const fn has_unnamed_type(&self) -> bool {
        self.has_unnamed_type
    }

    /// Types of GPU that any application knows, ordered by name; none where the type makes no difference.
    pub fn gpu_types(&self) -> BTreeSet<&GpuTypeName> {
        self.applications.iter().flat_map(|on_types| &on_types.types).map(|(gpu_type, _)| gpu_type).collect()
    }

    /// All of them, on GPUs of no type in particular.
    pub fn iter(&self) -> impl Iterator<Item = &Application> {
        self.applications.iter().map(|on_types| &on_types.usual)
    }
}

/// The types of GPU that an application was measured on, ordered by name.
fn measured_types(folder: &Path) -> Result<Vec<String>, PhysicsError> {
    let unreadable = |source| PhysicsError::Folder { folder: folder.display().to_string(), source };
    let mut types = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return Ok(types) };
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let gpu_type =
            path.file_name().and_then(|file| file.to_str()?.strip_prefix("placements-")?.strip_suffix(".csv"));
        types.extend(gpu_type.filter(|name| GpuTypeName::new(name).is_ok()).map(str::to_owned));
    }
    types.sort_unstable();
    Ok(types)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (idx, name) in ApplicationName::ALL.into_iter().enumerate() {
            assert_eq!((name.to_string().parse(), name as usize), (Ok(name), idx));
        }
        let error = "resnet\n".parse::<ApplicationName>().unwrap_err();
        let accepted = "bert, cifar10, deepspeech2, imagenet, ncf, yolov3";
        assert_eq!(error.to_string(), format!(r#"application "resnet\n"; expected {accepted}"#));
    }
}
