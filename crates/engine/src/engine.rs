use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pollux_job::{JobId, JobSpec, Phase};
use pollux_model::{GpuType, GpuTypeName};
use pollux_policy::{NodeId, NodeResources, Plan, Policy, PolicySettings, SucceededJob, Timestamp};

use crate::gpu_types::GpuTypes;
use crate::node::Nodes;
use crate::rounds::Rounds;
use crate::type_knowledge::TypeKnowledge;
use crate::{Command, EngineSettings, Event, Job, Node, PlanChange, Refusal, SettingsError};

/// The state of a cluster.
pub struct Engine {
    pub(crate) settings: EngineSettings,
    pub(crate) policy: Box<dyn Policy + Send>,
    /// Whether what the policy plans depends on what it planned before.
    pub(crate) policy_remembers: bool,
    pub(crate) now: Timestamp,
    /// Jobs that wait, run or are paused, and ended ones whose replicas are not all gone; by number, which is the
    /// order of submission.
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// Jobs that are over, in the order in which their last replica went.
    pub(crate) ended: VecDeque<Job>,
    /// Since the last round.
    pub(crate) succeeded: Vec<SucceededJob>,
    pub(crate) last_job: Option<JobId>,
    pub(crate) nodes: Nodes,
    pub(crate) gpu_types: GpuTypes,
    /// Follows from what jobs reported.
    pub(crate) type_knowledge: TypeKnowledge,
    /// The timer of every job that has one.
    pub(crate) timers: BTreeSet<(Timestamp, JobId)>,
    /// The time limit of every job that holds GPUs and has one.
    pub(crate) deadlines: BTreeSet<(Timestamp, JobId)>,
    /// How the last jobs ended, the newest last.
    pub(crate) outcomes: VecDeque<(JobId, Phase)>,
    /// By the job that is waited for.
    pub(crate) dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    pub(crate) rounds: Rounds,
    pub(crate) last_plan: Option<(Timestamp, Plan)>,
    /// What the last plan that changed anything changed.
    pub(crate) last_changes: Option<(Timestamp, Vec<PlanChange>)>,
}

impl Engine {
    /// A cluster without nodes and jobs.
    pub fn new(settings: EngineSettings, policy: &PolicySettings) -> Result<Self, SettingsError> {
        policy.check()?;
        Self::with_policy(settings, policy.build())
    }

    /// A cluster under a policy that settings cannot name: an oracle in a simulator, a script in a test.
    pub fn with_policy(settings: EngineSettings, policy: Box<dyn Policy + Send>) -> Result<Self, SettingsError> {
        settings.check()?;
        let rounds = Rounds::new(&settings, policy.plans_on_events());
        Ok(Self {
            settings,
            policy_remembers: policy.save().is_some(),
            type_knowledge: TypeKnowledge::new(policy.shares_measurements()),
            policy,
            now: Timestamp::default(),
            jobs: BTreeMap::new(),
            ended: VecDeque::new(),
            succeeded: Vec::new(),
            last_job: None,
            nodes: Nodes::default(),
            gpu_types: GpuTypes::default(),
            timers: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            outcomes: VecDeque::new(),
            dependents: BTreeMap::new(),
            rounds,
            last_plan: None,
            last_changes: None,
        })
    }

    /// Takes an event in and adds what is to be done about it to `out`.
    pub fn step(&mut self, now: Timestamp, event: Event, out: &mut Vec<Command>) {
        self.now = self.now.max(now);
        let outcome = match event {
            Event::JobSubmitted { job, spec } => self.submit(job, spec, out),
            Event::Report { job, revision, report } => self.learn(job, revision, report),
            Event::OracleSet { job, oracle } => self.set_oracle(job, oracle),
            Event::GroupReady { job, revision, pause_s } => self.ready(job, revision, pause_s),
            Event::GroupSilent { job, revision } => self.silent(job, revision),
            Event::GroupPending { job, revision } => self.pending(job, revision),
            Event::GroupPlaced { job, revision } => self.placed(job, revision),
            Event::ReplicasReleased { job, revision, allocation } => self.released(job, revision, &allocation, out),
            Event::JobSucceeded { job, revision } => self.succeed(job, revision, out),
            Event::ReplicaFailed { job, revision, node, kind } => self.replica_failed(job, revision, node, kind, out),
            Event::LaunchFailed { job, revision, node, kind } => self.launch_failed(job, revision, node, kind, out),
            Event::NodeJoined { node, gpus, gpu_type, cpus, memory } => {
                self.join(node, NodeResources { gpus, cpus, memory }, gpu_type)
            }
            Event::NodeResources { node, cpus, memory } => self.change_resources(node, cpus, memory, out),
            Event::NodeLost { node } => self.lose(node, out),
            Event::NodeRetired { node } => self.retire_node(node, out),
            Event::NodeUnreachable { node } => self.unreachable(node, out),
            Event::NodeReachable { node } => self.reachable(node),
            Event::NodeEnds { node, end } => self.set_end(node, end, out),
            Event::NodeDrain { node } => self.drain(node, out),
            Event::NodeUndrain { node } => self.undrain(node),
            Event::Cancel { job } => self.cancel(job, out),
            Event::Pause { job } => self.pause(job, out),
            Event::Resume { job } => self.resume(job),
            Event::Tick => {
                self.tick(out);
                Ok(())
            }
        };
        if let Err(refusal) = outcome {
            out.push(Command::Refused(refusal));
        }
    }

