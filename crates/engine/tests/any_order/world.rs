use pollux_agent::{AgentReport, Progress, TypeReport};
use pollux_engine::{Engine, EngineSettings, EngineState, Event, FailureKind, Job, Node, Revision, Wait};
use pollux_job::{After, Dependency, Flexibility, JobId, JobSpec, Phase, PodsPer, Work};
use pollux_model::{BatchLimits, GpuTypeName, NoiseStatistics, StepParams, ThroughputModel};
use pollux_policy::{NodeEnd, NodeId, NodeResources, PolicySettings, Timestamp};

use crate::backend::Backend;
use crate::dice::Dice;
use crate::random_policy::RandomPolicy;

/// An engine, the processes it commands, and chance.
pub(crate) struct World {
    engine: Engine,
    /// Restored from what the other saved some time ago, and told since what that was told.
    shadow: Option<Engine>,
    settings: EngineSettings,
    /// None is a random one.
    policy: Option<PolicySettings>,
    backend: Backend,
    dice: Dice,
    now: Timestamp,
    jobs: u64,
    nodes: u32,
    memories_needed: u32,
    /// Whether its policy starts every job that fits, sooner or later.
    starts_all: bool,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let policies = PolicySettings::all();
        let policy =
            policies.get(dice.below(2 * policies.len() as u32) as usize).filter(|policy| !policy.needs_oracle());
        Self::under(policy, dice)
    }

    /// A world that is governed by a policy, or by chance.
    pub(crate) fn under(policy: Option<&PolicySettings>, mut dice: Dice) -> Self {
        let settings = EngineSettings {
            replans_on_events: dice.percent(50),
            settle_timeout_s: 200.0,
            backoff_max_s: 40.0,
            ended_jobs_max: 5,
            ..EngineSettings::default()
        };
        let engine = match policy {
            Some(policy) => Engine::new(settings, policy),
            None => Engine::with_policy(settings, Box::new(RandomPolicy { dice: Dice(dice.roll()) })),
        };
        let engine = engine.expect("settings are valid");
        let on_events = policy.is_some_and(PolicySettings::plans_on_events);
        let settings = EngineSettings { replans_on_events: settings.replans_on_events || on_events, ..settings };
        let backend = Backend::default();
        let mut world = Self {
            engine,
            shadow: None,
            settings,
            policy: policy.cloned(),
            backend,
            dice,
            now: Timestamp(0),
            jobs: 0,
            nodes: 0,
            memories_needed: 0,
            starts_all: policy == Some(&PolicySettings::Srtf),
        };
        for _ in 0..1 + world.dice.below(4) {
            world.join();
        }
        world
    }

    /// A world in which the driver tells of releases that were none, and much else that is not so.
    pub(crate) fn lied_to(seed: u64) -> Self {
        let mut world = Self::new(seed);
        world.backend.lied_about = true;
        world
    }

    pub(crate) fn live_through(mut self, events: u32) -> Self {
        for _ in 0..events {
            match self.dice.below(40) {
                0..=5 => self.submit(),
                6..=19 => self.pass(),
                20..=25 => self.hear_of_a_group(),
                26..=27 => self.join(),
                28 => self.lose(),
                29..=30 => self.tend_a_node(),
                31..=32 => self.order(),
                33 => self.save(),
                _ => self.say_nonsense(),
            }
        }
        self
    }

    /// The driver is killed: another reads what it saved, and is told what was told since.
    fn save(&mut self) {
        self.shadow = Some(self.restored(&self.engine));
    }

    /// Twins of the engine before a tick: one that was killed just now, having been killed before, and one whose policy
    /// forgot everything in that.
    fn restarted(&mut self, event: &Event) -> Option<(Engine, Engine)> {
        let is_asked = *event == Event::Tick && self.policy.is_some();
        let shadow = self.shadow.as_ref().filter(|_| is_asked && self.dice.percent(10))?;
        let twin = self.restored(shadow);
        let another = if twin.policy_name() == "fifo" { PolicySettings::Srtf } else { PolicySettings::Fifo };
        let forgetful = Engine::restore(self.settings, &another, twin.state()).expect("it was saved just now");
        Some((twin, self.restored(&forgetful)))
    }

    fn restored(&self, engine: &Engine) -> Engine {
        let policy = self.policy.as_ref().unwrap_or(&PolicySettings::Fifo);
        Engine::restore(self.settings, policy, saved(engine)).expect("it was saved just now")
    }

    /// How often a policy without memory would have planned otherwise.
    pub(crate) const fn memories_needed(&self) -> u32 {
        self.memories_needed
    }

    /// Faults cease. Soon all that is alive runs or waits for a reason, and once the jobs are done nothing is held.
    pub(crate) fn heal(mut self) {
        let mut outstanding = Vec::new();
        self.engine.outstanding(&mut outstanding);
        self.backend.recover(self.now, &outstanding, &mut self.dice);
        let unused = |node: &&Node| node.is_draining() || node.is_unreachable();
        for node in self.engine.nodes().filter(unused).map(Node::id).collect::<Vec<_>>() {
            self.step(Event::NodeUndrain { node });
            self.step(Event::NodeReachable { node });
        }
        let ending = self.engine.nodes().filter(|node| node.end().is_some());
        for node in ending.map(Node::id).collect::<Vec<_>>() {
            self.step(Event::NodeEnds { node, end: None });
        }
        self.settle();
        for _ in 0..40 {
            let running = self.engine.jobs().filter(|job| job.phase() == Phase::Running);
            for (job, revision) in running.map(|job| (job.id(), job.revision())).collect::<Vec<_>>() {
                self.step(Event::JobSucceeded { job, revision });
            }
            self.settle();
        }
        if let Some(shadow) = &self.shadow {
            shadow.check_invariants();
            assert_eq!(format!("{:?}", shadow.state()), format!("{:?}", self.engine.state()), "the past was another");
        }
        assert!(!self.engine.nodes().any(Node::is_retired), "a retired node is kept for nobody");
        let held: u32 = self.engine.nodes().map(Node::gpus_held).sum();
        let gpus = |job: &Job| job.per_replica().gpus_of(job.group().replicas());
        let running: u32 = self.engine.jobs().map(gpus).sum();
        assert_eq!(held, running, "GPUs are leaked");
        if self.starts_all {
            self.check_that_nobody_starves();
        }
    }

    /// A few rounds without faults, then until everything is told.
    fn settle(&mut self) {
        for _ in 0..3 {
            if let Some(wakeup) = self.engine.next_wakeup() {
                self.now = self.now.max(wakeup);
                self.step(Event::Tick);
            }
            while let Some(at) = self.backend.next_mail() {
                self.now = self.now.max(at);
                self.deliver_mail();
            }
        }
        assert!(self.backend.is_quiet());
        for job in self.engine.jobs() {
            assert!(job.leaving().is_empty(), "{job:?} never left");
            let processes = self.backend.groups.get(&job.id()).map(|group| group.replicas.clone());
            assert_eq!(*job.group(), processes.unwrap_or_default(), "{} has other processes", job.id());
            match self.engine.explain(job.id()).expect("it is in the table").wait {
                None => assert_eq!(job.phase(), Phase::Running),
                Some(Wait::Gpus | Wait::Resume | Wait::Round | Wait::Jobs) => {}
                Some(Wait::Backoff { until }) => assert!(until.since_s(self.now) <= 40.0),
                Some(wait @ (Wait::Release | Wait::Ready | Wait::Pending)) => {
                    panic!("{job:?} waits for {wait:?} for ever")
                }
            }
        }
    }

    fn check_that_nobody_starves(&self) {
        for job in self.engine.jobs().filter(|job| job.phase() != Phase::Paused && job.waits_for().is_empty()) {
            let types = &job.spec().gpu_types;
            let fits = |node: &Node| {
                let name = self.engine.gpu_type_name(node.gpu_type()).map(GpuTypeName::as_str);
                if !types.is_empty() && !types.iter().any(|allowed| Some(&**allowed) == name) {
                    return 0;
                }
                let has = NodeResources { gpus: node.gpus(), cpus: node.cpus(), memory: node.memory() };
                has.fits(job.per_replica())
            };
            let room: u32 = self.engine.nodes().map(fits).sum();
            assert!(job.spec().replicas > room, "{job:?} starves");
        }
    }

    fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        let round = self.engine.last_round();
        // One that was killed just now, and had been killed before.
        let twins = self.restarted(&event);
        self.engine.step(self.now, event.clone(), &mut out);
        self.engine.check_invariants();
        let planned = self.engine.last_plan().filter(|&(at, _)| Some(at) == self.engine.last_round());
        if let Some((mut twin, mut forgetful)) = twins {
            for engine in [&mut twin, &mut forgetful] {
                engine.step(self.now, Event::Tick, &mut Vec::new());
            }
            assert_eq!(twin.last_round(), self.engine.last_round());
            if self.engine.last_round() != round {
                assert_eq!(twin.last_plan(), planned, "after a restart {:?} plans otherwise", self.policy);
                self.memories_needed += u32::from(forgetful.last_plan() != planned);
            }
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.replay(self.now, event, &mut Vec::new());
            if self.engine.last_round() != round {
                let policy = self.policy.as_ref().map(PolicySettings::name);
                shadow.replay_round(self.now, policy, planned.map(|(_, plan)| plan.clone()), &mut Vec::new());
            }
        }
        for job in self.engine.jobs() {
            self.backend.gpus_per_replica.insert(job.id(), job.per_replica().gpus);
        }
        for command in &out {
            self.backend.carry_out(self.now, command, &mut self.dice);
        }
    }

    fn pass(&mut self) {
        self.now = self.now.after_s(f64::from(self.dice.below(60)));
        self.deliver_mail();
        if self.engine.next_wakeup().is_some_and(|wakeup| wakeup <= self.now) || self.dice.percent(10) {
            self.step(Event::Tick);
        }
    }

    fn deliver_mail(&mut self) {
        while let Some(event) = self.backend.deliver(self.now, &mut self.dice) {
            self.step(event);
        }
    }

    fn submit(&mut self) {
        self.jobs += 1 + u64::from(self.dice.percent(5));
        let replicas = 1 + self.dice.below(6);
        let replicas_min = if self.dice.percent(3) { 7 } else { 1 + self.dice.below(replicas) };
        let flexibilities =
            [Flexibility::Elastic, Flexibility::Elastic, Flexibility::NonPreemptible, Flexibility::Rigid];
        let works = [None, None, Some(Work::Epochs(3)), Some(Work::BaselineSteps(100))];
        let mut depends_on = Vec::new();
        while self.dice.percent(10) {
            let after = if self.dice.percent(50) { After::Success } else { After::End };
            depends_on.push(Dependency { job: self.any_job(), after });
        }
        let spec = JobSpec {
            name: "any".to_owned(),
            replicas,
            replicas_min,
            replicas_max: Some(replicas + self.dice.below(3)),
            gpus_per_replica: *self.dice.pick(&[1, 1, 1, 2, 2, 4]).expect("some"),
            cpus: self.dice.percent(30).then(|| 1 + self.dice.below(8)),
            memory: self.dice.percent(30).then(|| 1 + u64::from(self.dice.below(64))),
            gpu_types: self.gpu_types(),
            flexibility: *self.dice.pick(&flexibilities).expect("some"),
            pods_per: if self.dice.percent(30) { PodsPer::Node } else { PodsPer::Replica },
            batch_size: None,
            priority: i32::from(self.dice.percent(50)) - 1,
            work: if self.dice.percent(3) { Some(Work::Epochs(0)) } else { *self.dice.pick(&works).expect("some") },
            retries: self.dice.below(3),
            time_limit: self.dice.percent(10).then(|| 1 + u64::from(self.dice.below(900))),
            depends_on,
            ..JobSpec::default()
        };
        self.step(Event::JobSubmitted { job: JobId(self.jobs), spec });
    }

    /// Mostly any; otherwise types that nodes may have, and one that none has.
    fn gpu_types(&mut self) -> Vec<String> {
        let allowed: &[u16] = match self.dice.below(20) {
            0 => &[0],
            1 => &[1],
            2 => &[1, 0],
            3 => &[9],
            _ => &[],
        };
        allowed.iter().map(|&number| GpuTypeName::numbered(number).to_string()).collect()
    }

    /// Something that a group which really runs may say.
    fn hear_of_a_group(&mut self) {
        let ids: Vec<JobId> = self.backend.groups.keys().copied().collect();
        let Some(&job) = self.dice.pick(&ids) else { return };
        let group = &self.backend.groups[&job];
        let (revision, nodes) = (group.revision, group.replicas.iter().map(|(node, _)| node).collect::<Vec<_>>());
        let Some(&node) = self.dice.pick(&nodes) else { return };
        let event = match self.dice.below(10) {
            0 => Event::JobSucceeded { job, revision },
            1..=2 => Event::ReplicaFailed { job, revision, node, kind: FailureKind::Retryable },
            3 => Event::ReplicaFailed { job, revision, node, kind: FailureKind::Permanent },
            4 if self.dice.percent(50) => Event::LaunchFailed { job, revision, node, kind: FailureKind::Machine },
            4 => Event::LaunchFailed { job, revision, node, kind: FailureKind::Retryable },
            _ => Event::Report { job, revision, report: self.report() },
        };
        self.step(event);
    }

    fn report(&mut self) -> AgentReport {
        let value = |dice: &mut Dice| *dice.pick(&[1.0, 0.0, 250.0, f64::NAN, f64::INFINITY, -1.0]).expect("some");
        let parameter = if self.dice.percent(90) { 0.1 } else { value(&mut self.dice) };
        let model = ThroughputModel::DataParallel(StepParams { gamma: 2.0, ..StepParams::from_array([parameter; 7]) });
        let (gpu_type, replicas_profiled) = (GpuTypeName::numbered(0), self.dice.below(5));
        let learned = TypeReport { gpu_type, model, replicas_profiled, local_batch_max: None };
        let baseline_steps = value(&mut self.dice);
        AgentReport {
            limits: BatchLimits::new(100, 1000, 10, 100).expect("ordered"),
            types: vec![learned; self.dice.below(3) as usize],
            noise: NoiseStatistics::new(1.0, 5.0).ok().filter(|_| self.dice.percent(50)),
            progress: Progress { baseline_steps, ..Progress::default() },
            epoch_samples: *self.dice.pick(&[None, Some(0), Some(1_000)]).expect("some"),
            samples_per_s: self.dice.percent(50).then(|| value(&mut self.dice)),
            loss: None,
            tuning: None,
            learning_rate_factor: if self.dice.percent(90) { 1.0 } else { value(&mut self.dice) },
        }
    }

    fn join(&mut self) {
        let (gpus, node) = (self.dice.below(9), NodeId(self.nodes));
        // Gangs are not promised to start where several kinds of GPU share a cluster.
        let gpu_type = GpuTypeName::numbered(u16::from(!self.starts_all && self.dice.percent(20)));
        if gpus > 0 {
            self.nodes += 1;
            self.backend.nodes.insert(node, gpus);
        }
        let (cpus, memory) = self.resources();
        self.step(Event::NodeJoined { node, gpus, gpu_type, cpus, memory });
    }

    fn resources(&mut self) -> (Option<u32>, Option<u64>) {
        let cpus = self.dice.percent(40).then(|| self.dice.below(40));
        (cpus, self.dice.percent(40).then(|| u64::from(self.dice.below(200))))
    }

    fn lose(&mut self) {
        let node = NodeId(self.dice.below(self.nodes + 1));
        self.backend.lose(node);
        self.step(Event::NodeLost { node });
    }

    fn tend_a_node(&mut self) {
        let node = NodeId(self.dice.below(self.nodes + 1));
        let event = match self.dice.below(15) {
            0..3 => Event::NodeDrain { node },
            3..6 => Event::NodeUndrain { node },
            6 | 7 => Event::NodeUnreachable { node },
            8 | 9 => Event::NodeReachable { node },
            10 => Event::NodeRetired { node },
            11 => {
                let drains_at = self.now.after_s(f64::from(self.dice.below(200)));
                let ends_at = self.dice.percent(50).then(|| drains_at.after_s(60.0));
                let end = self.dice.percent(80).then_some(NodeEnd { drains_at, ends_at });
                Event::NodeEnds { node, end }
            }
            _ => {
                let (cpus, memory) = self.resources();
                Event::NodeResources { node, cpus, memory }
            }
        };
        self.step(event);
    }

    fn order(&mut self) {
        let job = self.any_job();
        let event = match self.dice.below(5) {
            0 => Event::Cancel { job },
            1..=2 => Event::Pause { job },
            _ => Event::Resume { job },
        };
        self.step(event);
    }

    /// Words with any job, revision and node. They must not be true by accident: a success, a failure or readiness
    /// may be, which harms nothing, but a release would say of a process that it is gone.
    fn say_nonsense(&mut self) {
        let (job, node) = (self.any_job(), NodeId(self.dice.below(self.nodes + 2)));
        let revision = Revision(u64::from(self.dice.below(6)));
        let stale = Revision(u64::from(self.dice.below(2)) * u64::MAX);
        let kind = FailureKind::Retryable;
        let event = match self.dice.below(9) {
            0 => Event::Report { job, revision, report: self.report() },
            1 => Event::GroupReady { job, revision, pause_s: Some(f64::from(self.dice.below(3)) - 1.0) },
            2 => Event::ReplicaFailed { job, revision, node, kind },
            3 => Event::LaunchFailed { job, revision, node, kind },
            4 => Event::JobSucceeded { job, revision: stale },
            5 => Event::JobSubmitted { job, spec: JobSpec::new("again", self.dice.below(3)) },
            6 => Event::GroupSilent { job, revision },
            _ => {
                let revision = if self.backend.lied_about { revision } else { stale };
                let replicas = if self.dice.percent(90) { self.dice.below(4) } else { u32::MAX };
                let allocation = [(node, replicas), (NodeId(0), 1), (NodeId(0), replicas)].into_iter().collect();
                Event::ReplicasReleased { job, revision, allocation }
            }
        };
        self.step(event);
    }

    fn any_job(&mut self) -> JobId {
        JobId(self.dice.roll() % (self.jobs + 2))
    }
}

/// A state with what its policy remembers as a file gives it back.
#[cfg(feature = "serde")]
fn saved(engine: &Engine) -> EngineState {
    let state = engine.state();
    let text = serde_json::to_string(&state.policy).expect("plain data");
    EngineState { policy: serde_json::from_str(&text).expect("just written"), ..state }
}

#[cfg(not(feature = "serde"))]
fn saved(engine: &Engine) -> EngineState {
    engine.state()
}
