//! What an equal share of the cluster would be worth to each job.

use std::collections::BTreeMap;

use pollux_model::{GpuType, Shape};
use pollux_policy::{NodeResources, Timestamp, TypeProfile};

use crate::outlook::nodes_for;
use crate::{Engine, Job};

/// The GPUs that there are for each job which plans include.
#[derive(Clone, Debug, PartialEq)]
pub struct FairShare {
    gpus: f64,
    adapts_batches: bool,
    /// Usable nodes by kind.
    nodes: BTreeMap<GpuType, Vec<NodeResources>>,
}

/// How fairly jobs are treated that tell enough: 1 is as if each had its share to itself, more is later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fairness {
    /// Of the job that is treated worst.
    pub worst: f64,
    /// Of all of them.
    pub average: f64,
}

impl Engine {
    /// What an equal share is; nothing without jobs.
    pub fn equal_share(&self) -> Option<FairShare> {
        let gpus = self.fair_share()?;
        let mut nodes: BTreeMap<GpuType, Vec<NodeResources>> = BTreeMap::new();
        for node in self.nodes().filter(|node| node.is_schedulable(self.now())) {
            nodes.entry(node.gpu_type()).or_default().push(node.resources());
        }
        Some(FairShare { gpus, adapts_batches: self.policy.adapts_batches(), nodes })
    }

    /// How fairly jobs that train are treated.
    pub fn fairness(&self, now: Timestamp) -> Option<Fairness> {
        let share = self.equal_share()?;
        let ratios: Vec<f64> = self.jobs().filter_map(|job| share.finish_time_ratio(job, now)).collect();
        let worst = ratios.iter().copied().max_by(f64::total_cmp)?;
        Some(Fairness { worst, average: ratios.iter().sum::<f64>() / ratios.len() as f64 })
    }
}

impl FairShare {
    /// Goodput of a job alone on its share, as its model tells: below one replica, that one is shared in time; between
    /// two whole numbers, speeds are interpolated.
    pub fn goodput(&self, job: &Job) -> Option<f64> {
        let least = f64::from(job.spec.fewest());
        let replicas = (self.gpus / f64::from(job.per_replica().gpus)).min(f64::from(job.spec.most()));
        if replicas <= least {
            return Some(self.whole(job, job.spec.fewest())? * replicas / least);
        }
        let (low, high) = (replicas.floor(), replicas.ceil());
        let slow = self.whole(job, low as u32)?;
        // A share of a part of a replica more may be more than there is of one kind.
        let fast = self.whole(job, high as u32).unwrap_or(slow);
        Some(slow + (fast - slow) * (replicas - low))
    }

    /// Its goodput against that on its share.
    pub fn speedup(&self, job: &Job) -> Option<f64> {
        ratio(job.pace()?.goodput()?, self.goodput(job)?)
    }

    /// Finish-time fairness: the time from when it could first run to the end, if nothing changes, against the time alone
    /// on its share; 1 is fair, more is worse.
    pub fn finish_time_ratio(&self, job: &Job, now: Timestamp) -> Option<f64> {
        let (remaining_s, remaining) = (job.remaining_s()?, job.remaining_samples?);
        let report = &job.report.as_ref()?.report;
        let done = report.progress.baseline_steps * f64::from(report.limits.batch_size_baseline());
        let alone_s = (done + remaining) / self.goodput(job)?;
        ratio(now.since_s(job.start_history.eligible_since) + remaining_s, alone_s)
    }

    fn whole(&self, job: &Job, replicas: u32) -> Option<f64> {
        let mode = job.batch_mode(self.adapts_batches);
        let choice = |profile: &TypeProfile| {
            let nodes = self.nodes.get(&profile.gpu_type)?;
            let mut capacities: Vec<u32> = nodes.iter().map(|node| node.fits(job.per_replica())).collect();
            capacities.sort_unstable_by(|a, b| b.cmp(a));
            let shape = Shape::new(nodes_for(replicas, &capacities), replicas).ok()?;
            (capacities.iter().sum::<u32>() >= replicas).then(|| profile.goodput.chosen(shape, mode)).flatten()
        };
        job.profiles.iter().filter_map(choice).map(|choice| choice.goodput).max_by(f64::total_cmp)
    }
}

