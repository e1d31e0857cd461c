//! Compact descriptions of applications: written as TOML, fitted from recorded ones.

use std::collections::BTreeMap;

use pollux_model::{BatchLimits, LossCurve, ModelError, Observation, Parallelism, Shape, ThroughputModel, fit};
use serde::Deserialize;

use super::{ApplicationName, PhysicsError, Recorded};

/// Knots that describe the noise scale over a whole training run, at most.
const KNOTS_MAX: usize = 12;
/// More knots are not worth it once the gain at the largest batch is off by less than this everywhere (logarithm).
const GAIN_TOLERANCE: f64 = 0.02;
/// Where a gradient signal was too weak to be measured; far above every batch, so the gain is as good as linear.
const NOISE_SCALE_MAX: f64 = 1e9;
const NOISE_SCALE_MIN: f64 = 1e-3;
const EPOCHS_MAX: u32 = 1_000_000;

/// An application in a few numbers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Which application it describes.
    pub application: ApplicationName,
    /// Epochs until it is complete.
    pub epochs: u32,
    /// Steps at the baseline batch that an epoch takes.
    pub progress_per_epoch: f64,
    /// Batch sizes it can train with.
    pub limits: BatchLimits,
    /// Seconds per step.
    pub throughput: ThroughputModel,
    /// Noise scale in samples at shares of the training, from 0 to 1; its logarithm is linear in between.
    pub noise_scale: Vec<(f64, f64)>,
    /// How its loss falls.
    pub loss: LossCurve,
    /// What differs on types of GPU other than the T4, by name.
    #[serde(default)]
    pub types: BTreeMap<String, OnType>,
}

/// What differs on a type of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnType {
    /// The largest micro-batch that fits its memory.
    pub local_batch_max: u32,
    /// Seconds per step.
    pub throughput: ThroughputModel,
}

/// Describes a recorded application: fits the throughput model to all shapes whose batch is within the limits, and the
/// noise scale to the gains, the loss to the mean loss, at all validated batches.
pub fn from_recorded(recorded: &Recorded) -> Result<Profile, PhysicsError> {
    let name = recorded.name();
    let limits = *recorded.limits();
    let observations = observations(recorded);
    let fitted = fit(Parallelism::DataParallel, &observations, None);
    let fitted = fitted.map_err(|source| PhysicsError::Model { application: name, source })?;
    let rounded = fitted.model.params().to_array().map(significant);
    let params = pollux_model::StepParams::from_array(rounded);
    let throughput = Parallelism::DataParallel.model(params);
    let epochs = recorded.epochs();
    let loss = loss_curve(recorded).map_err(|source| PhysicsError::Model { application: name, source })?;
    Ok(Profile {
        application: name,
        epochs,
        progress_per_epoch: significant(recorded.progress_target(epochs - 1) / f64::from(epochs)),
        limits,
        throughput: throughput.map_err(|source| PhysicsError::Model { application: name, source })?,
        noise_scale: knots(recorded),
        loss,
        types: BTreeMap::new(),
    })
}

impl OnType {
    /// What differs where an application was measured on another type.
    pub fn from_recorded(recorded: &Recorded) -> Result<Self, PhysicsError> {
        let Profile { limits, throughput, .. } = from_recorded(recorded)?;
        Ok(Self { local_batch_max: limits.local_batch_max(), throughput })
    }

    fn to_toml(self, name: &str) -> String {
        let params = self.throughput.params();
        let parallelism = self.throughput.parallelism().to_string().replace('-', "_");
        format!(
            "\n[types.{name}]\nlocal_batch_max = {}\n[types.{name}.throughput]\nparallelism = \"{parallelism}\"\n\
             alpha_compute = {}\nbeta_compute = {}\nalpha_internode = {}\nbeta_internode = {}\n\
             alpha_intranode = {}\nbeta_intranode = {}\ngamma = {}\n",
            self.local_batch_max,
            decimal(params.alpha_compute),
            decimal(params.beta_compute),
            decimal(params.alpha_internode),
            decimal(params.beta_internode),
            decimal(params.alpha_intranode),
            decimal(params.beta_intranode),
            decimal(params.gamma),
        )
    }
}

