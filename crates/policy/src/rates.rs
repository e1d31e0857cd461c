//! What is measured of jobs, alone and beside others.

use std::collections::{BTreeMap, BTreeSet};

use pollux_model::{Batch, Shape};

use crate::gang::kind_of;
use crate::{Allocation, ClusterView, JobId, JobView, Plan, Timestamp};

/// Seconds of steady training after which a reported rate is that of what runs now.
const STEADY_S: f64 = 30.0;

/// Rates of jobs, by what they ran on and beside whom.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Rates {
    jobs: BTreeMap<JobId, Watched>,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Watched {
    allocation: Allocation,
    partner: Option<JobId>,
    since: Timestamp,
    /// What it does now, once it has done so for a while.
    current: Option<f64>,
    /// Its rate when it last had GPUs for itself, and how many.
    alone: Option<(u32, f64)>,
}

impl Rates {
    /// Looks at all jobs. One that does not train yet, or beside one that does not, is not steady.
    pub(crate) fn watch(&mut self, now: Timestamp, view: &ClusterView<'_>) {
        let guests: BTreeMap<JobId, JobId> = view.jobs.iter().filter_map(|job| Some((job.guest_of?, job.id))).collect();
        let settling: BTreeSet<JobId> = view.jobs.iter().filter(|job| job.is_pinned()).map(|job| job.id).collect();
        let mut before = std::mem::take(&mut self.jobs);
        for job in view.jobs {
            let partner = job.guest_of.or_else(|| guests.get(&job.id).copied());
            let (allocation, alone) = (job.allocation.clone(), None);
            let seen = before.remove(&job.id);
            let mut watched = seen.unwrap_or(Watched { allocation, partner, since: now, current: None, alone });
            let settles = partner.into_iter().chain([job.id]).any(|id| settling.contains(&id));
            let trains = !job.allocation.is_empty() && !settles;
            if !trains || !watched.is_on(job.allocation, partner) {
                watched.change(now, job.allocation, partner);
            } else if now.since_s(watched.since) >= STEADY_S + job.restart_cost_s {
                watched.current = job.samples_per_s.filter(|rate| rate.is_finite() && *rate > 0.0);
                if let (None, Some(rate)) = (partner, watched.current) {
                    watched.alone = Some((job.allocation.replicas(), rate));
                }
            }
            self.jobs.insert(job.id, watched);
        }
    }

    /// Notes what a plan changes, from now on.
    pub(crate) fn expect(&mut self, now: Timestamp, plan: &Plan) {
        let guests = plan.assignments.iter().filter_map(|guest| Some((guest.guest_of?, guest.job)));
        let guests: BTreeMap<JobId, JobId> = guests.collect();
        for assignment in &plan.assignments {
            let partner = assignment.guest_of.or_else(|| guests.get(&assignment.job).copied());
            let watched = self.jobs.get_mut(&assignment.job);
            if let Some(watched) = watched.filter(|watched| !watched.is_on(&assignment.allocation, partner)) {
                watched.change(now, &assignment.allocation, partner);
            }
        }
    }

    /// Rate of a job on what it has now, once it is steady.
    pub(crate) fn current(&self, job: JobId) -> Option<f64> {
        self.jobs.get(&job)?.current
    }

    /// Rate of a job with so many GPUs for itself.
    pub(crate) fn alone(&self, job: JobId, replicas: u32) -> Option<f64> {
        let (measured, rate) = self.jobs.get(&job)?.alone?;
        (measured == replicas).then_some(rate)
    }

    /// Rate of a job beside another against that alone, once it is steady.
    pub(crate) fn beside(&self, job: &JobView<'_>) -> Option<f64> {
        Some(self.current(job.id)? / self.alone(job.id, job.allocation.replicas())?)
    }
}

impl Watched {
    fn is_on(&self, allocation: &Allocation, partner: Option<JobId>) -> bool {
        self.allocation == *allocation && self.partner == partner
    }

    fn change(&mut self, now: Timestamp, allocation: &Allocation, partner: Option<JobId>) {
        (self.allocation, self.partner) = (allocation.clone(), partner);
        (self.since, self.current) = (now, None);
    }
}

/// Share of a step in which a job keeps its GPUs busy, as its profile tells: the compute that grows with the batch.
pub(crate) fn busy_share(job: &JobView<'_>, allocation: &Allocation, view: &ClusterView<'_>) -> Option<f64> {
    let fixed = FixedStep::of(job, allocation, view)?;
    Some((fixed.busy_s / fixed.step_s).clamp(0.0, 1.0))
}

/// Samples per second at the batch its user fixed, as its profile tells.
pub(crate) fn predicted(job: &JobView<'_>, allocation: &Allocation, view: &ClusterView<'_>) -> Option<f64> {
    let fixed = FixedStep::of(job, allocation, view)?;
    Some(fixed.samples / fixed.step_s)
}

struct FixedStep {
    samples: f64,
    busy_s: f64,
    step_s: f64,
}

impl FixedStep {
    fn of(job: &JobView<'_>, allocation: &Allocation, view: &ClusterView<'_>) -> Option<Self> {
        let kind = kind_of(allocation, view)?;
        let goodput = &job.profiles.iter().find(|profile| profile.gpu_type == kind)?.goodput;
        let shape: Shape = allocation.shape()?;
        let batch_size = job.batch_size.unwrap_or(goodput.limits.batch_size_baseline());
        let batch = Batch::fixed(&goodput.limits, batch_size, shape.replicas())?;
        let (local_batch, accumulation_steps) = (f64::from(batch.local_batch), f64::from(batch.accumulation_steps));
        let micro_s = |local_batch| goodput.throughput.micro_step_s(shape, local_batch);
        Some(Self {
            samples: f64::from(batch.size(shape.replicas())),
            busy_s: (micro_s(local_batch) - micro_s(0.0)) * (accumulation_steps + 1.0),
            step_s: goodput.throughput.step_s(shape, local_batch, accumulation_steps),
        })
    }
}
