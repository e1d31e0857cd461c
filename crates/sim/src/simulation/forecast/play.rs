use std::collections::{BTreeMap, VecDeque};

use pollux_engine::{Command, Engine, EngineSettings, Event, Node};
use pollux_job::{JobSpec, Phase, Work};
use pollux_policy::{Binding, JobId, PolicySettings, Timestamp};

use super::super::run::World;
use super::super::settings::SimulationSettings;
use super::trainees::{ForecastJob, restart_s};
use super::{Change, Cut, Forecast, ForecastError, JobForecast, LiveCluster, Newcomer, Training, Unforeseen};
use crate::{ApplicationName, ClusterSpec, NodeGroup, Parametric, SimulationError};

/// A year: nothing beyond is forecast.
const HORIZON_S: f64 = 31_536_000.0;
/// After so many turns in which no job came nearer to its end, those that wait will wait for ever.
const STALLED_TURNS: u32 = 1_000;
/// Turns after the last end that is known, in which those that wait may still get what was freed.
const TURNS_AFTER: u32 = 10;

/// Plays a live cluster to its end with all changes made now, in their order. `go_on` is asked at every turn.
pub fn forecast(
    cluster: &LiveCluster,
    changes: &[Change],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Forecast, ForecastError> {
    let policy = changes.iter().rev().find_map(Change::policy).unwrap_or(&cluster.policy);
    if policy.needs_oracle() {
        return Err(ForecastError::NeedsOracle { policy: policy.name() });
    }
    let engine_settings = EngineSettings { ended_jobs_max: usize::MAX, ..cluster.settings };
    let engine = Engine::restore(engine_settings, policy, cluster.state.clone())?;
    let settings = SimulationSettings {
        restart_delay_s: restart_s(None, &engine_settings),
        ..SimulationSettings::new(policy.clone(), shape(&engine)?)
    };
    let mut trainees: Vec<ForecastJob> =
        engine.jobs().map(|job| ForecastJob::live(job, &engine, policy, &engine_settings)).collect();
    let live = trainees.len();
    let mut id = engine.last_job().unwrap_or_default();
    for newcomer in changes.iter().filter_map(Change::newcomer) {
        id = JobId(id.0 + 1);
        trainees.push(ForecastJob::newcomer(id, newcomer, policy, &engine_settings)?);
    }
    let jobs = trainees.iter().map(|trainee| trainee.sim_job(&settings)).collect();
    let mut world = World::around(engine, &settings, jobs);
    world.now = cluster.now;
    let ended: Vec<bool> = world.engine.jobs().map(|job| job.phase().is_ended()).collect();
    world.take_over();
    world.change(changes, live)?;
    let mut outlooks: Vec<Result<(), Unforeseen>> = trainees.iter().map(|trainee| trainee.outlook).collect();
    for (idx, outlook) in outlooks.iter_mut().enumerate() {
        match world.engine.job(world.jobs[idx].id).map(pollux_engine::Job::phase) {
            Some(Phase::Paused) => *outlook = Err(Unforeseen::Paused),
            Some(phase) if !phase.is_ended() => {}
            Some(_) | None => *outlook = Err(Unforeseen::Cancelled),
        }
    }
    world.awaited = (0..outlooks.len()).filter(|&idx| outlooks[idx].is_ok()).collect();
    let mut starts = Starts::of(&world);
    let played = world.play(cluster.now.after_s(HORIZON_S), &mut starts, go_on)?;
    let completion_s = |idx: usize| {
        outlooks[idx]?;
        let job = &world.jobs[idx];
        if let Some(reason) = &job.failure {
            return Err(Unforeseen::of(reason));
        }
        let finished = job.finished.map(|at| at.since_s(cluster.now));
        finished.ok_or_else(|| played.cut.map_or_else(|| world.why_waits(idx), |_| Unforeseen::Cut))
    };
    let is_told = |idx: &usize| !ended.get(*idx).is_some_and(|ended| *ended);
    let told = (0..trainees.len()).filter(is_told);
    Ok(Forecast {
        jobs: told
            .map(|idx| JobForecast {
                id: world.jobs[idx].id,
                completion_s: completion_s(idx),
                start_s: starts.seen.get(&idx).map(|at| at.since_s(cluster.now)),
            })
            .collect(),
        horizon_s: played.until.since_s(cluster.now),
        gpu_utilisation: played.gpu_utilisation,
        cut: played.cut,
    })
}

/// When jobs that have no GPUs get some.
struct Starts {
    waiting: Vec<usize>,
    seen: BTreeMap<usize, Timestamp>,
}

impl Starts {
    fn of(world: &World<'_>) -> Self {
        let phase = |idx: usize| world.engine.job(world.jobs[idx].id).map(pollux_engine::Job::phase);
        let waits = |idx: &usize| phase(*idx) == Some(Phase::Queued) && !has_gpus(world, *idx);
        Self { waiting: (0..world.jobs.len()).filter(waits).collect(), seen: BTreeMap::new() }
    }

    fn look(&mut self, world: &World<'_>) {
        let seen = &mut self.seen;
        self.waiting.retain(|&idx| {
            let starts = has_gpus(world, idx);
            if starts {
                seen.insert(idx, world.now);
            }
            !starts
        });
    }
}

fn has_gpus(world: &World<'_>, idx: usize) -> bool {
    world.engine.job(world.jobs[idx].id).is_some_and(|job| !job.group().is_empty())
}

/// What came of playing.
struct Played {
    cut: Option<Cut>,
    /// When the last end was seen that is known, unless it was cut short before.
    until: Timestamp,
    gpu_utilisation: Option<f64>,
}

impl World<'_> {
    /// Why a job that could go on never did.
    fn why_waits(&self, idx: usize) -> Unforeseen {
        let id = self.jobs[idx].id;
        if let Some(dependency) = self.engine.job(id).and_then(|job| job.waits_for().first()) {
            return Unforeseen::Waits { job: dependency.job };
        }
        let obstacle = self.engine.view(self.now, |view| {
            let job = view.jobs.iter().find(|job| job.id == id)?;
            view.obstacle(job, job.fewest())
        });
        match obstacle {
            None if self.engine.jobs().any(|job| !job.group().is_empty()) => Unforeseen::Held,
            None => Unforeseen::NoGpus,
            Some(Binding::NoSuchType) => Unforeseen::NoSuchType,
            Some(Binding::TooLargeForANode) => Unforeseen::TooLarge { resource: "GPUs" },
            Some(Binding::NotEnoughCpus) => Unforeseen::TooLarge { resource: "CPUs" },
            Some(Binding::NotEnoughMemory) => Unforeseen::TooLarge { resource: "memory" },
            // Nothing else keeps a job from all nodes at once.
            Some(_) => {
                let needed = |job: &pollux_engine::Job| job.spec().fewest().saturating_mul(job.spec().gpus_per_replica);
                let needed = self.engine.job(id).map_or(0, needed);
                Unforeseen::TooFewGpus { needed, usable: self.engine.usable_gpus() }
            }
        }
    }

    /// Carries on with what the engine has under way.
    pub(super) fn take_over(&mut self) {
        if self.engine.jobs().any(|job| job.guest_of().is_some()) {
            self.sharing = Some(self.settings.policy.sharing());
        }
        let mut training = Vec::new();
        for (idx, job) in self.engine.jobs().enumerate().filter(|(_, job)| !job.phase().is_ended()) {
            self.live.insert(idx);
            let sim_job = &mut self.jobs[idx];
            (sim_job.revision, sim_job.allocation) = (job.revision(), job.group().clone());
            if job.phase() == Phase::Running {
                // What it has done since its last words counts.
                let told = job.report().map_or(self.now, |received| received.at);
                training.push((idx, told.max(job.phase_since()).min(self.now)));
            }
        }
        for (idx, since) in training {
            self.begin(idx, since);
        }
        let mut commands = Vec::new();
        self.engine.outstanding(&mut commands);
        let mut released = VecDeque::new();
        for command in commands {
            match command {
                // Who leaves has stopped training already.
                Command::Stop { job, revision, allocation, .. } => {
                    released.push_back(Event::ReplicasReleased { job, revision, allocation });
                }
                Command::Launch { .. }
                | Command::Resize { .. }
                | Command::Refused(_)
                | Command::PlanRejected { .. } => {
                    self.apply(command, &mut released);
                }
            }
        }
        for event in released {
            self.deliver(event);
        }
    }

    /// Makes all changes; `newcomer` is where the first new job is.
    fn change(&mut self, changes: &[Change], mut newcomer: usize) -> Result<(), ForecastError> {
        for change in changes {
            match change {
                Change::Submit(new) => {
                    self.live.insert(newcomer);
                    self.deliver(Event::JobSubmitted { job: self.jobs[newcomer].id, spec: new.declared() });
                    newcomer += 1;
                }
                Change::AddNodes { count, gpus, gpu_type } => {
                    // A machine of a known type has what the others of it have.
                    let known = self.engine.gpu_type(gpu_type);
                    let alike = self.engine.nodes().find(|node| Some(node.gpu_type()) == known);
                    let (cpus, memory) = alike.map_or((None, None), |node| (node.cpus(), node.memory()));
                    for _ in 0..*count {
                        let node = self.next_node();
                        self.deliver(Event::NodeJoined { node, gpus: *gpus, gpu_type: gpu_type.clone(), cpus, memory });
                    }
                }
                Change::Drain(node) => self.deliver(Event::NodeDrain { node: *node }),
                Change::Policy(_) => {}
                Change::Cancel(job) => {
                    self.deliver(Event::Cancel { job: *job });
                    self.live.retain(|&idx| self.jobs[idx].id != *job);
                }
                Change::Pause(job) => self.deliver(Event::Pause { job: *job }),
                Change::Resume(job) => self.deliver(Event::Resume { job: *job }),
            }
            if let Some(refusal) = self.plan_error.take() {
                return Err(ForecastError::Refused(refusal));
            }
        }
        self.interfere();
        Ok(())
    }

    fn play(
        &mut self,
        until: Timestamp,
        starts: &mut Starts,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Played, SimulationError> {
        let (began, mut held_gpu_s, mut gpu_s) = (self.now, 0.0, 0.0);
        let mut idle_turns = 0;
        let mut cut = None;
        while !self.awaited.is_empty() && idle_turns < STALLED_TURNS && cut.is_none() {
            let before = self.now;
            let held: u32 = self.engine.nodes().map(Node::gpus_held).sum();
            let gpus = self.engine.usable_gpus();
            idle_turns = if self.queue.peek().is_none() { idle_turns + 1 } else { 0 };
            match self.turn() {
                Err(SimulationError::Endless { .. }) => idle_turns = STALLED_TURNS,
                outcome => outcome?,
            }
            starts.look(self);
            held_gpu_s += f64::from(held) * self.now.since_s(before);
            gpu_s += f64::from(gpus) * self.now.since_s(before);
            cut = match go_on() {
                _ if self.awaited.is_empty() => None,
                _ if self.now >= until => Some(Cut::Horizon),
                true => None,
                false => Some(Cut::Patience),
            };
        }
        let (took_time, ended) = (self.now > began && gpu_s > 0.0, self.now);
        let mut turns = 0;
        while cut.is_none() && turns < TURNS_AFTER && !starts.waiting.is_empty() && self.now < until && go_on() {
            let waiting = starts.waiting.len();
            match self.turn() {
                Err(SimulationError::Endless { .. }) => break,
                outcome => outcome?,
            }
            starts.look(self);
            turns = if starts.waiting.len() < waiting { 0 } else { turns + 1 };
        }
        // A node that is being emptied is held and not usable.
        Ok(Played { cut, until: ended, gpu_utilisation: took_time.then(|| (held_gpu_s / gpu_s).min(1.0)) })
    }
}

impl Change {
    const fn policy(&self) -> Option<&PolicySettings> {
        match self {
            Self::Policy(policy) => Some(policy),
            Self::Submit(_)
            | Self::AddNodes { .. }
            | Self::Drain(_)
            | Self::Cancel(_)
            | Self::Pause(_)
            | Self::Resume(_) => None,
        }
    }

    fn newcomer(&self) -> Option<&Newcomer> {
        match self {
            Self::Submit(newcomer) => Some(newcomer),
            Self::AddNodes { .. }
            | Self::Drain(_)
            | Self::Policy(_)
            | Self::Cancel(_)
            | Self::Pause(_)
            | Self::Resume(_) => None,
        }
    }
}

impl Newcomer {
    /// What its user would ask for; an application's work is known even if it is not said.
    fn declared(&self) -> JobSpec {
        let of_application = |name: ApplicationName| Work::Epochs(Parametric::shipped(name).profile().epochs);
        let known = match self.training {
            Training::Application(name) => Some(of_application(name)),
            Training::Like { .. } => None,
        };
        JobSpec { work: self.spec.work.or(known), ..self.spec.clone() }
    }
}

/// The nodes of a cluster, one by one.
fn shape(engine: &Engine) -> Result<ClusterSpec, ForecastError> {
    let groups: Vec<NodeGroup> = engine
        .nodes()
        .map(|node| {
            let (cpus, memory) = (node.cpus(), node.memory());
            NodeGroup { cpus, memory, ..NodeGroup::of_gpus(1, node.gpus()) }
        })
        .collect();
    if groups.is_empty() {
        return Err(ForecastError::NoNodes);
    }
    Ok(ClusterSpec::new(groups)?)
}
