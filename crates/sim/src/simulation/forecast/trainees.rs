use pollux_agent::{AgentReport, Progress};
use pollux_engine::{Engine, EngineSettings, Job, declared_samples};
use pollux_job::{JobSpec, Work};
use pollux_model::{BatchMode, GpuTypeName};
use pollux_policy::{JobId, PolicySettings};

use super::super::job::SimJob;
use super::super::settings::SimulationSettings;
use super::{Newcomer, Training, Unforeseen};
use crate::{Application, ApplicationName, Parametric, PhysicsError, Profile, Reported};

/// What is known of a job, from which its future is made.
pub(super) struct ForecastJob {
    id: JobId,
    known: Known,
    /// What decides its batch.
    mode: BatchMode,
    /// Whether its end can be forecast, as far as it is up to the job.
    pub(super) outlook: Result<(), Unforeseen>,
}

enum Known {
    /// What it has told, if anything, and what it is on each kind of GPU.
    Told { report: Option<AgentReport>, kinds: Vec<(GpuTypeName, Application)>, pauses: Pauses },
    /// What nobody but the world knows.
    Application(Application),
}

/// Seconds that a job stands still: when it is started, and when it is resized in place, if it was ever seen to be.
#[derive(Clone, Copy)]
struct Pauses {
    restart_s: f64,
    resize_s: Option<f64>,
}

impl ForecastJob {
    /// A job that there is.
    pub(super) fn live(job: &Job, engine: &Engine, policy: &PolicySettings, settings: &EngineSettings) -> Self {
        let usage = job.usage(job.phase_since());
        let in_place_s = usage.restart_cost_s.filter(|_| usage.is_pause_known);
        let launch_s = usage.restart_cost_s.filter(|_| !usage.is_pause_known);
        let pauses = Pauses { restart_s: restart_s(launch_s, settings), resize_s: in_place_s };
        let report = job.report().map(|received| received.report.clone());
        let mut live = Self::told(job.id(), job.spec(), policy, report, pauses);
        live.estimate(engine);
        live
    }

    /// What the policy expects of it on kinds of GPU where it never ran is what it does there.
    fn estimate(&mut self, engine: &Engine) {
        let Known::Told { report: Some(report), kinds, .. } = &mut self.known else { return };
        let Some(Application::Reported(first)) = kinds.first().map(|(_, application)| application.clone()) else {
            return;
        };
        for (gpu_type, profile) in engine.profiles(self.id).filter(|(_, profile)| profile.is_estimated) {
            if kinds.iter().all(|(known, _)| known != gpu_type) {
                let on_type = Reported::estimated(report, &profile.goodput, first.progress_target());
                kinds.push((gpu_type.clone(), Application::Reported(on_type)));
            }
        }
    }

    /// A job that there could be.
    pub(super) fn newcomer(
        id: JobId,
        newcomer: &Newcomer,
        policy: &PolicySettings,
        settings: &EngineSettings,
    ) -> Result<Self, PhysicsError> {
        let spec = &newcomer.spec;
        match &newcomer.training {
            Training::Like { report, restart_cost_s } => {
                let pauses = Pauses { restart_s: restart_s(*restart_cost_s, settings), resize_s: None };
                Ok(Self::told(id, spec, policy, Some(from_the_beginning(report)), pauses))
            }
            Training::Application(name) => {
                let known = Known::Application(application(*name, spec.work)?);
                Ok(Self { id, known, mode: batch_mode(spec, policy), outlook: Ok(()) })
            }
        }
    }

    fn told(id: JobId, spec: &JobSpec, policy: &PolicySettings, report: Option<AgentReport>, pauses: Pauses) -> Self {
        let samples = spec.work.zip(report.as_ref()).and_then(|(work, report)| declared_samples(work, report));
        let outlook = match &report {
            None => Err(Unforeseen::NoReport),
            Some(report) if report.types.is_empty() => Err(Unforeseen::NoModel),
            Some(_) if samples.is_none() => Err(Unforeseen::NoWork),
            Some(_) => Ok(()),
        };
        let report = report.filter(|report| !report.types.is_empty());
        let kinds = report.as_ref().map_or_else(
            || vec![(GpuTypeName::default(), Application::Reported(Reported::unknown()))],
            |report| {
                let baseline = f64::from(report.limits.batch_size_baseline());
                let baseline_steps = samples.map_or(f64::INFINITY, |samples| samples / baseline);
                let on = |learned| Application::Reported(Reported::new(report, learned, baseline_steps));
                report.types.iter().map(|learned| (learned.gpu_type.clone(), on(learned))).collect()
            },
        );
        Self { id, known: Known::Told { report, kinds, pauses }, mode: batch_mode(spec, policy), outlook }
    }

    /// The job as the simulated world has it.
    pub(super) fn sim_job<'a>(&'a self, settings: &SimulationSettings) -> SimJob<'a> {
        match &self.known {
            Known::Told { report, kinds, pauses: Pauses { restart_s, resize_s } } => {
                SimJob::told(self.id, kinds, report.clone(), self.mode, *restart_s, *resize_s)
            }
            Known::Application(application) => SimJob::new(self.id, application, self.mode, settings),
        }
    }
}

/// What decides the batch of a job under a policy.
fn batch_mode(spec: &JobSpec, policy: &PolicySettings) -> BatchMode {
    BatchMode::of(policy.adapts_batches(), spec.batch_size)
}

/// Seconds that a job stands still for a change. One that takes longer than may be would never settle.
pub(super) fn restart_s(measured: Option<f64>, settings: &EngineSettings) -> f64 {
    measured.unwrap_or(settings.restart_cost_default_s).min(settings.settle_timeout_s / 2.0)
}

/// What a job would tell that trains like another one and has not begun.
fn from_the_beginning(report: &AgentReport) -> AgentReport {
    let mut fresh = AgentReport {
        progress: Progress::default(),
        samples_per_s: None,
        tuning: None,
        learning_rate_factor: 1.0,
        ..report.clone()
    };
    fresh.types.iter_mut().for_each(|learned| learned.replicas_profiled = 0);
    fresh
}

/// An application that trains for as long as is said.
fn application(name: ApplicationName, work: Option<Work>) -> Result<Application, PhysicsError> {
    let shipped = Parametric::shipped(name).profile().clone();
    let profile = match work {
        None => shipped,
        Some(Work::Epochs(epochs)) => Profile { epochs, ..shipped },
        Some(Work::BaselineSteps(steps)) => {
            let steps = steps as f64;
            let epochs = (steps / shipped.progress_per_epoch).ceil().max(1.0) as u32;
            Profile { epochs, progress_per_epoch: steps / f64::from(epochs), ..shipped }
        }
    };
    Ok(Application::Parametric(Parametric::new(profile)?))
}
