//! What a job does now, and what it would do on other numbers of GPUs, as far as its agent has told.

use pollux_agent::AgentReport;
use pollux_model::{BatchChoice, BatchMode, GpuType, GpuTypeName, Shape};
use pollux_policy::{JobId, ReplicaResources, TypeProfile};

use crate::job::declared_samples;
use pollux_job::Work;

use crate::{Engine, Job, JobState};

/// Up to here every size is looked at; beyond, a few of each doubling.
const EVERY_SIZE_MAX: u32 = 16;

/// What a job does now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Total batch.
    pub batch_size: u64,
    /// Samples per second lately, as told by its agent.
    pub samples_per_s: Option<f64>,
    /// Progress per sample, 1 at the baseline batch.
    pub efficiency: f64,
}

impl Pace {
    /// Samples per second times efficiency.
    pub fn goodput(&self) -> Option<f64> {
        Some(self.samples_per_s? * self.efficiency)
    }
}

/// What a job is expected to do on some number of replicas, placed on as few nodes as possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeOutlook {
    /// What it would run there, and what that is worth: the best batch, or the one its user fixed if the policy leaves
    /// batches to users.
    pub choice: BatchChoice,
    /// Whether so many were measured, or the model goes beyond what it knows.
    pub is_measured: bool,
}

/// What a job is expected to do on a type of GPU, on as many replicas as it has, or on its fewest while it waits; on fewer
/// where there are not so many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeOutlook {
    /// The type.
    pub gpu_type: GpuType,
    /// What it would run there, and what that is worth.
    pub choice: BatchChoice,
    /// Whether it never ran there, so that what is known of other types and other jobs stands for it.
    pub is_estimated: bool,
}

impl Job {
    /// What it does now; nothing unless it trains and its agent has told its batch.
    pub fn pace(&self) -> Option<Pace> {
        let training = match &self.state {
            JobState::Running => &self.group,
            // Those who come do not train yet.
            JobState::Resizing { survivors, .. } => survivors,
            JobState::Queued { .. }
            | JobState::Starting
            | JobState::Paused
            | JobState::Succeeded
            | JobState::Failed { .. }
            | JobState::Cancelled => return None,
        };
        let report = self.report.as_ref().map(|received| &received.report)?;
        let (tuning, shape) = (report.tuning?, training.shape()?);
        let samples = u64::from(tuning.local_batch).saturating_mul(u64::from(tuning.accumulation_steps) + 1);
        let batch_size = samples.saturating_mul(u64::from(shape.replicas()));
        let scale = batch_size as f64 / f64::from(report.limits.batch_size_baseline());
        let efficiency = report.noise.map_or(1.0, |noise| noise.efficiency(scale.max(1.0)));
        Some(Pace { batch_size, samples_per_s: report.samples_per_s, efficiency })
    }

    /// Seconds until its declared work is done, if nothing changes.
    pub fn remaining_s(&self) -> Option<f64> {
        let goodput = self.pace()?.goodput()?;
        Some(self.remaining_samples? / goodput).filter(|seconds| seconds.is_finite())
    }

    /// Who chooses its batch, under a policy that adapts batches or does not.
    pub(crate) fn batch_mode(&self, adapts_batches: bool) -> BatchMode {
        BatchMode::of(adapts_batches, self.spec.batch_size)
    }

    /// Most replicas that it was measured on, on any kind of GPU.
    pub fn replicas_profiled(&self) -> Option<u32> {
        self.profiles.iter().map(|profile| profile.replicas_profiled).max()
    }
}

/// The part of declared work that is done, from 0 to 1.
pub fn work_done(work: Work, report: &AgentReport) -> Option<f64> {
    let declared = declared_samples(work, report)?;
    let done = report.progress.baseline_steps * f64::from(report.limits.batch_size_baseline());
    Some((done / declared).min(1.0)).filter(|part| part.is_finite())
}

impl Engine {
    /// Goodput of all jobs that train and tell.
    pub fn goodput(&self) -> f64 {
        // An empty sum would be -0.
        self.jobs().filter_map(|job| job.pace()?.goodput()).fold(0.0, |sum, goodput| sum + goodput)
    }

    /// What a sample is worth on average, weighted by the GPUs of the jobs that train and tell.
    pub fn efficiency(&self) -> Option<f64> {
        let gpus = |job: &Job| f64::from(job.per_replica().gpus_of(job.group.replicas()));
        let told = self.jobs().filter_map(|job| Some((gpus(job), job.pace()?.efficiency)));
        let (gpus, worth) = told.fold((0.0, 0.0), |(gpus, worth), (held, each)| (gpus + held, worth + held * each));
        (gpus > 0.0).then(|| worth / gpus)
    }

    /// GPUs that may be used.
    pub fn usable_gpus(&self) -> u32 {
        self.nodes().filter(|node| node.is_schedulable(self.now())).map(crate::Node::gpus).sum()
    }

    /// Those of them that are there for each job which plans include.
    pub fn fair_share(&self) -> Option<f64> {
        let jobs = self.jobs().filter(|job| job.is_plannable()).count();
        (jobs > 0).then(|| f64::from(self.usable_gpus()) / jobs as f64)
    }