    /// When the next [`Event::Tick`] is due; `None` while only other events can change anything.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|&(at, _)| at);
        timer.into_iter().chain(self.next_deadline()).chain(self.next_end()).chain(self.next_round()).min()
    }

    /// When the policy is asked next; `None` without jobs.
    pub fn next_round(&self) -> Option<Timestamp> {
        (!self.jobs.is_empty()).then(|| self.rounds.due())
    }

    /// Whether a job would be accepted now. One that is too large for the cluster is: nodes may join, and until then
    /// it waits with the reason [`pollux_policy::Binding::Impossible`].
    pub fn admit(&self, spec: &JobSpec) -> Result<(), Refusal> {
        spec.check()?;
        let limit = self.settings.live_jobs_max;
        if self.jobs.len() >= limit {
            return Err(Refusal::TooManyJobs { limit });
        }
        Ok(())
    }

    /// The latest moment seen.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Jobs that are not over, in the order of submission; ended ones stay until their last replica is gone.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.jobs.values()
    }

    /// A job that is not over.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// The highest number that a job has had.
    pub const fn last_job(&self) -> Option<JobId> {
        self.last_job
    }

    /// Jobs that are over and were not taken yet, in the order in which their last replica went.
    pub fn ended_jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.ended.iter()
    }

    /// Hands over the jobs that are over, and forgets them.
    pub fn take_ended_jobs(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.ended).into()
    }

    /// Nodes that are not lost, by number.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.nodes.iter()
    }

    /// A node that is not lost.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id)
    }

    /// The number of a type of GPU that a node has or had.
    pub fn gpu_type(&self, name: &GpuTypeName) -> Option<GpuType> {
        self.gpu_types.number(name)
    }

    /// The name of a type of GPU that a node has or had.
    pub fn gpu_type_name(&self, number: GpuType) -> Option<&GpuTypeName> {
        self.gpu_types.name(number)
    }

    /// The type of GPU under a job's group, if it has one.
    pub fn gpu_type_of(&self, id: JobId) -> Option<&GpuTypeName> {
        let (node, _) = self.jobs.get(&id)?.group.iter().next()?;
        self.gpu_types.name(self.nodes.get(node)?.gpu_type())
    }

    /// The highest number that a node has had.
    pub const fn last_node(&self) -> Option<NodeId> {
        self.nodes.last()
    }

    /// The name of the policy that makes its plans.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// The last plan that was carried out, and when.
    pub fn last_plan(&self) -> Option<(Timestamp, &Plan)> {
        self.last_plan.as_ref().map(|(at, plan)| (*at, plan))
    }

    /// What the last plan changed that was not the same as the one before, and when.
    pub fn last_changes(&self) -> Option<(Timestamp, &[PlanChange])> {
        self.last_changes.as_ref().map(|(at, changes)| (*at, changes.as_slice()))
    }

    /// When the last round was held, whatever came of it.
    pub const fn last_round(&self) -> Option<Timestamp> {
        self.rounds.last()
    }

    fn tick(&mut self, out: &mut Vec<Command>) {
        self.expire_timers(out);
        if self.next_round().is_some_and(|due| due <= self.now) {
            self.round(out);
        }
    }

    pub(crate) fn expire_timers(&mut self, out: &mut Vec<Command>) {
        while let Some(&(at, id)) = self.timers.first().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, id));
            self.timer_expired(id, out);
        }
        self.expire_deadlines(out);
        self.expire_nodes(out);
    }
}
