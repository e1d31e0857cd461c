use std::collections::{BTreeMap, BTreeSet};

use pollux_model::GpuTypeName;
use pollux_policy::{ClusterView, JobId, PlacementRules, Plan, PolicySettings, PolicyState, SucceededJob, Timestamp};
use thiserror::Error;

use crate::gpu_types::GpuTypes;
use crate::node::Nodes;
use crate::planning::job_views;
use crate::rounds::RoundTimes;
use crate::{Command, Engine, EngineSettings, Event, Job, SettingsError};

const STATE_VERSION: u32 = 1;

/// Everything an engine knows, and what its policy remembers: plain data that outlives the process.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct EngineState {
    version: u32,
    now: Timestamp,
    jobs: Vec<Job>,
    last_job: Option<JobId>,
    nodes: Nodes,
    /// Empty in a state of version 0.1, which only numbered them.
    #[cfg_attr(feature = "serde", serde(default))]
    gpu_types: GpuTypes,
    rounds: RoundTimes,
    succeeded: Vec<SucceededJob>,
    #[cfg_attr(feature = "serde", serde(default))]
    policy: Option<PolicyState>,
}

/// Why a saved state cannot be carried on with.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum StateError {
    /// Saved by another version of the program.
    #[error("state of version {found}: accepted is version {supported}")]
    Version {
        /// Its version.
        found: u32,
        /// What can be read.
        supported: u32,
    },
    /// Settings that no cluster can be run with.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl EngineState {
    /// Names the types of GPU in a state of version 0.1, which only numbered them; others know their names.
    pub fn name_gpu_types(&mut self, names: Vec<GpuTypeName>) {
        if self.gpu_types.is_empty() {
            self.gpu_types = GpuTypes::from_names(names);
        }
    }
}

impl Engine {
    /// All it knows. Jobs that are over are to be taken before.
    pub fn state(&self) -> EngineState {
        EngineState {
            version: STATE_VERSION,
            now: self.now,
            jobs: self.jobs.values().cloned().collect(),
            last_job: self.last_job,
            nodes: self.nodes.clone(),
            gpu_types: self.gpu_types.clone(),
            rounds: self.rounds.times(),
            succeeded: self.succeeded.clone(),
            policy: self.policy.save(),
        }
    }

    /// An engine that knows what another knew, perhaps under another policy or other settings. What another policy
    /// remembered is dropped.
    pub fn restore(settings: EngineSettings, policy: &PolicySettings, state: EngineState) -> Result<Self, StateError> {
        if state.version != STATE_VERSION {
            return Err(StateError::Version { found: state.version, supported: STATE_VERSION });
        }
        let mut engine = Self::new(settings, policy)?;
        engine.now = state.now;
        engine.gpu_types = state.gpu_types;
        for node in state.nodes.iter() {
            engine.gpu_types.cover(node.gpu_type());
        }
        let relearned = state.jobs.into_iter().map(|job| (job.id, job.relearned(&engine.gpu_types)));
        engine.jobs = relearned.collect::<BTreeMap<_, _>>();
        engine.timers = engine.jobs.values().filter_map(|job| Some((job.timer?, job.id))).collect::<BTreeSet<_>>();
        engine.last_job = state.last_job;
        engine.nodes = state.nodes;
        engine.rounds.resume(state.rounds);
        engine.succeeded = state.succeeded;
        let _is_of_this_policy = state.policy.is_some_and(|memory| engine.policy.restore(memory));
        Ok(engine)
    }

    /// Like [`Self::step`], for an event of the past: its rounds are told by [`Self::replay_round`], because a policy
    /// that starts anew might plan otherwise. The commands have been given before.
    pub fn replay(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        if event == Event::Tick {
            self.now = self.now.max(now);
            self.expire_timers(out);
        } else {
            self.step(now, event, out);
        }
    }

    /// A round of the past, the policy that was asked in it, and what came of it; nothing, if its plan could not be
    /// used. Under other settings than those of the past a plan may not fit any more: it is left out, and the next round
    /// decides.
    pub fn replay_round(&mut self, now: Timestamp, policy: Option<&str>, plan: Option<Plan>, out: &mut Vec<Command>) {
        self.now = self.now.max(now);
        if self.policy_remembers && policy == Some(self.policy.name()) {
            self.remember_round();
        }
        // What another policy promised is not to be judged by the rules of this one.
        let rules = PlacementRules { one_multi_node_job_per_node: false };
        let checked = plan.map(|plan| self.view(self.now, |view| plan.check(view, rules)).map(|()| plan));
        self.succeeded.clear();
        self.rounds.ran(self.now);
        match checked {
            None => {}
            Some(Ok(plan)) => self.adopt(plan, out),
            Some(Err(error)) => out.push(Command::PlanRejected { error }),
        }
    }

    /// Shows the policy what it saw then, for it to remember what it remembered then. What it plans is known already.
    fn remember_round(&mut self) {
        let nodes = self.nodes.views(self.now);
        let jobs = job_views(&self.jobs, self.now, self.settings.restart_cost_default_s);
        let view = ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &self.succeeded };
        drop(self.policy.plan(self.now, &view));
    }
}
