//! What jobs learned on types of GPU, for jobs that never ran there.

use std::collections::BTreeMap;

use pollux_model::{Goodput, GpuType, NoiseStatistics, Shape, StepParams, ThroughputModel};
use pollux_policy::{EndedJob, Timestamp, TypeProfile};

/// More applications than a cluster trains at a time.
const APPLICATIONS_MAX: usize = 1_024;
/// Ended jobs of an application that are remembered: enough to tell whether they are alike.
const ENDED_MAX: usize = 32;
/// A ratio of two types that moved by less than this is no news: whoever reads it need not think again.
const NEWS: f64 = 0.05;
/// A job whose steps differ from its application's by more than this factor is of another kind, whatever it is called.
const ALIKE: f64 = 1.5;

/// What is known of types of GPU besides what each job measured itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct TypeKnowledge {
    /// Compute time on the second type against that on the first, the median over jobs that ran on both; from the lower to
    /// the higher number.
    ratios: BTreeMap<(GpuType, GpuType), f64>,
    applications: BTreeMap<String, Known>,
    /// Whether jobs are lent what others of their application measured.
    lends: bool,
    /// Counts changes.
    version: u64,
}

/// What is known of an application.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// What the job that knows most learned on each type; ordered by type.
    pub(crate) profiles: Vec<TypeProfile>,
    /// Jobs that succeeded, the last ones in that order.
    pub(crate) ended: Vec<EndedJob>,
    /// Samples of an epoch, as a job last told it.
    pub(crate) epoch_samples: Option<u64>,
    /// When a job of it was last there.
    pub(crate) seen: Timestamp,
}

impl TypeKnowledge {
    /// Nothing yet. Jobs are lent what others measured if the policy plans by it.
    pub(crate) fn new(lends: bool) -> Self {
        Self { lends, ..Self::default() }
    }

    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Compute time on the second type against that on the first.
    pub(crate) fn ratios(&self) -> impl Iterator<Item = (GpuType, GpuType, f64)> {
        self.ratios.iter().map(|(&(from, to), &ratio)| (from, to, ratio))
    }

    /// Takes up what was known before; what makes no sense is left out and measured again.
    pub(crate) fn resume(&mut self, ratios: impl Iterator<Item = (GpuType, GpuType, f64)>) {
        let usable = ratios.filter(|&(from, to, ratio)| from < to && ratio.is_finite() && ratio > 0.0);
        self.ratios = usable.map(|(from, to, ratio)| ((from, to), ratio)).collect();
    }

    /// What was measured by jobs of an application, one profile per type.
    pub(crate) fn application(&self, name: Option<&str>) -> &[TypeProfile] {
        name.and_then(|name| self.applications.get(name)).map_or(&[], |known| &known.profiles)
    }

    /// Jobs of an application that succeeded, the last ones, where the policy plans by them.
    pub(crate) fn ended(&self, name: Option<&str>) -> &[EndedJob] {
        let known = name.and_then(|name| self.applications.get(name)).filter(|_| self.lends);
        known.map_or(&[], |known| &known.ended)
    }

    /// Samples of an epoch of an application, as a job last told it, where the policy plans by others' words.
    pub(crate) fn epoch_samples(&self, name: Option<&str>) -> Option<u64> {
        let known = name.and_then(|name| self.applications.get(name)).filter(|_| self.lends);
        known?.epoch_samples
    }

    /// All that is known of applications.
    pub(crate) fn applications(&self) -> impl Iterator<Item = (&String, &Known)> {
        self.applications.iter()
    }

    /// Takes up what was known of an application before; what makes no sense is left out.
    pub(crate) fn resume_application(&mut self, name: String, mut known: Known) {
        known.ended.retain(is_usable);
        known.ended.truncate(ENDED_MAX);
        if self.applications.len() < APPLICATIONS_MAX {
            self.applications.insert(name, known);
        }
    }

    /// A job of an application succeeded.
    pub(crate) fn end(&mut self, now: Timestamp, application: &str, job: EndedJob) {
        if !is_usable(&job) {
            return;
        }
        let known = self.known(now, application);
        if known.ended.len() >= ENDED_MAX {
            known.ended.remove(0);
        }
        known.ended.push(job);
        self.version += 1;
    }

    /// Takes in what a job of an application measured. Who measured on more replicas knows more; how noisy gradients are
    /// is kept as it was first told, because it grows while a job trains.
    pub(crate) fn learn(
        &mut self,
        now: Timestamp,
        application: &str,
        measured: &[TypeProfile],
        epoch_samples: Option<u64>,
    ) {
        let measured = measured.iter().filter(|profile| !profile.is_estimated);
        if measured.clone().next().is_none() {
            return;
        }
        let mut changes = 0;
        let known = self.known(now, application);
        if epoch_samples.is_some() && known.epoch_samples != epoch_samples {
            known.epoch_samples = epoch_samples;
            changes += 1;
        }
        let profiles = &mut known.profiles;
        for profile in measured {
            match profiles.binary_search_by_key(&profile.gpu_type, |known| known.gpu_type) {
                Err(idx) => profiles.insert(idx, *profile),
                Ok(idx) => {
                    let before = &profiles[idx];
                    let is_first_noise = before.goodput.noise == NoiseStatistics::NOISELESS;
                    let noise = if is_first_noise { profile.goodput.noise } else { before.goodput.noise };
                    let knows_more = before.replicas_profiled < profile.replicas_profiled;
                    let best = if knows_more { *profile } else { *before };
                    let next = TypeProfile { goodput: Goodput { noise, ..best.goodput }, ..best };
                    if next == *before {
                        continue;
                    }
                    profiles[idx] = next;
                }
            }
            changes += 1;
        }
        self.version += changes;
    }