impl Profile {
    /// Reads the text of a profile; `name` is what it should describe.
    pub fn from_toml(name: ApplicationName, text: &str) -> Result<Self, PhysicsError> {
        let broken = |reason: String| PhysicsError::Profile { application: name, reason };
        let profile: Self = toml::from_str(text).map_err(|error| broken(error.message().replace('\n', " ")))?;
        if profile.application != name {
            return Err(broken(format!("describes {}", profile.application)));
        }
        profile.check()?;
        Ok(profile)
    }

    /// The text that [`Profile::from_toml`] reads.
    pub fn to_toml(&self) -> String {
        let (limits, params) = (&self.limits, self.throughput.params());
        let knots: Vec<_> = self.noise_scale.iter().map(|(share, scale)| format!("  [{share}, {scale}],\n")).collect();
        let parallelism = self.throughput.parallelism().to_string().replace('-', "_");
        format!(
            "# Fitted from the published traces by pollux_sim::profile::from_recorded; a test compares the two.\n\
             application = \"{}\"\nepochs = {}\nprogress_per_epoch = {}\n\
             # Share of the training done, noise scale in samples.\nnoise_scale = [\n{}]\n\n\
             [limits]\nbatch_size_baseline = {}\nbatch_size_max = {}\nlocal_batch_min = {}\nlocal_batch_max = {}\n\n\
             # Seconds.\n[throughput]\nparallelism = \"{parallelism}\"\n\
             alpha_compute = {}\nbeta_compute = {}\nalpha_internode = {}\nbeta_internode = {}\n\
             alpha_intranode = {}\nbeta_intranode = {}\ngamma = {}\n\n\
             # 1/(slope·steps + offset) + floor.\n[loss]\nslope = {}\noffset = {}\nfloor = {}\n",
            self.application,
            self.epochs,
            decimal(self.progress_per_epoch),
            knots.concat(),
            limits.batch_size_baseline(),
            limits.batch_size_max(),
            limits.local_batch_min(),
            limits.local_batch_max(),
            decimal(params.alpha_compute),
            decimal(params.beta_compute),
            decimal(params.alpha_internode),
            decimal(params.beta_internode),
            decimal(params.alpha_intranode),
            decimal(params.beta_intranode),
            decimal(params.gamma),
            decimal(self.loss.slope()),
            decimal(self.loss.offset()),
            decimal(self.loss.floor()),
        ) + &self.types.iter().map(|(name, on_type)| on_type.to_toml(name)).collect::<String>()
    }

    /// What the application is on a type of GPU, if that is described.
    pub fn on(&self, gpu_type: &str) -> Option<Self> {
        let OnType { local_batch_max, throughput } = *self.types.get(gpu_type)?;
        let limits = self.limits.with_local_batch_max(local_batch_max);
        Some(Self { limits, throughput, types: BTreeMap::new(), ..self.clone() })
    }

    /// Refuses values that no job can have.
    pub fn check(&self) -> Result<(), PhysicsError> {
        let refuse = |name, value, accepted| {
            Err(PhysicsError::ProfileValue { application: self.application, name, value, accepted })
        };
        if !(1..=EPOCHS_MAX).contains(&self.epochs) {
            return refuse("epochs", f64::from(self.epochs), "1 to 1000000");
        }
        if !(1e-3..=1e12).contains(&self.progress_per_epoch) {
            return refuse("progress_per_epoch", self.progress_per_epoch, "0.001 to 1e12");
        }
        if self.noise_scale.is_empty() {
            return refuse("noise_scale", 0.0, "one pair of share and noise scale or more");
        }
        let mut before = 0.0;
        for &(share, scale) in &self.noise_scale {
            if !(before..=1.0).contains(&share) {
                return refuse("noise_scale", share, "shares from 0 to 1 in ascending order");
            }
            if !(NOISE_SCALE_MIN..=NOISE_SCALE_MAX).contains(&scale) {
                return refuse("noise_scale", scale, "noise scales of 0.001 to 1e9 samples");
            }
            before = share;
        }
        if let Some(on_type) = self.types.values().find(|of| of.local_batch_max < self.limits.local_batch_min()) {
            return refuse("local_batch_max of a type", f64::from(on_type.local_batch_max), "local_batch_min or more");
        }
        let mut models = self.types.values().map(|on_type| &on_type.throughput).chain([&self.throughput]);
        models
            .try_for_each(|model| model.params().check())
            .map_err(|source| PhysicsError::Model { application: self.application, source })
    }

