//! Processes that outlive the scheduler, and the workers in them.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use pollux_agent::{AgentReport, Progress, TypeReport};
use pollux_api::{Assignment, AssignmentState, ReadyRequest, ReportRequest};
use pollux_backend::{
    Backend, CheckpointAnswer, Checkpoints, Epoch, Exit, LogAnswer, LogChunk, LogReader, LogStart, NodeInfo,
    Observation, Observer, ReplicaId, ReplicaOrder, SavedCheckpoints,
};
use pollux_engine::EngineSettings;
use pollux_job::JobSpec;
use pollux_model::{BatchLimits, NoiseStatistics, Parallelism, StepParams};
use pollux_policy::{JobId, PolicySettings, PolluxSettings};
use pollux_server::{Handle, Refused, Server, ServerSettings};

/// What anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Machines {
    nodes: BTreeMap<String, u32>,
    replicas: BTreeMap<ReplicaId, Process>,
    observer: Option<Observer>,
    /// Everything that must never happen.
    faults: Vec<String>,
    forgotten: BTreeSet<ReplicaId>,
    /// What replicas have written, with the bytes that were dropped.
    logs: BTreeMap<ReplicaId, (u64, Vec<u8>)>,
    /// What jobs have saved.
    checkpoints: BTreeMap<JobId, SavedCheckpoints>,
    /// The highest that gave an order.
    epoch: Epoch,
    /// What replicas wait for that are started now.
    pending: Option<String>,
    /// CPUs and bytes of memory of every node.
    resources: (Option<u32>, Option<u64>),
    /// Nodes of which a new scheduler hears nothing.
    silent: BTreeSet<String>,
}

struct Process {
    order: ReplicaOrder,
    exit: Option<Exit>,
    /// Does not leave when it is told to.
    stubborn: bool,
}

/// Machines that go on whatever becomes of the scheduler.
#[derive(Clone, Default)]
pub(crate) struct World(Arc<Mutex<Machines>>);

impl World {
    pub(crate) fn new(nodes: &[(&str, u32)]) -> Self {
        let world = Self::default();
        world.machines().nodes = nodes.iter().map(|&(name, gpus)| (name.to_owned(), gpus)).collect();
        world
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.0.lock().unwrap()
    }

    /// A scheduler over these machines.
    pub(crate) fn serve(&self, settings: ServerSettings) -> Server {
        Server::start(settings, self.open()).unwrap()
    }

    /// What opens them as a backend.
    pub(crate) fn open(&self) -> impl FnOnce(Observer) -> Result<Box<dyn Backend>, Infallible> + use<> {
        let world = self.clone();
        move |observer: Observer| {
            let mut machines = world.machines();
            for (node, &gpus) in machines.nodes.iter().filter(|(node, _)| !machines.silent.contains(*node)) {
                observer(machines.node_up(node, gpus));
            }
            machines.observer = Some(observer);
            drop(machines);
            Ok(Box::new(Machine(world)) as Box<dyn Backend>)
        }
    }

    pub(crate) fn set_node(&self, node: &str, gpus: Option<u32>) {
        let mut machines = self.machines();
        match gpus {
            Some(gpus) => {
                machines.nodes.insert(node.to_owned(), gpus);
                machines.silent.remove(node);
                machines.observe(machines.node_up(node, gpus));
            }
            None => {
                machines.nodes.remove(node);
                for process in machines.replicas.values_mut().filter(|process| process.order.node == node) {
                    process.exit = Some(Exit::Lost);
                }
                machines.observe(Observation::NodeGone { node: node.to_owned() });
            }
        }
    }

    /// What nodes have besides their GPUs, for all that are seen from now on.
    pub(crate) fn set_resources(&self, cpus: Option<u32>, memory: Option<u64>) {
        self.machines().resources = (cpus, memory);
    }

    /// The next scheduler hears nothing of a node, until it is set again.
    pub(crate) fn set_silent(&self, node: &str) {
        self.machines().silent.insert(node.to_owned());
    }

    /// Ends a replica by itself.
    pub(crate) fn exit(&self, replica: u64, exit: Exit) {
        let mut machines = self.machines();
        let replica = ReplicaId(replica);
        let exit = *machines.replicas.get_mut(&replica).unwrap().exit.get_or_insert(exit);
        machines.observe(Observation::Exited { replica, exit });
    }

