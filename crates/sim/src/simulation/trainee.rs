use pollux_agent::AgentReport;
use pollux_model::{BatchLimits, BatchMode, GpuTypeName};
use pollux_policy::{Allocation, Timestamp};

use super::job::SimJob;
use super::run::id_of;
use super::settings::SimulationSettings;
use crate::{ApplicationName, ApplicationSet};

/// A simulated job without a world around it: whoever drives it says when its group trains, on what, and when it stops.
///
/// It is what the simulator itself trains, so that a test of the live scheduler can have workers that do the same.
pub struct Trainee<'a>(SimJob<'a>);

impl<'a> Trainee<'a> {
    /// A job that nobody knows anything of yet.
    pub fn new(
        applications: &'a ApplicationSet,
        name: ApplicationName,
        mode: BatchMode,
        settings: &SimulationSettings,
    ) -> Self {
        let job = SimJob::new(id_of(0), applications.get(name), mode, settings);
        Self(job.on_types(applications.on_types(name), settings))
    }

    /// What decides its batch from now on.
    pub fn set_mode(&mut self, mode: BatchMode) {
        self.0.set_mode(mode);
    }

    /// Its group trains on these replicas, on GPUs of one type, which it may share with another job.
    pub fn begin(&mut self, now: Timestamp, allocation: Allocation, gpu_type: &GpuTypeName, shares: bool) {
        self.0.allocation = allocation;
        self.0.begin(now, gpu_type, shares);
    }

    /// How busy it keeps its GPUs, while it trains.
    pub fn duty(&self) -> Option<f64> {
        self.0.duty()
    }

    /// Tells it how fast it is beside another job on its GPUs, against alone; true if that is new.
    pub fn set_shared_speed(&mut self, now: Timestamp, shared_speed: Option<f64>) -> bool {
        let before = self.0.changes;
        self.0.slow_down(now, 0.0, shared_speed);
        self.0.changes != before
    }

    /// Its group stops, and saves.
    pub fn halt(&mut self, now: Timestamp) {
        self.0.halt(now);
    }

    /// Its group is gone with what it had not saved.
    pub fn crash(&mut self, now: Timestamp) {
        self.0.crash(now);
    }

    /// What batches it may have.
    pub fn limits(&self) -> &BatchLimits {
        self.0.application.limits()
    }

    /// Whether its group trains.
    pub fn is_training(&self) -> bool {
        self.0.is_training()
    }

    /// Brings it up to a moment in which it reports, and tells whether it takes another batch from then on.
    pub fn report(&mut self, now: Timestamp) -> (Option<AgentReport>, bool) {
        self.0.advance(now);
        let is_retuned = self.0.retune(now);
        (self.0.report(), is_retuned)
    }

    /// When its epoch ends if nothing changes, and whether a round of that moment comes before.
    pub fn next_epoch_end(&self) -> Option<(Timestamp, bool)> {
        self.0.next_epoch_end().map(|end| (end.at, end.early))
    }

    /// Ends an epoch; true if that was the last.
    pub fn end_epoch(&mut self, now: Timestamp) -> bool {
        self.0.end_epoch(now);
        self.0.is_complete()
    }
}
