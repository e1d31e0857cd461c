//! A cluster that is nothing but memory: nodes, replicas and what is kept of them, without a machine.
//!
//! ```text
//!  Backend::start ──> MemoryCluster ──> Programs::start      whoever plays the programs
//!  Observation <───── nodes, GPUs, <─── exit, write_log
//!                     epochs, faults
//! ```
//!
//! It passes [`conformance`](crate::conformance) with real programs, faults included, and is what the scheduler is tested
//! with: there, [`Programs`] are played by the test. It outlives the backends that are opened on it, as machines outlive a
//! scheduler, and is gone with its process.

mod backend;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pollux_policy::JobId;

use crate::conformance::Faults;
use crate::{Backend, Exit, NodeInfo, Observation, Observer, ReplicaId, ReplicaOrder, SavedCheckpoints};
use backend::MemoryBackend;
pub use state::StartFailure;
use state::{Ending, Reach, Stage, State, Todo};

/// What runs on the nodes of a [`MemoryCluster`], and what it saves. No call is made while the cluster is locked.
pub trait Programs: Send + Sync {
    /// Starts a program. What it writes and that it ends is told to the cluster, at any time.
    fn start(&self, cluster: &MemoryCluster, order: &ReplicaOrder) -> Result<(), StartFailure>;

    /// Tells a program to end within the grace. Of one that has ended nothing happens.
    fn stop(&self, cluster: &MemoryCluster, replica: ReplicaId, grace: Duration);

    /// Ends a program with its machine; nothing of it runs afterwards.
    fn kill(&self, replica: ReplicaId);

    /// Where a job saves.
    fn location(&self, job: JobId) -> String;

    /// What jobs have saved.
    fn saved(&self) -> Vec<SavedCheckpoints>;

    /// Deletes what a job has saved; returns its bytes.
    fn delete(&self, job: JobId) -> u64;
}

/// Nodes that go on whatever becomes of the scheduler. Copies are the same cluster.
#[derive(Clone)]
pub struct MemoryCluster {
    state: Arc<Mutex<State>>,
    programs: Arc<dyn Programs>,
}

impl fmt::Debug for MemoryCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCluster").finish_non_exhaustive()
    }
}

impl MemoryCluster {
    /// A cluster without nodes.
    pub fn new(programs: Arc<dyn Programs>) -> Self {
        Self { state: Arc::default(), programs }
    }

    /// Makes a backend of it. Several may be open at once; each hears everything.
    pub fn open(&self, observer: Observer) -> Box<dyn Backend> {
        let observer = Arc::new(observer);
        self.lock().observers.push(Arc::downgrade(&observer));
        Box::new(MemoryBackend { cluster: self.clone(), observer })
    }

    /// Lets a node join, or changes what it has; one that was cut off is reachable again.
    pub fn set_node(&self, node: NodeInfo) {
        let name = node.name.clone();
        let mut state = self.lock();
        state.nodes.insert(name.clone(), (node, Reach::Up));
        let todo = state.reach(&name);
        drop(state);
        self.carry_out(todo);
    }

    /// Nodes that there are.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.lock().nodes.values().map(|(node, _)| node.clone()).collect()
    }

    /// Backends that are opened from now on hear nothing of a node, until it is set again.
    pub fn withhold_node(&self, node: &str) {
        if let Some((_, reach)) = self.lock().nodes.get_mut(node) {
            *reach = Reach::Withheld;
        }
    }

    /// A replica's program has ended; told again of one that had.
    pub fn exit(&self, replica: ReplicaId, exit: Exit) {
        self.lock().end(replica, Ending::Exited(exit));
    }

    /// A replica's program has written something.
    pub fn write_log(&self, replica: ReplicaId, text: &[u8]) {
        self.lock().logs.entry(replica).or_default().bytes.extend_from_slice(text);
    }

    /// The oldest bytes of a log are not kept any more.
    pub fn drop_log(&self, replica: ReplicaId, bytes: usize) {
        let mut state = self.lock();
        let log = state.logs.entry(replica).or_default();
        let bytes = bytes.min(log.bytes.len());
        log.dropped += log.bytes.drain(..bytes).len() as u64;
    }

    /// Orders of replicas that have not ended.
    pub fn running(&self) -> Vec<ReplicaOrder> {
        self.lock().live().map(|(_, replica)| replica.order.clone()).collect()
    }

    /// Whether anything is kept of a replica.
    pub fn keeps(&self, replica: ReplicaId) -> bool {
        self.lock().replicas.contains_key(&replica)
    }

    /// What no scheduler does that knows what it has done: starts where there is no room, replicas that it does not know.
    pub fn mistakes(&self) -> Vec<String> {
        self.lock().mistakes.clone()
    }

    /// Tells every backend something, whether it is true or not.
    pub fn observe(&self, observation: &Observation) {
        self.lock().observe(observation);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has programs do what was decided.
    fn carry_out(&self, todo: Vec<Todo>) {
        for todo in todo {
            match todo {
                Todo::Stop(replica, grace) => self.programs.stop(self, replica, grace),
                Todo::Start(order) => {
                    let started = self.programs.start(self, &order);
                    let mut state = self.lock();
                    match started {
                        Ok(()) => state.started(order.replica),
                        Err(failure) => state.end(order.replica, Ending::Failed(failure)),
                    }
                }
            }
        }
    }
}

impl Faults for MemoryCluster {
    fn hold_starts(&self, reason: &str) {
        self.lock().held = Some(reason.to_owned());
    }

    fn release_starts(&self) {
        let mut state = self.lock();
        state.held = None;
        let todo = state.startable();
        drop(state);
        self.carry_out(todo);
    }

    fn cut(&self, node: &str) {
        let mut state = self.lock();
        if let Some((_, reach)) = state.nodes.get_mut(node) {
            *reach = Reach::Cut;
            state.observe(&Observation::NodeUnreachable { node: node.to_owned() });
        }
    }

    fn mend(&self, node: &str) {
        let info = self.lock().nodes.get(node).map(|(info, _)| info.clone());
        if let Some(info) = info {
            self.set_node(info);
        }
    }

    fn lose(&self, node: &str) {
        let mut state = self.lock();
        state.nodes.remove(node);
        let lost: Vec<ReplicaId> = state.live().filter(|(_, it)| it.order.node == node).map(|(id, _)| id).collect();
        for replica in &lost {
            state.set_stage(*replica, Stage::Ended(Ending::Exited(Exit::Lost)));
        }
        drop(state);
        lost.into_iter().for_each(|replica| self.programs.kill(replica));
        self.lock().observe(&Observation::NodeGone { node: node.to_owned() });
    }
}