    /// The noise scale when this share of the training is done.
    pub fn noise_scale_at(&self, share: f64) -> f64 {
        let logs: Vec<_> = self.noise_scale.iter().map(|&(share, scale)| (share, scale.ln())).collect();
        piecewise(&logs, share).exp()
    }
}

/// Every shape that a job within its limits can run.
fn observations(recorded: &Recorded) -> Vec<Observation> {
    let limits = recorded.limits();
    let mut observations = Vec::new();
    for &([nodes, replicas, local_batch], time) in recorded.measured_shapes() {
        let reachable = local_batch <= i64::from(limits.local_batch_max())
            && local_batch * replicas <= i64::from(limits.batch_size_max());
        if let (true, Ok(shape)) = (reachable, Shape::new(nodes as u32, replicas as u32)) {
            let compute_s = time.step_s - time.sync_s;
            observations.push(Observation { shape, local_batch: local_batch as u32, compute_s, step_s: time.step_s });
        }
    }
    observations
}

/// Fitted to the start, quarters and end of every epoch.
fn loss_curve(recorded: &Recorded) -> Result<LossCurve, ModelError> {
    let batch_sizes: Vec<u32> = recorded.batch_sizes().collect();
    let mut losses = Vec::new();
    let mut start = 0.0;
    for epoch in 0..recorded.epochs() {
        let end = recorded.progress_target(epoch);
        for quarter in 0..4 {
            let progress = start + (end - start) * f64::from(quarter) / 4.0;
            let at = |&batch_size: &u32| recorded.loss(epoch, progress, batch_size);
            losses.push((progress, batch_sizes.iter().map(at).sum::<f64>() / batch_sizes.len() as f64));
        }
        start = end;
    }
    let fitted = LossCurve::fit(&losses)?;
    LossCurve::new(significant(fitted.slope()), significant(fitted.offset()), significant(fitted.floor()))
}

/// Adds the epoch that is worst described until all are described well.
fn knots(recorded: &Recorded) -> Vec<(f64, f64)> {
    let limits = recorded.limits();
    let scale_max = f64::from(limits.batch_size_max()) / f64::from(limits.batch_size_baseline());
    let baseline = f64::from(limits.batch_size_baseline());
    let epochs = recorded.epochs();
    let share = |epoch: u32| significant((f64::from(epoch) + 0.5) / f64::from(epochs));
    let curve: Vec<_> = (0..epochs).map(|epoch| (share(epoch), noise_scale(recorded, epoch).ln())).collect();
    let log_gain = |log_scale: f64| gain(log_scale.exp() / baseline, scale_max).ln();
    let mut chosen = vec![0, curve.len() - 1];
    chosen.dedup();
    while chosen.len() < KNOTS_MAX {
        let line: Vec<_> = chosen.iter().map(|&idx| curve[idx]).collect();
        let error = |&(share, log): &(f64, f64)| (log_gain(piecewise(&line, share)) - log_gain(log)).abs();
        let errors = curve.iter().map(error).enumerate();
        let Some((worst, error)) = errors.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))) else { break };
        if error < GAIN_TOLERANCE || chosen.contains(&worst) {
            break;
        }
        chosen.push(worst);
        chosen.sort_unstable();
    }
    chosen.iter().map(|&idx| (curve[idx].0, significant(curve[idx].1.exp()))).collect()
}