fn ratio(above: f64, below: f64) -> Option<f64> {
    Some(above / below).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests {
    use pollux_agent::{AgentReport, Progress, Tuning, TypeReport};
    use pollux_model::{BatchLimits, BatchMode, GpuTypeName, NoiseStatistics, Parallelism, StepParams};
    use pollux_policy::{Allocation, JobId, NodeId, PolicySettings};

    use super::*;
    use pollux_job::{JobSpec, Work};

    use crate::{EngineSettings, Event, Revision};

    /// Two jobs on a node of four GPUs, of which the first has three, is measured, and has worked off a quarter.
    fn engine(policy: &str) -> Engine {
        let policy = PolicySettings::named(policy).unwrap();
        let mut engine = Engine::new(EngineSettings::default(), &policy).unwrap();
        let mut out = Vec::new();
        let (gpu_type, revision) = (GpuTypeName::default(), Revision(1));
        let work = Some(Work::BaselineSteps(40));
        let spec = JobSpec { work, batch_size: Some(96), replicas_max: Some(3), ..JobSpec::new("resnet", 3) };
        let params = StepParams::from_array([0.01, 0.01, 0.01, 1e-6, 0.02, 1e-6, 1.5]);
        let report = AgentReport {
            limits: BatchLimits::new(64, 4096, 1, 512).unwrap(),
            types: vec![TypeReport {
                gpu_type: gpu_type.clone(),
                model: Parallelism::DataParallel.model(params).unwrap(),
                replicas_profiled: 3,
                local_batch_max: None,
            }],
            noise: Some(NoiseStatistics::new(1.0, 4000.0).unwrap()),
            progress: Progress { steps: 10, samples: 640, epochs: 0, baseline_steps: 10.0 },
            epoch_samples: None,
            samples_per_s: Some(100.0),
            loss: None,
            tuning: Some(Tuning { local_batch: 32, accumulation_steps: 0 }),
            learning_rate_factor: 1.0,
        };
        for (at, event) in [
            (0, Event::NodeJoined { node: NodeId(0), gpus: 4, gpu_type, cpus: None, memory: None }),
            (0, Event::JobSubmitted { job: JobId(1), spec }),
            (0, Event::JobSubmitted { job: JobId(2), spec: JobSpec::new("waits", 2) }),
            (60_000, Event::Tick),
            (61_000, Event::GroupReady { job: JobId(1), revision, pause_s: None }),
            (62_000, Event::Report { job: JobId(1), revision, report }),
        ] {
            engine.step(Timestamp(at), event, &mut out);
        }
        engine
    }

    #[test]
    fn a_job_on_more_than_its_share_is_faster_than_on_it_and_lateness_counts_against_fairness() {
        let engine = engine("pollux");
        let share = engine.equal_share().unwrap();
        let job = engine.job(JobId(1)).unwrap();
        assert_eq!(share.gpus, 2.0);
        let profile = &job.profiles[0];
        let best = |gpus| profile.goodput.best(Shape::new(1, gpus).unwrap()).unwrap().goodput;
        let fair = best(2);
        assert_eq!(share.goodput(job), Some(fair));
        let mut gang = job.clone();
        gang.spec.flexibility = pollux_policy::Flexibility::Rigid;
        assert_eq!(share.goodput(&gang), Some(best(3) * 2.0 / 3.0), "it would have them for two thirds of the time");
        let pace = job.pace().unwrap().goodput().unwrap();
        assert_eq!(share.speedup(job), Some(pace / fair));
        let (done, all) = (640.0, 2_560.0);
        let expected = (100.0 + (all - done) / pace) / (all / fair);
        let ratio = share.finish_time_ratio(job, Timestamp(100_000)).unwrap();
        assert!((ratio - expected).abs() < 1e-9, "{ratio} {expected}");
        assert_eq!(engine.fairness(Timestamp(100_000)), Some(Fairness { worst: ratio, average: ratio }));
        assert!(engine.efficiency().is_some_and(|part| part > 0.0 && part < 1.0));
    }

    #[test]
    fn under_a_policy_that_leaves_batches_to_users_everything_is_about_the_batch_that_runs() {
        for (policy, mode) in [("pollux", BatchMode::Adaptive), ("fifo", BatchMode::Fixed { batch_size: Some(96) })] {
            let engine = engine(policy);
            let job = engine.job(JobId(1)).unwrap();
            let chosen = |gpus| job.profiles[0].goodput.chosen(Shape::new(1, gpus).unwrap(), mode).unwrap();
            assert_eq!(engine.equal_share().unwrap().goodput(job), Some(chosen(2).goodput), "{policy}");
            let outlook: Vec<_> = engine.outlook(JobId(1)).iter().map(|size| size.choice).collect();
            assert_eq!(outlook, [chosen(1), chosen(2), chosen(3)], "{policy}");
            let change = engine.change(job, &Allocation::on(NodeId(0), 1)).goodput_change.unwrap();
            assert_eq!(change, chosen(1).goodput / chosen(3).goodput - 1.0, "{policy}");
        }
    }

    #[test]
    fn nothing_is_fair_or_unfair_without_jobs_that_tell() {
        let engine = Engine::new(EngineSettings::default(), &PolicySettings::Fifo).unwrap();
        assert_eq!((engine.equal_share(), engine.fairness(Timestamp(0)), engine.efficiency()), (None, None, None));
    }

    #[test]
    fn the_last_changes_stay_until_a_plan_changes_something_again() {
        let mut engine = engine("fifo");
        let changes = |engine: &Engine| engine.last_changes().map(|(at, changes)| (at, changes.to_vec()));
        let (at, first) = changes(&engine).unwrap();
        assert_eq!(
            (at, first.len(), first[0].name.as_str(), first[0].from, first[0].to),
            (Timestamp(60_000), 1, "resnet", 0, 3)
        );
        engine.step(Timestamp(120_000), Event::Tick, &mut Vec::new());
        assert_eq!((engine.last_round(), changes(&engine)), (Some(Timestamp(120_000)), Some((at, first))));
    }
}
