use pollux_agent::{Agent, AgentReport, Placement, StepObservation, Tuning};
use pollux_model::{BatchLimits, Goodput, GradientNorms};

/// Who chooses the batch of a job and speaks for it.
#[derive(Clone, Debug)]
pub(super) enum Brain {
    /// An agent that learns from what it sees.
    Learning(Box<Agent>),
    /// What an agent has told: it is taken at its word, and learns nothing more.
    Told(Box<AgentReport>),
    /// Nobody.
    Silent,
}

impl Brain {
    /// The job now runs on `placement`, where `told` is what is told or estimated of it, if anything is.
    pub(super) fn resize(&mut self, placement: Placement, told: Option<Goodput>) -> Option<Tuning> {
        match self {
            Self::Learning(agent) => agent.resize(placement).ok(),
            Self::Told(report) => {
                let replicas = placement.shape.replicas();
                if let Some(learned) = report.types.iter_mut().find(|learned| learned.gpu_type == placement.gpu_type) {
                    // What it has run on counts as measured, so that policies let it grow on.
                    learned.replicas_profiled = learned.replicas_profiled.max(replicas);
                }
                let best = told?.best(placement.shape).ok()?;
                report.tuning =
                    Some(Tuning { local_batch: best.local_batch, accumulation_steps: best.accumulation_steps });
                report.tuning
            }
            Self::Silent => None,
        }
    }

    /// The job is on GPUs of a type where these batches fit.
    pub(super) const fn set_limits(&mut self, limits: BatchLimits) {
        if let Self::Learning(agent) = self {
            agent.set_limits(limits);
        }
    }

    /// An epoch ended.
    pub(super) fn end_epoch(&mut self) -> Option<Tuning> {
        match self {
            Self::Learning(agent) => agent.end_epoch().ok().flatten(),
            Self::Told(report) => report.tuning,
            Self::Silent => None,
        }
    }

    /// A much better batch, if there is one by now. Who learns nothing has chosen the best already.
    pub(super) fn retune(&mut self) -> Option<Tuning> {
        match self {
            Self::Learning(agent) => agent.retune().ok().flatten(),
            Self::Told(_) | Self::Silent => None,
        }
    }

    /// The job runs on `placement` with a tuning that its user fixed.
    pub(super) fn run_fixed(&mut self, placement: Placement, tuning: Tuning) {
        match self {
            Self::Learning(agent) => agent.run_fixed(placement, tuning),
            Self::Told(report) => report.tuning = Some(tuning),
            Self::Silent => {}
        }
    }

    pub(super) fn advance(&mut self, steps: u64) {
        if let Self::Learning(agent) = self {
            agent.advance(steps);
        }
    }

    // Recorded values may be such that no agent would believe them; then it learns nothing from them.

    pub(super) fn observe_step(&mut self, observation: &StepObservation) {
        if let Self::Learning(agent) = self {
            drop(agent.observe_step(observation));
        }
    }

    pub(super) fn observe_rate(&mut self, samples_per_s: f64) {
        match self {
            Self::Learning(agent) => drop(agent.observe_rate(samples_per_s)),
            Self::Told(report) => report.samples_per_s = Some(samples_per_s),
            Self::Silent => {}
        }
    }

    pub(super) fn observe_gradients(&mut self, norms: &GradientNorms) {
        if let Self::Learning(agent) = self {
            agent.observe_gradients(norms);
        }
    }

    pub(super) fn observe_loss(&mut self, loss: f64) {
        if let Self::Learning(agent) = self {
            drop(agent.observe_loss(loss));
        }
    }

    /// What the scheduler may know of a training that has come so far.
    pub(super) fn report(&mut self, baseline_steps: f64) -> Option<AgentReport> {
        match self {
            Self::Learning(agent) => Some(agent.report()),
            Self::Told(report) => {
                report.progress.baseline_steps = baseline_steps;
                Some((**report).clone())
            }
            Self::Silent => None,
        }
    }
}