/// The one noise scale whose gains over the validated batches of an epoch have the recorded geometric mean.
fn noise_scale(recorded: &Recorded, epoch: u32) -> f64 {
    let baseline = recorded.limits().batch_size_baseline();
    let scales: Vec<_> = recorded.batch_sizes().map(|batch| (batch, f64::from(batch) / f64::from(baseline))).collect();
    let wanted: f64 = scales.iter().map(|&(batch, scale)| recorded.noise(epoch, batch).gain(scale).ln()).sum();
    let (mut low, mut high) = (NOISE_SCALE_MIN.ln(), NOISE_SCALE_MAX.ln());
    // Each halving gains a bit; 60 leave nothing to gain.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        let ratio = middle.exp() / f64::from(baseline);
        let reached: f64 = scales.iter().map(|&(_, scale)| gain(ratio, scale).ln()).sum();
        if reached < wanted { low = middle } else { high = middle }
    }
    f64::midpoint(low, high).exp()
}

/// Progress of one step at `scale = M/M0`, with `ratio = φ/M0`.
fn gain(ratio: f64, scale: f64) -> f64 {
    scale * (ratio + 1.0) / (ratio + scale)
}

/// Linear between points in ascending order, constant beyond them.
fn piecewise(points: &[(f64, f64)], at: f64) -> f64 {
    let above = points.partition_point(|&(x, _)| x < at);
    let Some(&(high_x, high)) = points.get(above) else { return points[above - 1].1 };
    if above == 0 || high_x == at {
        return high;
    }
    let (low_x, low) = points[above - 1];
    low + (high - low) * (at - low_x) / (high_x - low_x)
}

/// Six significant digits: more would pretend to know more than was measured.
fn significant(value: f64) -> f64 {
    format!("{value:.5e}").parse().expect("a number that was just printed")
}

/// Without an exponent where that is short; TOML wants a point in a float.
fn decimal(value: f64) -> String {
    if (1e-4..1e9).contains(&value) { format!("{value:?}") } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Profile, String> {
        Profile::from_toml(ApplicationName::Cifar10, text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_again() {
        for name in ApplicationName::ALL {
            let profile = super::super::Parametric::shipped(name).profile().clone();
            assert_eq!(Profile::from_toml(name, &profile.to_toml()).unwrap(), profile);
            assert!(profile.to_toml().lines().count() < 120);
        }
    }

    #[test]
    fn broken_profiles_are_refused_with_one_line() {
        let good = super::super::Parametric::shipped(ApplicationName::Cifar10).profile().to_toml();
        let check = |from: &str, to: &str, expected: &str| {
            let broken = good.replace(from, to);
            assert_ne!(broken, good);
            let error = read(&broken).unwrap_err();
            assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
        };
        check("epochs = 100", "epochs = 0", "cifar10: epochs 0; expected 1 to 1000000");
        check("epochs = 100", "epoch = 100", "cifar10: unknown field `epoch`");
        check("\"cifar10\"", "\"ncf\"", "cifar10: describes ncf;");
        check("[0.005,", "[0.995,", "cifar10: noise_scale 0.");
        check("noise_scale = [", "noise_scale = 3 [", "cifar10: ");
        check("gamma = ", "gamma = 9", "cifar10: gamma 9");
        check("local_batch_max = 1024", "local_batch_max = 1", "cifar10: ");
    }

    #[test]
    fn the_noise_scale_is_geometric_between_knots() {
        let shipped = super::super::Parametric::shipped(ApplicationName::Ncf).profile().clone();
        let profile = Profile { noise_scale: vec![(0.25, 100.0), (0.75, 10_000.0)], ..shipped };
        let at = |share| profile.noise_scale_at(share).round();
        assert_eq!([at(0.0), at(0.25), at(0.5), at(1.0)], [100.0, 100.0, 1000.0, 10_000.0]);
    }
}