    /// What is known of an application, which is there now.
    fn known(&mut self, now: Timestamp, application: &str) -> &mut Known {
        if !self.applications.contains_key(application) {
            self.make_room();
        }
        let known = self.applications.entry(application.to_owned()).or_default();
        known.seen = now;
        known
    }

    /// Forgets the application that nobody has trained for the longest time, if there are too many.
    fn make_room(&mut self) {
        let oldest = self.applications.iter().min_by_key(|(_, known)| known.seen).map(|(name, _)| name.clone());
        if let Some(name) = oldest.filter(|_| self.applications.len() >= APPLICATIONS_MAX) {
            self.applications.remove(&name);
        }
    }

    /// Lends a job what others of its application measured: their models and the noise that they began with as long as it
    /// was never measured itself; later the models of those that were measured on more replicas, unless steps differ where
    /// it was measured.
    pub(crate) fn lend(&self, application: Option<&str>, profiles: &mut Vec<TypeProfile>, allowed: Option<&[GpuType]>) {
        let known = if self.lends { self.application(application) } else { &[] };
        if profiles.is_empty() {
            let is_allowed = |profile: &&TypeProfile| allowed.is_none_or(|allowed| allowed.contains(&profile.gpu_type));
            profiles.extend(known.iter().filter(is_allowed).map(|known| TypeProfile { is_estimated: true, ..*known }));
            return;
        }
        for own in profiles.iter_mut() {
            let other = known.iter().find(|known| known.gpu_type == own.gpu_type);
            let Some(other) = other.filter(|other| other.replicas_profiled > own.replicas_profiled) else { continue };
            if is_alike(own, other) {
                own.goodput.throughput = other.goodput.throughput;
                own.replicas_profiled = other.replicas_profiled;
            }
        }
    }

    /// Compares types by what jobs measured that ran on several of them.
    pub(crate) fn compare<'a>(&mut self, jobs: impl Iterator<Item = &'a [TypeProfile]>) {
        let mut seen: BTreeMap<(GpuType, GpuType), Vec<f64>> = BTreeMap::new();
        for profiles in jobs {
            for (idx, from) in profiles.iter().enumerate().filter(|(_, profile)| !profile.is_estimated) {
                for to in profiles[idx + 1..].iter().filter(|profile| !profile.is_estimated) {
                    let ratio = compute_ratio(&from.goodput, &to.goodput);
                    seen.entry((from.gpu_type, to.gpu_type)).or_default().push(ratio);
                }
            }
        }
        for (pair, mut ratios) in seen {
            ratios.sort_by(f64::total_cmp);
            let ratio = ratios[(ratios.len() - 1) / 2];
            let known = self.ratios.get(&pair).copied();
            if known.is_none_or(|known| (ratio / known).ln().abs() > NEWS) {
                self.ratios.insert(pair, ratio);
                self.version += 1;
            }
        }
    }

    /// Adds what a job is expected to do on types that it never ran on, and mends what it measured on one replica alone.
    /// Before it measured anything nothing is known.
    pub(crate) fn complete(
        &self,
        application: Option<&str>,
        profiles: &mut Vec<TypeProfile>,
        types: usize,
        allowed: Option<&[GpuType]>,
    ) {
        let most =
            |profiles: &[TypeProfile]| {
                let mut by_size = profiles.iter().copied();
                let first = by_size.next()?;
                Some(by_size.fold(
                    first,
                    |best, next| if next.replicas_profiled > best.replicas_profiled { next } else { best },
                ))
            };
        let Some(base) = most(profiles) else { return };
        if types <= 1 {
            return;
        }
        for profile in profiles.iter_mut().filter(|profile| profile.replicas_profiled == 1) {
            if base.replicas_profiled > 1 {
                profile.goodput.throughput = with_synchronisation_of(&profile.goodput, &base.goodput);
            }
        }
        let of_application = self.application(application);
        for number in (0..types).filter_map(|number| u16::try_from(number).ok()) {
            let gpu_type = GpuType(number);
            if allowed.is_some_and(|allowed| !allowed.contains(&gpu_type)) {
                continue;
            }
            if let Err(idx) = profiles.binary_search_by_key(&gpu_type, |profile| profile.gpu_type) {
                let goodput = self.shared(of_application, &base, gpu_type);
                let goodput = goodput.unwrap_or_else(|| self.scaled(&base, gpu_type));
                profiles.insert(idx, TypeProfile { gpu_type, goodput, replicas_profiled: 0, is_estimated: true });
            }
        }
    }

    /// What others of its application measured there, if they measured the same as this job where both ran.
    fn shared(&self, application: &[TypeProfile], base: &TypeProfile, gpu_type: GpuType) -> Option<Goodput> {
        let of_type = |wanted| application.iter().find(|profile| profile.gpu_type == wanted);
        let (there, here) = (of_type(gpu_type)?, of_type(base.gpu_type)?);
        let is_alike =
            is_near(compute_ratio(&here.goodput, &base.goodput)) && same_batches(&here.goodput, &base.goodput);
        // What its user allows is its own; what fits the memory is the type's.
        let limits = base.goodput.limits.with_local_batch_max(there.goodput.limits.local_batch_max());
        is_alike.then_some(Goodput { throughput: there.goodput.throughput, limits, ..base.goodput })
    }

    /// Its own model, computing as much faster or slower as jobs did that ran on both types; synchronisation takes as long.
    fn scaled(&self, base: &TypeProfile, gpu_type: GpuType) -> Goodput {
        let params = *base.goodput.throughput.params();
        let ratio = self.ratio(base.gpu_type, gpu_type);
        let scaled = StepParams {
            alpha_compute: params.alpha_compute * ratio,
            beta_compute: params.beta_compute * ratio,
            ..params
        };
        Goodput { throughput: model_of(&base.goodput.throughput, scaled), ..base.goodput }
    }

    /// Compute time on a type against that on another; 1 where nobody ran on both.
    fn ratio(&self, from: GpuType, to: GpuType) -> f64 {
        match self.ratios.get(&(from, to)) {
            Some(ratio) => *ratio,
            None => self.ratios.get(&(to, from)).map_or(1.0, |ratio| 1.0 / ratio),
        }
    }
}

