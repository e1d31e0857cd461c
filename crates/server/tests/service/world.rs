//! Processes that outlive the scheduler, and the workers in them.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use pollux_agent::{AgentReport, Progress, TypeReport};
use pollux_api::{Assignment, AssignmentState, ReadyRequest, ReportRequest};
use pollux_backend::conformance::Faults;
use pollux_backend::memory::{MemoryCluster, Programs, StartFailure};
use pollux_backend::{
    Backend, Epoch, Exit, NodeInfo, Observation, Observer, ReplicaId, ReplicaOrder, SavedCheckpoints,
};
use pollux_engine::EngineSettings;
use pollux_job::JobSpec;
use pollux_model::{BatchLimits, NoiseStatistics, Parallelism, StepParams};
use pollux_policy::{JobId, PolicySettings, PolluxSettings};
use pollux_server::{Handle, Refused, Server, ServerSettings};

/// What anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Workers that run until they are told to end, and what they saved.
#[derive(Default)]
struct Played {
    /// Those who do not leave when they are told to.
    stubborn: Mutex<BTreeSet<ReplicaId>>,
    saved: Mutex<BTreeMap<JobId, SavedCheckpoints>>,
    /// Everything that must never happen.
    faults: Mutex<Vec<String>>,
}

impl Programs for Played {
    fn start(&self, cluster: &MemoryCluster, order: &ReplicaOrder) -> Result<(), StartFailure> {
        // In a resize a survivor leads, so that who is started as a leader is to be alone.
        let twice = cluster.running().iter().any(|it| it.job == order.job && it.replica != order.replica);
        if twice && order.environment.get("RANK").is_some_and(|rank| rank == "0") {
            self.faults.lock().unwrap().push(format!("{} runs twice", order.job));
        }
        Ok(())
    }

    fn stop(&self, cluster: &MemoryCluster, replica: ReplicaId, _grace: Duration) {
        if !self.stubborn.lock().unwrap().contains(&replica) {
            cluster.exit(replica, Exit::Code(143));
        }
    }

    fn kill(&self, _replica: ReplicaId) {}

    fn location(&self, job: JobId) -> String {
        format!("/saved/{}", job.0)
    }

    fn saved(&self) -> Vec<SavedCheckpoints> {
        self.saved.lock().unwrap().values().copied().collect()
    }

    fn delete(&self, job: JobId) -> u64 {
        self.saved.lock().unwrap().remove(&job).map_or(0, |saved| saved.bytes)
    }
}

/// Machines that go on whatever becomes of the scheduler.
#[derive(Clone)]
pub(crate) struct World {
    cluster: MemoryCluster,
    played: Arc<Played>,
    /// CPUs and bytes of memory of every node.
    resources: Arc<Mutex<(Option<u32>, Option<u64>)>>,
}

impl World {
    pub(crate) fn new(nodes: &[(&str, u32)]) -> Self {
        let played = Arc::new(Played::default());
        let cluster = MemoryCluster::new(Arc::clone(&played) as Arc<dyn Programs>);
        let world = Self { cluster, played, resources: Arc::default() };
        nodes.iter().for_each(|&(name, gpus)| world.set_node(name, Some(gpus)));
        world
    }

    /// A scheduler over these machines.
    pub(crate) fn serve(&self, settings: ServerSettings) -> Server {
        Server::start(settings, self.open()).unwrap()
    }

    /// What opens them as a backend.
    pub(crate) fn open(&self) -> impl FnOnce(Observer) -> Result<Box<dyn Backend>, Infallible> + use<> {
        let cluster = self.cluster.clone();
        move |observer: Observer| Ok(cluster.open(observer))
    }

    /// A node joins, changes or goes. Those such as `m/0` and `m/1` are parts of one machine.
    pub(crate) fn set_node(&self, node: &str, gpus: Option<u32>) {
        let Some(gpus) = gpus else { return self.cluster.lose(node) };
        let (cpus, memory) = *self.resources.lock().unwrap();
        let address = node.split('/').next().unwrap_or(node).to_owned();
        let (name, gpu_type) = (node.to_owned(), gpu_type(node));
        self.join(NodeInfo { name, gpus, gpu_type, cpus, memory, address, end: None });
    }

    pub(crate) fn join(&self, node: NodeInfo) {
        self.cluster.set_node(node);
    }

