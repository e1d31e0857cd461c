use pollux_model::{BatchLimits, GpuTypeName, NoiseStatistics, Shape, ThroughputModel};

use super::{ApplicationName, PhysicsError, Profile, StepTime};

/// What the profiles that ship describe, unless they name another type.
const USUAL_TYPE: &str = "t4";

/// An application that follows a [`Profile`]: the throughput model, and a noise scale that depends on progress alone.
#[derive(Clone, Debug)]
pub struct Parametric {
    profile: Profile,
    /// Per epoch.
    noise: Vec<NoiseStatistics>,
}

impl Parametric {
    /// Refuses a profile that no job can follow.
    pub fn new(profile: Profile) -> Result<Self, PhysicsError> {
        profile.check()?;
        let application = profile.application;
        let epochs = f64::from(profile.epochs);
        let statistics = |epoch: u32| {
            let noise_scale = profile.noise_scale_at((f64::from(epoch) + 0.5) / epochs);
            NoiseStatistics::from_noise_scale(noise_scale, profile.limits.batch_size_baseline())
        };
        let noise = (0..profile.epochs).map(statistics).collect::<Result<_, _>>();
        let noise = noise.map_err(|source| PhysicsError::Model { application, source })?;
        Ok(Self { profile, noise })
    }

    /// The application as it ships with the project.
    pub fn shipped(name: ApplicationName) -> Self {
        let text = match name {
            ApplicationName::Bert => include_str!("../../profiles/bert.toml"),
            ApplicationName::Cifar10 => include_str!("../../profiles/cifar10.toml"),
            ApplicationName::Deepspeech2 => include_str!("../../profiles/deepspeech2.toml"),
            ApplicationName::Imagenet => include_str!("../../profiles/imagenet.toml"),
            ApplicationName::Ncf => include_str!("../../profiles/ncf.toml"),
            ApplicationName::Yolov3 => include_str!("../../profiles/yolov3.toml"),
        };
        let profile = Profile::from_toml(name, text).and_then(Self::new);
        profile.expect("a test reads every profile that ships")
    }

    /// The application as it ships with the project, on each type of GPU that it is described for, ordered by name. GPUs of
    /// no type in particular are T4s.
    pub fn shipped_on_types(name: ApplicationName) -> Vec<(GpuTypeName, Self)> {
        let usual = Self::shipped(name);
        let named = |gpu_type: &str| GpuTypeName::nearest(gpu_type);
        let on = |gpu_type: &String| {
            let profile = usual.profile.on(gpu_type)?;
            Some((named(gpu_type), Self::new(profile).expect("a test reads every profile that ships")))
        };
        let mut types: Vec<_> = usual.profile.types.keys().filter_map(on).collect();
        types.push((GpuTypeName::default(), usual.clone()));
        types.push((named(USUAL_TYPE), usual));
        types.sort_by(|a, b| a.0.cmp(&b.0));
        types
    }

    /// What it follows.
    pub const fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(super) const fn name(&self) -> ApplicationName {
        self.profile.application
    }

    pub(super) const fn limits(&self) -> &BatchLimits {
        &self.profile.limits
    }

    pub(super) const fn epochs(&self) -> u32 {
        self.profile.epochs
    }

    pub(super) fn step_time(&self, placement: &[u32], local_batch: u32) -> StepTime {
        model_step_time(&self.profile.throughput, placement, local_batch)
    }

    pub(super) fn noise(&self, epoch: u32) -> NoiseStatistics {
        self.noise[(epoch as usize).min(self.noise.len() - 1)]
    }

    pub(super) fn progress_target(&self, epoch: u32) -> f64 {
        f64::from(epoch.min(self.profile.epochs - 1) + 1) * self.profile.progress_per_epoch
    }
}

/// Seconds of a micro-batch that ends a step, by a throughput model.
pub(super) fn model_step_time(throughput: &ThroughputModel, placement: &[u32], local_batch: u32) -> StepTime {
    let nodes = placement.iter().filter(|&&replicas| replicas > 0).count();
    let shape = Shape::new(nodes as u32, placement.iter().sum()).expect("a replica on every node that is counted");
    let local_batch = f64::from(local_batch);
    let step_s = throughput.final_step_s(shape, local_batch);
    StepTime { step_s, sync_s: step_s - throughput.micro_step_s(shape, local_batch) }
}