    /// What is known or estimated of a job on types of GPU that a node has or had.
    pub fn profiles(&self, id: JobId) -> impl Iterator<Item = (&GpuTypeName, &TypeProfile)> {
        let profiles = self.jobs.get(&id).map_or(&[][..], |job| &job.profiles);
        profiles.iter().filter_map(|profile| Some((self.gpu_type_name(profile.gpu_type)?, profile)))
    }

    /// What a job is expected to do on other numbers of replicas that its bounds and the cluster allow, the one it has
    /// included; empty before its agent has told a model.
    pub fn outlook(&self, id: JobId) -> Vec<SizeOutlook> {
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        let kind = job.group.iter().next().and_then(|(node, _)| self.node(node)).map(crate::Node::gpu_type);
        let of_kind = |profile: &&TypeProfile| kind.is_none_or(|kind| profile.gpu_type == kind);
        let Some(profile) = job.profiles.iter().find(of_kind) else { return Vec::new() };
        let capacities = self.capacities(profile.gpu_type, job.per_replica());
        let most = job.spec.most().min(capacities.iter().sum());
        let current = job.group.shape();
        let shapes = sizes(job.spec.fewest(), most, current.map(Shape::replicas)).into_iter().filter_map(|replicas| {
            let as_it_is = current.filter(|shape| shape.replicas() == replicas);
            as_it_is.or_else(|| Shape::new(nodes_for(replicas, &capacities), replicas).ok())
        });
        let mode = job.batch_mode(self.policy.adapts_batches());
        let outlook = |shape: Shape| {
            let choice = profile.goodput.chosen(shape, mode)?;
            Some(SizeOutlook { choice, is_measured: shape.replicas() <= profile.replicas_profiled })
        };
        shapes.filter_map(outlook).collect()
    }

    /// What a job is expected to do on every type of GPU that it may use and that there is room on; empty before its agent
    /// has told a model.
    pub fn type_outlook(&self, id: JobId) -> Vec<TypeOutlook> {
        let Some(job) = self.jobs.get(&id) else { return Vec::new() };
        let mode = job.batch_mode(self.policy.adapts_batches());
        let wanted = job.group.shape().map_or(job.spec.fewest(), Shape::replicas);
        let here = job.group.iter().next().and_then(|(node, _)| self.node(node)).map(crate::Node::gpu_type);
        let outlook = |profile: &TypeProfile| {
            let gpu_type = profile.gpu_type;
            if job.gpu_types.as_ref().is_some_and(|allowed| !allowed.contains(&gpu_type)) {
                return None;
            }
            let capacities = self.capacities(gpu_type, job.per_replica());
            let replicas = wanted.min(capacities.iter().sum());
            let shape = match job.group.shape().filter(|_| here == Some(gpu_type)) {
                Some(shape) => shape,
                None if replicas < job.spec.fewest() => return None,
                None => Shape::new(nodes_for(replicas, &capacities), replicas).ok()?,
            };
            let choice = profile.goodput.chosen(shape, mode)?;
            Some(TypeOutlook { gpu_type, choice, is_estimated: profile.is_estimated })
        };
        job.profiles.iter().filter_map(outlook).collect()
    }

    /// Replicas that fit on each of the nodes of a kind that take any, the most first.
    fn capacities(&self, kind: GpuType, replica: ReplicaResources) -> Vec<u32> {
        let usable = self.nodes().filter(|node| node.gpu_type() == kind && node.is_schedulable(self.now()));
        let mut capacities: Vec<u32> = usable.map(|node| node.resources().fits(replica)).collect();
        capacities.sort_unstable_by(|a, b| b.cmp(a));
        capacities
    }
}

/// The fewest nodes that hold so many replicas.
pub(crate) fn nodes_for(replicas: u32, capacities: &[u32]) -> u32 {
    let mut left = replicas;
    let mut nodes = 0;
    for &replicas in capacities {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(replicas);
        nodes += 1;
    }
    nodes
}

/// The sizes worth looking at: few enough to be read.
fn sizes(min: u32, max: u32, current: Option<u32>) -> Vec<u32> {
    let doublings = (0..).map_while(|exponent| EVERY_SIZE_MAX.checked_shl(exponent).filter(|&size| size < max));
    let halves = doublings.flat_map(|size| [size.saturating_add(size / 2), size.saturating_mul(2)]);
    let mut sizes: Vec<u32> = (1..=EVERY_SIZE_MAX).chain(halves).chain([max]).collect();
    sizes.retain(|size| (min..=max).contains(size));
    sizes.extend(current);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_sizes_are_looked_at_one_by_one_and_many_by_doubling() {
        assert_eq!(sizes(1, 4, Some(3)), [1, 2, 3, 4]);
        assert_eq!(sizes(4, 4, None), [4]);
        assert_eq!(sizes(15, 100, Some(33)), [15, 16, 24, 32, 33, 48, 64, 96, 100]);
        assert_eq!(sizes(1, 0, None), Vec::<u32>::new());
        assert!(sizes(1, u32::MAX, None).len() < 100);
    }

    #[test]
    fn replicas_go_to_as_few_nodes_as_hold_them() {
        assert_eq!([1, 4, 5, 6, 7].map(|replicas| nodes_for(replicas, &[4, 2, 1])), [1, 1, 2, 2, 3]);
    }
}
