use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::error::SimulationError;
use super::halving::Halving;
use super::outcome::{ClusterSample, JobOutcome};
use super::run::World;
use super::settings::{SettingError, SimulationSettings};
use crate::{Application, ApplicationName, ApplicationSet, Workload, WorkloadJob};

/// How fast a trial's score approaches its quality: at the end of training a share of e⁻³ is missing.
const LEARNING_SPEED: f64 = 3.0;

/// A search for hyper-parameters by successive halving (Jamieson and Talwalkar, AISTATS 2016): all trials train for a
/// few epochs, the best of them for several times as many, and so on until one is left or the training is over. A rung
/// ends when its last trial is there; those that wait for it hold no GPUs.
///
/// Trials train alike and differ in a quality drawn at random, which a trial's score approaches as it trains. At the
/// same number of epochs the better quality has the better score: curves never cross, so that who wins does not depend
/// on the scheduler, and only time and GPU-hours do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// What every trial trains.
    pub application: ApplicationName,
    /// How many there are; all are submitted at once.
    pub trials: u32,
    /// One trial in so many goes on after each rung, for as many times the epochs.
    pub keep_one_in: u32,
    /// Epochs of the first rung.
    pub first_epochs: u32,
    /// GPUs of each trial, for policies that leave it to users.
    pub replicas: u32,
    /// Total batch of each trial; likewise.
    pub batch_size: u32,
    /// Seed of the qualities.
    pub seed: u64,
}

/// What became of a sweep under a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepOutcome {
    /// What the policy is called.
    pub policy: String,
    /// By number.
    pub trials: Vec<TrialOutcome>,
    /// In the order in which they ended; the last is the end of the sweep.
    pub rungs: Vec<RungOutcome>,
    /// Number of the trial with the highest score.
    pub best: usize,
    /// Seconds until the last trial ended.
    pub makespan_s: f64,
    /// GPU-hours held by all trials.
    pub gpu_hours: f64,
    /// Hours for which nodes were paid.
    pub node_hours: f64,
    /// The cluster over time, where it was asked for.
    pub cluster: Vec<ClusterSample>,
}

/// What became of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialOutcome {
    /// What its settings are worth, from 0 to 1.
    pub quality: f64,
    /// Epochs it trained.
    pub epochs: u32,
    /// Its validation score after those.
    pub score: f64,
    /// When it was cancelled or complete.
    pub ended_s: f64,
    /// Changes of its allocation after the first.
    pub restarts: u32,
    /// GPU-seconds held.
    pub gpu_seconds: f64,
}

/// A rung that is over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RungOutcome {
    /// Trials that took part.
    pub trials: u32,
    /// Epochs that each had trained at its end.
    pub epochs: u32,
    /// When the last of them was there.
    pub finished_s: f64,
}

/// Runs a sweep to its end. `progress` is told the trials that are over.
pub fn simulate_sweep(
    settings: &SimulationSettings,
    applications: &ApplicationSet,
    sweep: &Sweep,
    progress: &mut dyn FnMut(usize),
) -> Result<SweepOutcome, SimulationError> {
    let application = applications.get(sweep.application);
    sweep.check(application)?;
    let workload = sweep.workload();
    let mut world = World::new(settings, applications, &workload)?;
    world.halving = Some(Halving::new(sweep, application.epochs()));
    world.run(progress)?;
    let halving = world.halving.take().expect("a sweep keeps its halving");
    let run = world.outcome(&workload);
    let summary = run.summary();
    let trial = |(idx, job): (usize, &JobOutcome)| {
        let (quality, epochs) = (halving.qualities[idx], halving.epochs[idx]);
        TrialOutcome {
            quality,
            epochs,
            score: score(quality, epochs, application.epochs()),
            ended_s: job.finished_s,
            restarts: job.restarts,
            gpu_seconds: job.gpu_seconds,
        }
    };
    let trials: Vec<TrialOutcome> = run.jobs.iter().enumerate().map(trial).collect();
    let best = (0..trials.len()).rev().max_by(|&a, &b| trials[a].score.total_cmp(&trials[b].score));
    Ok(SweepOutcome {
        policy: run.policy,
        trials,
        rungs: halving.rungs,
        best: best.unwrap_or(0),
        makespan_s: summary.makespan_s,
        gpu_hours: summary.gpu_hours,
        node_hours: run.node_hours,
        cluster: run.cluster,
    })
}

impl Sweep {
    fn check(&self, application: &Application) -> Result<(), SettingError> {
        let within = |name, value: u32, range: RangeInclusive<u32>, accepted| {
            if range.contains(&value) { Ok(()) } else { Err(SettingError { name, value: value.into(), accepted }) }
        };
        let epochs = 1..=application.epochs();
        within("trials", self.trials, 1..=100_000, "1 to 100000")?;
        within("one trial kept in", self.keep_one_in, 2..=100_000, "2 to 100000")?;
        within("epochs of the first rung", self.first_epochs, epochs, "1 to those of the application")?;
        within("replicas of a trial", self.replicas, 1..=u32::MAX, "1 or more")?;
        within("batch of a trial", self.batch_size, 1..=u32::MAX, "1 or more")
    }

    fn workload(&self) -> Workload {
        let trial = |number| WorkloadJob {
            name: format!("trial-{number}"),
            requested_replicas: self.replicas,
            requested_batch: self.batch_size,
            ..WorkloadJob::of(self.application)
        };
        let trials = (0..self.trials).map(trial).collect();
        Workload::new("sweep", Some(self.seed), trials).expect("as many trials as a workload may have, with names")
    }
}

/// Higher for a better quality, and for more epochs.
fn score(quality: f64, epochs: u32, epochs_max: u32) -> f64 {
    quality * (1.0 - (-LEARNING_SPEED * f64::from(epochs) / f64::from(epochs_max)).exp())
}
