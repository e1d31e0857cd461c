//! What a run leaves behind: samples on the way, usage at the end.

use std::collections::BTreeMap;

use pollux_engine::{FailureReason, JobUsage};
use pollux_policy::{JobId, Timestamp};

use super::fairness::{Alone, Isolated, Presence};
use super::job::SimJob;
use super::outcome::{ClusterSample, JobOutcome, JobSample, RunOutcome};
use super::requests::replicas_max;
use super::run::World;
use super::settings::Pool;
use crate::{Workload, WorkloadJob};

impl World<'_> {
    pub(super) fn sample_job(&mut self, job: usize) {
        if !self.settings.record_series {
            return;
        }
        let time_s = self.now.as_s();
        let job = &mut self.jobs[job];
        let (batch_size, efficiency) = job.batch_and_efficiency();
        let nodes = job.allocation.iter().len() as u32;
        let sample = JobSample { time_s, replicas: job.allocation.replicas(), nodes, batch_size, efficiency };
        job.series.push(sample);
    }

    pub(super) fn sample_cluster(&mut self) {
        if !self.settings.record_series {
            return;
        }
        let held = |job: &&pollux_engine::Job| job.gpus_held() > 0;
        let jobs_running = self.engine.jobs().filter(held).count() as u32;
        let jobs_waiting = self.engine.jobs().len() as u32 - jobs_running;
        let gpus_used = self.engine.nodes().map(pollux_engine::Node::gpus_held).sum();
        let nodes = self.engine.nodes().len() as u32;
        let sample = ClusterSample { time_s: self.now.as_s(), gpus_used, nodes, jobs_running, jobs_waiting };
        match self.samples.last_mut() {
            Some(last) if last.time_s == sample.time_s => *last = sample,
            Some(last)
                if (last.gpus_used, last.nodes, last.jobs_running, last.jobs_waiting)
                    == (gpus_used, nodes, jobs_running, jobs_waiting) => {}
            Some(_) | None => self.samples.push(sample),
        }
    }

    pub(super) fn outcome(mut self, workload: &Workload) -> RunOutcome {
        let now = self.now;
        let ended = self.engine.take_ended_jobs();
        let usage: BTreeMap<JobId, JobUsage> = ended.iter().map(|ended| (ended.id(), ended.usage(now))).collect();
        let (avg_gpus, node_hours) = self.capacity();
        let lives = self.specs.iter().zip(&self.jobs).map(|(spec, job)| (spec.submitted_s as f64, finished_s(job)));
        let presence = Presence::new(lives);
        let mut isolated = Isolated::default();
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for (idx, (job, spec)) in self.jobs.iter_mut().zip(self.specs).enumerate() {
            let submitted_s = spec.submitted_s as f64;
            let finished_s = finished_s(job);
            let usage = usage.get(&job.id);
            let share = avg_gpus / presence.mean(submitted_s, finished_s).max(1.0);
            let most = f64::from(replicas_max(self.settings, spec));
            // As Sia has it: on each type for itself, weighed by its GPUs.
            let pools = self.settings.pools(&spec.needs);
            let runs_on = |pool: &&Pool| job.on(&pool.gpu_type).is_some();
            let gpus: u64 = pools.iter().filter(runs_on).map(|pool| pool.gpus).sum();
            let rho = pools.iter().filter(runs_on).map(|Pool { gpu_type, gpus: of_type, on_a_node }| {
                let application = job.on(gpu_type).expect("others are left out");
                let (on_a_node, mode) = (*on_a_node, self.modes[idx]);
                let share = share * (*of_type as f64 / self.settings.cluster.gpus() as f64);
                let replicas = (share / f64::from(spec.needs.gpus_per_replica)).min(most);
                let alone = Alone { application, gpu_type, mode, on_a_node };
                // Alone it would have to be started, too.
                let alone_s = self.settings.restart_s(application) + isolated.time_s(&alone, replicas);
                (finished_s - submitted_s) / alone_s * (*of_type as f64 / gpus as f64)
            });
            let rho = rho.sum();
            jobs.push(JobOutcome {
                name: spec.name.clone(),
                application: spec.application,
                submitted_s,
                started_s: usage.and_then(|usage| usage.first_started).map_or(submitted_s, Timestamp::as_s),
                finished_s,
                failure: job.failure.as_ref().map(|reason| failure(reason, self.specs)),
                restarts: usage.map_or(0, |usage| usage.restarts),
                gpu_seconds: usage.map_or(0.0, JobUsage::attained_gpu_s),
                queued_s: usage.map_or(0.0, JobUsage::queued_s),
                rho,
                efficiency: if job.samples > 0.0 { job.useful_samples / job.samples } else { 1.0 },
                series: std::mem::take(&mut job.series),
            });
        }
        RunOutcome {
            policy: self.settings.label.clone(),
            workload: workload.name().to_owned(),
            seed: workload.seed(),
            gpus: self.settings.gpus_max(),
            avg_gpus,
            node_hours,
            jobs,
            cluster: self.samples,
        }
    }
}

impl World<'_> {
    /// GPUs on average and hours paid for nodes, from the first submission to now.
    fn capacity(&self) -> (f64, f64) {
        let first_s = self.specs.first().map_or(0.0, |spec| spec.submitted_s as f64);
        let makespan_s = self.now.as_s() - first_s;
        match &self.meter {
            Some(meter) => (meter.gpu_s / makespan_s, meter.node_s / 3600.0),
            None => (f64::from(self.settings.gpus_max()), self.nodes.len() as f64 * makespan_s / 3600.0),
        }
    }
}

fn failure(reason: &FailureReason, specs: &[WorkloadJob]) -> String {
    match reason {
        FailureReason::TimeLimit { limit_s } => format!("reached its time limit of {limit_s} s"),
        FailureReason::Dependency { job } => {
            let name = specs.get(job.0 as usize).map_or("", |spec| &spec.name);
            format!("{name} did not succeed")
        }
        FailureReason::Permanent { .. }
        | FailureReason::RetriesExhausted { .. }
        | FailureReason::MachineFailures { .. } => "failed too often".to_owned(),
    }
}

fn finished_s(job: &SimJob<'_>) -> f64 {
    job.finished.map_or(0.0, Timestamp::as_s)
}