    pub(crate) fn is_forgotten(&self, replica: u64) -> bool {
        self.machines().forgotten.contains(&ReplicaId(replica))
    }

    /// A replica writes.
    pub(crate) fn write_log(&self, replica: u64, text: &str) {
        self.machines().logs.entry(ReplicaId(replica)).or_default().1.extend_from_slice(text.as_bytes());
    }

    /// The oldest bytes of a log are not kept any more.
    pub(crate) fn drop_log(&self, replica: u64, bytes: usize) {
        let mut machines = self.machines();
        let (dropped, log) = machines.logs.get_mut(&ReplicaId(replica)).unwrap();
        *dropped += log.drain(..bytes).len() as u64;
    }

    /// A job has saved.
    pub(crate) fn save_checkpoint(&self, job: JobId, bytes: u64, written: SystemTime) {
        self.machines().checkpoints.insert(job, SavedCheckpoints { job, bytes, written });
    }

    /// Jobs of which something is saved.
    pub(crate) fn saved(&self) -> Vec<JobId> {
        self.machines().checkpoints.keys().copied().collect()
    }

    /// Replicas that are started from now on cannot run yet, or can.
    pub(crate) fn set_pending(&self, reason: Option<&str>) {
        self.machines().pending = reason.map(str::to_owned);
    }

    /// Another scheduler gives an order.
    pub(crate) fn supersede(&self, epoch: Epoch) {
        self.machines().epoch = epoch;
    }

    /// Tells what a backend has seen.
    pub(crate) fn observe(&self, observation: Observation) {
        self.machines().observe(observation);
    }

    /// A replica that an earlier scheduler started runs.
    pub(crate) fn left_behind(&self, replica: u64, job: u64, node: &str) {
        let order = ReplicaOrder {
            epoch: Epoch::default(),
            replica: ReplicaId(replica),
            job: JobId(job),
            node: node.to_owned(),
            gpus: 1,
            cpus: None,
            memory: None,
            shares_with: None,
            command: Vec::new(),
            working_dir: PathBuf::from("/"),
            checkpoint_dir: String::new(),
            environment: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        self.machines().replicas.insert(ReplicaId(replica), Process { order, exit: None, stubborn: false });
    }

    pub(crate) fn set_stubborn(&self, replica: u64, stubborn: bool) {
        self.machines().replicas.get_mut(&ReplicaId(replica)).unwrap().stubborn = stubborn;
    }

    /// Orders of replicas that run.
    pub(crate) fn running(&self) -> Vec<ReplicaOrder> {
        let machines = self.machines();
        machines.replicas.values().filter(|it| it.exit.is_none()).map(|it| it.order.clone()).collect()
    }

    pub(crate) fn running_for(&self, job: JobId) -> Vec<ReplicaOrder> {
        self.running().into_iter().filter(|order| order.job == job).collect()
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        let machines = self.machines();
        assert!(machines.faults.is_empty(), "{:?}", machines.faults);
    }

    /// Lets every worker say what it would: that its group trains, and how.
    pub(crate) fn speak(&self, handle: &Handle, spoken: &mut BTreeMap<JobId, u64>) {
        let jobs: BTreeSet<JobId> = self.running().iter().map(|order| order.job).collect();
        for job in jobs {
            let Some(assignment) = handle.assignment(job).map(|watch| watch.borrow().clone()) else { continue };
            let running: BTreeSet<u64> = self.running_for(job).iter().map(|order| order.replica.0).collect();
            let whole = assignment.replicas.iter().all(|replica| running.contains(&replica.replica));
            let generation = assignment.generation;
            if assignment.state == AssignmentState::Stop || !whole || spoken.get(&job) == Some(&generation) {
                continue;
            }
            let ready = handle.ready(job, ReadyRequest { generation, pause_s: Some(0.1) }).wait();
            let told = handle.report(job, ReportRequest { generation, report: report(&assignment) }).wait();
            if ready.is_ok() && told.is_ok() {
                spoken.insert(job, generation);
            }
        }
    }
}

/// Nodes such as `a100-0` have the type of GPU that they are called after.
fn gpu_type(node: &str) -> String {
    node.rsplit_once('-').map_or("test", |(gpu_type, _)| gpu_type).to_owned()
}

impl Machines {
    /// A node; those such as `m/0` and `m/1` are parts of one machine.
    fn node_up(&self, node: &str, gpus: u32) -> Observation {
        let (cpus, memory) = self.resources;
        let address = node.split('/').next().unwrap_or(node).to_owned();
        Observation::NodeUp(NodeInfo { name: node.to_owned(), gpus, gpu_type: gpu_type(node), cpus, memory, address })
    }

