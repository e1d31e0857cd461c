use std::collections::{BTreeMap, BTreeSet};

use super::GandivaSettings;
use crate::rates::Rates;
use crate::{Allocation, ClusterView, JobId};

/// Packings that a job may spoil before it is left alone.
const SPOILED_MAX: usize = 3;

/// Changes that were tried, and what became of them.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Trials {
    /// Of every job, those it did less with than they should have done together.
    bad_partners: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Changes of allocation that are not measured yet.
    open: BTreeMap<JobId, Trial>,
    /// Jobs whose last migration brought nothing: they stay where they are.
    settled: BTreeSet<JobId>,
    /// Sizes from which on more GPUs brought nothing.
    too_large: BTreeMap<JobId, u32>,
}

/// A job that was moved or has grown.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Trial {
    before: Allocation,
    rate: f64,
    after: Allocation,
}

/// What is to be taken back.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Where jobs go back to.
    pub(super) undo: BTreeMap<JobId, Allocation>,
}

impl Trials {
    /// Forgets jobs that ended, and judges what has been measured by now.
    pub(super) fn judge(&mut self, settings: &GandivaSettings, rates: &Rates, view: &ClusterView<'_>) -> Verdicts {
        let present: BTreeSet<JobId> = view.jobs.iter().map(|job| job.id).collect();
        self.bad_partners.retain(|job, _| present.contains(job));
        self.settled.retain(|job| present.contains(job));
        self.too_large.retain(|job, _| present.contains(job));
        self.open.retain(|job, _| present.contains(job));
        let mut verdicts = Verdicts::default();
        for job in view.jobs {
            if let Some(host) = job.guest_of.and_then(|host| view.jobs.iter().find(|other| other.id == host)) {
                let together = rates.beside(job).zip(rates.beside(host));
                if together.is_some_and(|(guest, host)| guest + host < settings.packing_rate_min) {
                    self.bad_partners.entry(host.id).or_default().insert(job.id);
                    self.bad_partners.entry(job.id).or_default().insert(host.id);
                }
            }
            let Some(trial) = self.open.get(&job.id) else { continue };
            let Some(rate) = rates.current(job.id).filter(|_| trial.after == *job.allocation) else {
                // One that waits may still come to where it was to be.
                if !job.allocation.is_empty() && *job.allocation != trial.after {
                    self.open.remove(&job.id);
                }
                continue;
            };
            let grown = trial.after.replicas() > trial.before.replicas();
            if rate < trial.rate * (1.0 + settings.gain_min) {
                if grown {
                    self.too_large.insert(job.id, trial.after.replicas());
                } else {
                    self.settled.insert(job.id);
                }
                // Idle GPUs are worth more than no gain; a place without gain is no worse than the one before.
                if grown || rate < trial.rate {
                    verdicts.undo.insert(job.id, trial.before.clone());
                }
            }
            self.open.remove(&job.id);
        }
        verdicts
    }

    /// Notes a change that a plan makes, to be measured against `rate`.
    pub(super) fn begin(&mut self, job: JobId, before: Allocation, after: Allocation, rate: f64) {
        self.open.insert(job, Trial { before, rate, after });
    }

    pub(super) fn is_open(&self, job: JobId) -> bool {
        self.open.contains_key(&job)
    }

    pub(super) fn may_pack(&self, host: JobId, guest: JobId) -> bool {
        let spoiled = |job| self.bad_partners.get(&job).map_or(0, BTreeSet::len);
        !self.is_bad(host, guest) && spoiled(host) < SPOILED_MAX && spoiled(guest) < SPOILED_MAX
    }

    pub(super) fn is_bad(&self, host: JobId, guest: JobId) -> bool {
        self.bad_partners.get(&host).is_some_and(|partners| partners.contains(&guest))
    }

    pub(super) fn may_migrate(&self, job: JobId) -> bool {
        !self.is_open(job) && !self.settled.contains(&job)
    }

    /// The most GPUs that a job may try.
    pub(super) fn size_max(&self, job: JobId) -> u32 {
        self.too_large.get(&job).map_or(u32::MAX, |&size| size.saturating_sub(1))
    }
}