    /// What nodes have besides their GPUs, those to come included.
    pub(crate) fn set_resources(&self, cpus: Option<u32>, memory: Option<u64>) {
        *self.resources.lock().unwrap() = (cpus, memory);
        self.cluster.nodes().into_iter().for_each(|node| self.set_node(&node.name, Some(node.gpus)));
    }

    /// The next scheduler hears nothing of a node, until it is set again.
    pub(crate) fn set_silent(&self, node: &str) {
        self.cluster.withhold_node(node);
    }

    /// Ends a replica by itself.
    pub(crate) fn exit(&self, replica: u64, exit: Exit) {
        self.cluster.exit(ReplicaId(replica), exit);
    }

    pub(crate) fn is_forgotten(&self, replica: u64) -> bool {
        !self.cluster.keeps(ReplicaId(replica))
    }

    /// A replica writes.
    pub(crate) fn write_log(&self, replica: u64, text: &str) {
        self.cluster.write_log(ReplicaId(replica), text.as_bytes());
    }

    /// The oldest bytes of a log are not kept any more.
    pub(crate) fn drop_log(&self, replica: u64, bytes: usize) {
        self.cluster.drop_log(ReplicaId(replica), bytes);
    }

    /// A job has saved.
    pub(crate) fn save_checkpoint(&self, job: JobId, bytes: u64, written: SystemTime) {
        self.played.saved.lock().unwrap().insert(job, SavedCheckpoints { job, bytes, written });
    }

    /// Jobs of which something is saved.
    pub(crate) fn saved(&self) -> Vec<JobId> {
        self.played.saved.lock().unwrap().keys().copied().collect()
    }

    /// Replicas that are started from now on cannot run yet, or can.
    pub(crate) fn set_pending(&self, reason: Option<&str>) {
        match reason {
            Some(reason) => self.cluster.hold_starts(reason),
            None => self.cluster.release_starts(),
        }
    }

    /// Another scheduler gives an order.
    pub(crate) fn supersede(&self, epoch: Epoch) {
        self.cluster.open(Box::new(|_| {})).forget(epoch, ReplicaId(u64::MAX));
    }

    /// Tells what a backend has seen.
    pub(crate) fn observe(&self, observation: &Observation) {
        self.cluster.observe(observation);
    }

    /// A replica that an earlier scheduler started runs.
    pub(crate) fn left_behind(&self, replica: u64, job: u64, node: &str) {
        self.cluster.open(Box::new(|_| {})).start(&ReplicaOrder {
            epoch: Epoch::default(),
            replica: ReplicaId(replica),
            job: JobId(job),
            node: node.to_owned(),
            gpus: 1,
            cpus: None,
            memory: None,
            shares_with: None,
            bundle: Vec::new(),
            command: Vec::new(),
            working_dir: PathBuf::from("/"),
            checkpoint_dir: String::new(),
            restores: true,
            environment: BTreeMap::new(),
            secrets: BTreeMap::new(),
        });
    }

    pub(crate) fn set_stubborn(&self, replica: u64, stubborn: bool) {
        let mut stubborn_ones = self.played.stubborn.lock().unwrap();
        if stubborn {
            stubborn_ones.insert(ReplicaId(replica))
        } else {
            stubborn_ones.remove(&ReplicaId(replica))
        };
    }

    /// Orders of replicas that run.
    pub(crate) fn running(&self) -> Vec<ReplicaOrder> {
        self.cluster.running()
    }

    pub(crate) fn running_for(&self, job: JobId) -> Vec<ReplicaOrder> {
        self.running().into_iter().filter(|order| order.job == job).collect()
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        let faults = [self.cluster.mistakes(), self.played.faults.lock().unwrap().clone()].concat();
        assert!(faults.is_empty(), "{faults:?}");
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

/// A job that is the faster the more GPUs it has.
pub(crate) fn report(assignment: &Assignment) -> AgentReport {
    let params = StepParams::from_array([0.01, 0.01, 0.01, 1e-6, 0.02, 1e-6, 1.5]);
    AgentReport {
        limits: BatchLimits::new(64, 4096, 1, 512).unwrap(),
        types: vec![TypeReport {
            gpu_type: assignment.replicas[0].gpu_type.clone(),
            model: Parallelism::DataParallel.model(params).unwrap(),
            replicas_profiled: assignment.replicas.len() as u32,
            local_batch_max: None,
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