    fn observe(&self, observation: Observation) {
        if let Some(observer) = &self.observer {
            observer(observation);
        }
    }

    fn start(&mut self, order: &ReplicaOrder) {
        let replica = order.replica;
        if self.replicas.contains_key(&replica) {
            return;
        }
        let on_node =
            |it: &&Process| it.exit.is_none() && it.order.node == order.node && it.order.shares_with.is_none();
        let used = self.replicas.values().filter(on_node).count() as u32;
        let gpus = self.nodes.get(&order.node).copied().unwrap_or(0);
        if order.shares_with.is_none() && used >= gpus {
            self.faults.push(format!("{replica} of {} comes to {}, where {used} of {gpus} run", order.job, order.node));
        }
        // In a resize a survivor leads, so that who is started as a leader is to be alone.
        let twice = self.replicas.values().any(|it| it.exit.is_none() && it.order.job == order.job);
        if twice && order.environment["RANK"] == "0" {
            self.faults.push(format!("{} runs twice", order.job));
        }
        self.replicas.insert(replica, Process { order: order.clone(), exit: None, stubborn: false });
        self.observe(match &self.pending {
            Some(reason) => Observation::Pending { replica, reason: reason.clone() },
            None => Observation::Started { replica },
        });
    }
}

/// The way to the machines that one scheduler has.
struct Machine(World);

impl Machine {
    /// The machines, unless another scheduler has taken over.
    fn admitted(&self, epoch: Epoch) -> Option<MutexGuard<'_, Machines>> {
        let mut machines = self.0.machines();
        if epoch < machines.epoch {
            machines.observe(Observation::Superseded { by: machines.epoch });
            return None;
        }
        machines.epoch = epoch;
        Some(machines)
    }
}

impl Backend for Machine {
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]) {
        let Some(mut machines) = self.admitted(epoch) else { return };
        for &replica in known {
            let exit = machines.replicas.get(&replica).map_or(Some(Exit::Lost), |process| process.exit);
            machines.observe(match exit {
                Some(exit) => Observation::Exited { replica, exit },
                None => Observation::Started { replica },
            });
        }
        let unknown = machines.replicas.iter().filter(|(id, it)| it.exit.is_none() && !known.contains(id));
        for replica in unknown.map(|(id, _)| *id).collect::<Vec<_>>() {
            machines.faults.push(format!("{replica} runs and nobody knows it"));
        }
    }

    fn start(&mut self, order: &ReplicaOrder) {
        let Some(mut machines) = self.admitted(order.epoch) else { return };
        machines.start(order);
    }

    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, _grace: Duration) {
        let Some(mut machines) = self.admitted(epoch) else { return };
        let Some(process) = machines.replicas.get_mut(&replica) else {
            return machines.observe(Observation::Exited { replica, exit: Exit::Lost });
        };
        if process.stubborn {
            return;
        }
        let exit = *process.exit.get_or_insert(Exit::Code(143));
        machines.observe(Observation::Exited { replica, exit });
    }

    fn forget(&mut self, epoch: Epoch, replica: ReplicaId) {
        let Some(mut machines) = self.admitted(epoch) else { return };
        machines.forgotten.insert(replica);
    }

    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]) {
        let Some(mut machines) = self.admitted(epoch) else { return };
        let ended = machines.replicas.iter().filter(|(id, it)| it.exit.is_some() && !replicas.contains(id));
        let ended: Vec<_> = ended.map(|(id, _)| *id).collect();
        machines.forgotten.extend(ended);
    }

    fn logs(&self) -> Arc<dyn LogReader> {
        Arc::new(self.0.clone())
    }

    fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        Arc::new(self.0.clone())
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl LogReader for World {
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        let machines = self.machines();
        let has_ended = machines.replicas.get(&replica).is_some_and(|process| process.exit.is_some());
        let (first, log) = machines.logs.get(&replica).cloned().unwrap_or_default();
        drop(machines);
        let start = match from {
            LogStart::At(position) => usize::try_from(position.saturating_sub(first)).unwrap().min(log.len()),
            LogStart::LastLines(lines) => {
                let lines = log.split_inclusive(|byte| *byte == b'\n').rev().take(usize::try_from(lines).unwrap());
                log.len() - lines.map(<[u8]>::len).sum::<usize>()
            }
        };
        let dropped = match from {
            LogStart::At(position) => first.saturating_sub(position),
            LogStart::LastLines(_) => 0,
        };
        let bytes: Vec<u8> = log[start..].iter().copied().take(bytes_max).collect();
        let end = start + bytes.len();
        answer(Ok(LogChunk { next: first + end as u64, dropped, ended: has_ended && end == log.len(), bytes }));
    }
}

