use pollux_job::{JobId, Phase};
use pollux_model::GpuTypeName;
use pollux_policy::{
    ClusterView, NodeId, PlacementRules, Plan, PolicySettings, PolicyState, SucceededJob, Timestamp, TypeProfile,
};

use crate::gpu_types::GpuTypes;
use crate::node::Nodes;
use crate::planning::job_views;
use crate::rounds::RoundTimes;
use crate::saved::{MeasuredType, SavedApplication};
use crate::type_knowledge::Known;
use crate::{Command, Engine, EngineSettings, Event, Job, Node, SavedJob, SavedNode, SettingsError};

/// Everything an engine knows, and what its policy remembers: plain data that outlives the process. Whoever writes it to a
/// disk has a format of its own for that, so that this may change.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineState {
    /// The latest moment seen.
    pub now: Timestamp,
    /// Jobs that are not over, by number.
    pub jobs: Vec<SavedJob>,
    /// The highest number that a job has had.
    pub last_job: Option<JobId>,
    /// Nodes that are not lost, by number.
    pub nodes: Vec<SavedNode>,
    /// The highest number that a node has had.
    pub last_node: Option<NodeId>,
    /// Types of GPU, in the order of the numbers that policies know them by.
    pub gpu_types: Vec<GpuTypeName>,
    /// Compute time on the second type against that on the first, as jobs measured that ran on both.
    pub type_ratios: Vec<(GpuTypeName, GpuTypeName, f64)>,
    /// What is known of applications, by name.
    pub applications: Vec<SavedApplication>,
    /// Rounds that were and will be.
    pub rounds: RoundTimes,
    /// Jobs that succeeded since the last round.
    pub succeeded: Vec<SucceededJob>,
    /// How the last jobs ended, the latest last.
    pub outcomes: Vec<(JobId, Phase)>,
    /// What the policy remembers, if it remembers anything.
    pub policy: Option<PolicyState>,
}

impl Engine {
    /// All it knows. Jobs that are over are to be taken before.
    pub fn state(&self) -> EngineState {
        let name = |number| self.gpu_types.name(number).cloned();
        let named = |(from, to, ratio)| Some((name(from)?, name(to)?, ratio));
        EngineState {
            now: self.now,
            jobs: self.jobs.values().map(Job::saved).collect(),
            last_job: self.last_job,
            nodes: self.nodes.iter().map(|node| node.saved(&self.gpu_types)).collect(),
            last_node: self.nodes.last(),
            gpu_types: self.gpu_types.names().to_vec(),
            type_ratios: self.type_knowledge.ratios().filter_map(named).collect(),
            applications: self.applications(),
            rounds: self.rounds.times(),
            succeeded: self.succeeded.clone(),
            outcomes: self.outcomes.iter().copied().collect(),
            policy: self.policy.save(),
        }
    }

    /// An engine that knows what another knew, perhaps under another policy or other settings. What another policy
    /// remembered is dropped.
    pub fn restore(
        settings: EngineSettings,
        policy: &PolicySettings,
        state: EngineState,
    ) -> Result<Self, SettingsError> {
        let mut engine = Self::new(settings, policy)?;
        engine.now = state.now;
        engine.gpu_types = GpuTypes::from_names(state.gpu_types);
        let types = &mut engine.gpu_types;
        let numbered = |(from, to, ratio)| Some((types.number(&from)?, types.number(&to)?, ratio));
        engine.type_knowledge.resume(state.type_ratios.into_iter().filter_map(numbered));
        for application in state.applications {
            engine.type_knowledge.resume_application(application.name.clone(), known(application, types));
        }
        let nodes = state.nodes.into_iter().map(|node| Node::restored(node, types)).collect();
        let restored = |job: SavedJob| (job.id, Job::restored(job, &engine.gpu_types, &engine.type_knowledge));
        engine.jobs = state.jobs.into_iter().map(restored).collect();
        engine.share_what_was_measured();
        engine.timers = engine.jobs.values().filter_map(|job| Some((job.timer?, job.id))).collect();
        engine.deadlines = engine.jobs.values().filter_map(|job| Some((job.deadline?, job.id))).collect();
        engine.index_dependents();
        engine.last_job = state.last_job;
        engine.nodes = Nodes::restored(nodes, state.last_node);
        engine.rounds.resume(state.rounds);
        engine.succeeded = state.succeeded;
        engine.outcomes = state.outcomes.into();
        let _is_of_this_policy = state.policy.is_some_and(|memory| engine.policy.restore(memory));
        Ok(engine)
    }

    fn applications(&self) -> Vec<SavedApplication> {
        let saved = |(name, known): (&String, &Known)| {
            let measured = |profile: &TypeProfile| {
                let TypeProfile { gpu_type, goodput, replicas_profiled, is_estimated: _ } = *profile;
                let gpu_type = self.gpu_types.name(gpu_type)?.clone();
                Some(MeasuredType { gpu_type, goodput, replicas_profiled })
            };
            SavedApplication {
                name: name.clone(),
                seen: known.seen,
                types: known.profiles.iter().filter_map(measured).collect(),
                epoch_samples: known.epoch_samples,
                ended: known.ended.clone(),
            }
        };
        self.type_knowledge.applications().map(saved).collect()
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
        self.share_what_was_measured();
        if self.policy_remembers && policy == Some(self.policy.name()) {
            self.remember_round();
        }
        // What another policy promised is not to be judged by the rules of this one.
        let rules = PlacementRules { one_multi_node_job_per_node: false };
        let checked = plan.map(|plan| self.view_with(self.now, true, |view| plan.check(view, rules)).map(|()| plan));
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
        let jobs = job_views(&self.jobs, self.now, false, self.settings.restart_cost_default_s);
        let view =
            ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &self.succeeded, gpu_types: self.gpu_types.names() };
        drop(self.policy.plan(self.now, &view));
    }
}

/// What was measured on types that are known.
fn known(saved: SavedApplication, types: &GpuTypes) -> Known {
    let profile = |MeasuredType { gpu_type, goodput, replicas_profiled }| {
        let gpu_type = types.number(&gpu_type)?;
        Some(TypeProfile { gpu_type, goodput, replicas_profiled, is_estimated: false })
    };
    let mut profiles: Vec<TypeProfile> = saved.types.into_iter().filter_map(profile).collect();
    profiles.sort_by_key(|profile| profile.gpu_type);
    profiles.dedup_by_key(|profile| profile.gpu_type);
    Known { profiles, ended: saved.ended, epoch_samples: saved.epoch_samples, seen: saved.seen }
}
