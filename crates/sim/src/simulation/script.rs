//! A world in which what happens when is written down beforehand: jobs of every kind, nodes that come and go.

use pollux_engine::{Engine, Event};
use pollux_job::JobSpec;
use pollux_model::BatchMode;
use pollux_policy::{JobId, NodeId, Timestamp};

use super::error::SimulationError;
use super::job::SimJob;
use super::queue::SimEvent;
use super::run::{World, id_of};
use super::settings::SimulationSettings;
use crate::{ApplicationName, ApplicationSet, NodeGroup};

/// What happens. The cluster of the settings is there from the start.
#[derive(Clone, Debug)]
pub struct Script {
    /// How everything is run.
    pub settings: SimulationSettings,
    /// In order of submission.
    pub jobs: Vec<ScriptedJob>,
    /// What else happens, and when.
    pub lines: Vec<(Timestamp, ScriptedEvent)>,
}

/// A job as its user submits it, and what becomes of it.
#[derive(Clone, Debug)]
pub struct ScriptedJob {
    /// When.
    pub submitted: Timestamp,
    /// What is asked for.
    pub spec: JobSpec,
    /// What it trains.
    pub application: ApplicationName,
    /// A replica ends so many seconds after every launch: the job is broken.
    pub fails_after_s: Option<f64>,
}

/// What happens to a cluster. Nodes are counted in the order in which they joined, jobs in that of submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptedEvent {
    /// A node joins.
    Join {
        /// What it is like.
        node: NodeGroup,
    },
    /// A node is gone, with all that is on it.
    Lose {
        /// Which node.
        node: usize,
    },
    /// A node is to be emptied.
    Drain {
        /// Which node.
        node: usize,
    },
    /// A node takes replicas again.
    Undrain {
        /// Which node.
        node: usize,
    },
    /// A user sets a job aside.
    Pause {
        /// Which job.
        job: usize,
    },
    /// A user lets it go on.
    Resume {
        /// Which job.
        job: usize,
    },
}

/// What a round decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRound {
    /// When.
    pub at: Timestamp,
    /// Who gets what, in order of submission; jobs that get nothing are left out.
    pub shares: Vec<PlannedShare>,
}

/// What a round gives a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedShare {
    /// Which job.
    pub job: usize,
    /// Nodes with their replicas.
    pub places: Vec<(usize, u32)>,
    /// The job whose GPUs it uses as a guest.
    pub guest_of: Option<usize>,
}

/// What came of a script.
#[derive(Clone, Debug)]
pub struct ScriptOutcome {
    /// All rounds, in order.
    pub rounds: Vec<PlannedRound>,
    /// When every job first got GPUs, and when it was over; in order of submission.
    pub jobs: Vec<ScriptedLife>,
}

/// When things happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptedLife {
    /// It first got GPUs.
    pub started: Option<Timestamp>,
    /// It was over.
    pub ended: Option<Timestamp>,
}

/// What a world needs to follow a script.
pub(super) struct Stage<'a> {
    lines: &'a [(Timestamp, ScriptedEvent)],
    rounds: Vec<PlannedRound>,
    started: Vec<Option<Timestamp>>,
}

/// Plays a script until all of its jobs are over, or `until`.
pub fn play(
    script: &Script,
    applications: &ApplicationSet,
    until: Timestamp,
) -> Result<ScriptOutcome, SimulationError> {
    let settings = &script.settings;
    settings.check()?;
    let engine = Engine::new(settings.engine(script.jobs.len()), &settings.policy)?;
    let mode = |job: &ScriptedJob| {
        let baseline = applications.get(job.application).limits().batch_size_baseline();
        match settings.policy.adapts_batches() {
            true => BatchMode::Adaptive,
            false => BatchMode::Fixed { batch_size: Some(job.spec.batch_size.unwrap_or(baseline)) },
        }
    };
    let jobs = script.jobs.iter().enumerate().map(|(idx, job)| {
        let sim_job = SimJob::new(id_of(idx), applications.get(job.application), mode(job), settings);
        let mut sim_job = sim_job.on_types(applications.on_types(job.application), settings);
        sim_job.fails_after_s = job.fails_after_s;
        sim_job
    });
    let mut world = World::around(engine, settings, jobs.collect());
    world.submissions = script.jobs.iter().map(|job| job.spec.clone()).collect();
    world.awaited = (0..script.jobs.len()).collect();
    let started = vec![None; script.jobs.len()];
    world.stage = Some(Stage { lines: &script.lines, rounds: Vec::new(), started });
    for (idx, job) in script.jobs.iter().enumerate() {
        world.queue.push(job.submitted, SimEvent::Submitted { job: idx });
    }
    for (line, &(at, _)) in script.lines.iter().enumerate() {
        world.queue.push(at, SimEvent::Scripted { line });
    }
    for node in settings.first_nodes() {
        world.add_node(node);
    }
    while !world.awaited.is_empty() && world.now < until {
        world.turn()?;
    }
    let ended: Vec<Option<Timestamp>> = world.jobs.iter().map(|job| job.finished).collect();
    let stage = world.stage.expect("it was given one");
    let lives = stage.started.into_iter().zip(ended).map(|(started, ended)| ScriptedLife { started, ended });
    Ok(ScriptOutcome { rounds: stage.rounds, jobs: lives.collect() })
}

impl World<'_> {
    /// Lets happen what a line of the script says.
    pub(super) fn follow(&mut self, line: usize) {
        let Some((_, event)) = self.stage.as_ref().and_then(|stage| stage.lines.get(line)) else { return };
        match *event {
            ScriptedEvent::Join { ref node } => self.add_node(node),
            ScriptedEvent::Lose { node } => {
                self.lose(node);
            }
            ScriptedEvent::Drain { node } => self.deliver(Event::NodeDrain { node: self.nodes[node].0 }),
            ScriptedEvent::Undrain { node } => self.deliver(Event::NodeUndrain { node: self.nodes[node].0 }),
            ScriptedEvent::Pause { job } => self.deliver(Event::Pause { job: id_of(job) }),
            ScriptedEvent::Resume { job } => self.deliver(Event::Resume { job: id_of(job) }),
        }
        self.interfere();
    }

    /// Writes down what the round of this moment decided, and who starts with it.
    pub(super) fn note_plan(&mut self) {
        let Some(stage) = &mut self.stage else { return };
        let Some((at, plan)) = self.engine.last_plan() else { return };
        let node_of = |id: NodeId| self.nodes.iter().position(|&(node, _)| node == id).unwrap_or(usize::MAX);
        let number = |id: JobId| id.0 as usize;
        let given = plan.assignments.iter().filter(|assignment| !assignment.allocation.is_empty());
        let mut shares: Vec<PlannedShare> = given
            .map(|assignment| PlannedShare {
                job: number(assignment.job),
                places: assignment.allocation.iter().map(|(node, replicas)| (node_of(node), replicas)).collect(),
                guest_of: assignment.guest_of.map(number),
            })
            .collect();
        shares.sort_by_key(|share| share.job);
        for share in &shares {
            stage.started[share.job].get_or_insert(at);
        }
        stage.rounds.push(PlannedRound { at, shares });
    }
}