fn is_usable(job: &EndedJob) -> bool {
    let is_size = |samples: f64| samples.is_finite() && samples > 0.0;
    is_size(job.samples) && job.samples_declared.is_none_or(is_size)
}

/// Whether a job's steps are those of another's on a type: its compute times, and whole steps on as many replicas as it was
/// measured on, either on one node or over several.
fn is_alike(own: &TypeProfile, other: &TypeProfile) -> bool {
    let (own_model, other_model) = (&own.goodput.throughput, &other.goodput.throughput);
    let local_batch = middle_batch(&own.goodput, &other.goodput);
    let on = |nodes: u32| {
        let Ok(shape) = Shape::new(nodes, own.replicas_profiled) else { return false };
        is_near(other_model.final_step_s(shape, local_batch) / own_model.final_step_s(shape, local_batch))
    };
    let is_near_alone = is_near(compute_ratio(&own.goodput, &other.goodput));
    is_near_alone && same_batches(&own.goodput, &other.goodput) && (on(1) || on(2))
}

fn is_near(ratio: f64) -> bool {
    (1.0 / ALIKE..=ALIKE).contains(&ratio)
}

fn same_batches(a: &Goodput, b: &Goodput) -> bool {
    a.limits.batch_size_baseline() == b.limits.batch_size_baseline()
}

/// Seconds of compute in the middle of the micro-batches that fit both, on the second against the first.
fn compute_ratio(from: &Goodput, to: &Goodput) -> f64 {
    let local_batch = middle_batch(from, to);
    let seconds = |goodput: &Goodput| goodput.throughput.params().compute_s(local_batch);
    seconds(to) / seconds(from)
}

fn middle_batch(a: &Goodput, b: &Goodput) -> f64 {
    let low = f64::from(a.limits.local_batch_min());
    let high = f64::from(a.limits.local_batch_max().min(b.limits.local_batch_max())).max(low);
    (low * high).sqrt()
}

/// A model that was measured on one replica, with the synchronisation of another type, as much faster as its compute: what
/// several replicas gain there is taken to be what they gain here, as Sia does (SOSP 2023, section 3.2).
fn with_synchronisation_of(measured: &Goodput, other: &Goodput) -> ThroughputModel {
    let ratio = compute_ratio(other, measured);
    let (own, params) = (*measured.throughput.params(), *other.throughput.params());
    let completed = StepParams {
        alpha_compute: own.alpha_compute,
        beta_compute: own.beta_compute,
        alpha_internode: params.alpha_internode * ratio,
        beta_internode: params.beta_internode * ratio,
        alpha_intranode: params.alpha_intranode * ratio,
        beta_intranode: params.beta_intranode * ratio,
        gamma: params.gamma,
    };
    model_of(&measured.throughput, completed)
}

/// The same kind of model with other parameters: often a fit has some at the bounds of what a model may have, and they stay
/// there. As it was if these are no numbers.
fn model_of(like: &ThroughputModel, params: StepParams) -> ThroughputModel {
    like.parallelism().model(params.within_bounds()).unwrap_or(*like)
}

#[cfg(test)]
mod lent;
#[cfg(test)]
mod tests;