impl Checkpoints for World {
    fn location(&self, job: JobId) -> String {
        format!("/saved/{}", job.0)
    }

    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>) {
        let saved = self.machines().checkpoints.values().copied().collect();
        answer(Ok(saved));
    }

    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>) {
        let mut machines = self.machines();
        assert!(epoch >= machines.epoch);
        let bytes = machines.checkpoints.remove(&job).map_or(0, |saved| saved.bytes);
        drop(machines);
        answer(Ok(bytes));
    }
}

/// A job that is the faster the more GPUs it has.
pub(crate) fn report(assignment: &Assignment) -> AgentReport {
    let params = StepParams::from_array([0.01, 0.01, 0.01, 1e-6, 0.02, 1e-6, 1.5]);
    AgentReport {
        limits: BatchLimits::new(64, 4096, 1, 512).unwrap(),
        types: vec![TypeReport {
            gpu_type: assignment.replicas[0].gpu_type.clone(),
            model: Parallelism::DataParallel.model(params).unwrap(),
            replicas_profiled: assignment.replicas.len() as u32,
        }],
        noise: Some(NoiseStatistics::new(1.0, 4000.0).unwrap()),
        progress: Progress { steps: 10, samples: 640, epochs: 0, baseline_steps: 10.0 },
        epoch_samples: None,
        samples_per_s: Some(100.0),
        loss: None,
        tuning: None,
        learning_rate_factor: 1.0,
    }
}

pub(crate) fn settings(state_dir: &Path, policy: PolicySettings) -> ServerSettings {
    let engine = EngineSettings {
        round_interval_s: 0.1,
        round_gap_min_s: 0.01,
        replans_on_events: true,
        restart_cost_default_s: 0.0,
        backoff_first_s: 0.1,
        backoff_max_s: 0.1,
        ..EngineSettings::default()
    };
    let usual = ServerSettings::new(state_dir, "http://127.0.0.1:7878", policy);
    ServerSettings { engine, grace: Duration::from_millis(100), ..usual }
}

pub(crate) fn elastic() -> PolicySettings {
    PolicySettings::Pollux(PolluxSettings::default())
}

pub(crate) fn request(name: &str, replicas: u32) -> JobSpec {
    JobSpec {
        command: vec!["train".to_owned()],
        working_dir: PathBuf::from("/"),
        env: BTreeMap::from([("SEED".to_owned(), "1".to_owned())]),
        ..JobSpec::new(name, replicas)
    }
}

#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the scheduler has planned with all that it knows now: whatever it did not do then, it did not want to do.
#[track_caller]
pub(crate) fn after_plan(handle: &Handle) {
    let planned = || handle.look(|cluster| cluster.engine().last_plan().map(|(at, _)| at)).wait().unwrap();
    // The first of them may have been under way.
    for _ in 0..2 {
        let before = planned();
        eventually("another plan", || (planned() > before).then_some(()));
    }
}

/// The phase of a live job, in a word.
pub(crate) fn phase(handle: &Handle, job: JobId) -> Option<String> {
    let found = handle.look(move |cluster| cluster.engine().job(job).map(|job| job.phase().to_string())).wait();
    match found {
        Ok(found) => found,
        Err(Refused::Away) => None,
        Err(refused) => panic!("{refused}"),
    }
}
