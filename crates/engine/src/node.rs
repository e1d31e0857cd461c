use std::collections::{BTreeMap, BTreeSet};

use pollux_model::GpuType;
use pollux_policy::{Allocation, JobId, NodeId, NodeView, Timestamp};

use crate::Refusal;
use crate::job::Seats;

const NODES_MAX: usize = 100_000;
const GPUS_MAX: u32 = 1_024;
/// So many different jobs must fail on a node within [`SUSPICION_S`] for it to be the node's fault.
const SUSPICIOUS_JOBS: usize = 3;
const SUSPICION_S: f64 = 900.0;
const COOL_DOWN_S: f64 = 900.0;
/// At most one node in so many is cooling down: beyond that it is rather the jobs that are broken.
const COOLING_SHARE: usize = 4;

/// A node that is up.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) id: NodeId,
    pub(crate) gpus: u32,
    pub(crate) gpu_type: GpuType,
    pub(crate) draining: bool,
    pub(crate) cooling_until: Option<Timestamp>,
    pub(crate) held: u32,
    pub(crate) crowding: u32,
    /// Jobs with additions that are to be launched here.
    pub(crate) waiting: BTreeSet<JobId>,
    /// The newest failure of each job that failed here lately.
    pub(crate) failures: Vec<(JobId, Timestamp)>,
}

impl Node {
    /// Its number.
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// GPUs it has.
    pub const fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Their kind.
    pub const fn gpu_type(&self) -> GpuType {
        self.gpu_type
    }

    /// Whether it is to be emptied.
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// Until when it takes nothing new because several jobs failed on it.
    pub const fn cooling_until(&self) -> Option<Timestamp> {
        self.cooling_until
    }

    /// GPUs that jobs own: on which a process may be that is no guest.
    pub const fn gpus_held(&self) -> u32 {
        self.held
    }

    /// Replicas on their way out beside those who own their GPUs.
    pub(crate) const fn crowding(&self) -> u32 {
        self.crowding
    }

    /// Whether it takes replicas.
    pub fn is_schedulable(&self, now: Timestamp) -> bool {
        !self.draining && !self.is_cooling(now)
    }

    pub(crate) const fn waiting(&self) -> &BTreeSet<JobId> {
        &self.waiting
    }

    fn is_cooling(&self, now: Timestamp) -> bool {
        self.cooling_until.is_some_and(|until| now < until)
    }
}

/// All nodes that are up, ordered by number, and who holds or awaits how many of their GPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    last: Option<NodeId>,
}

impl Nodes {
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Node> {
        self.nodes.iter()
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        self.position(id).map(|idx| &self.nodes[idx])
    }

    pub(crate) const fn restored(nodes: Vec<Node>, last: Option<NodeId>) -> Self {
        Self { nodes, last }
    }

    /// The highest number that a node has had.
    pub(crate) const fn last(&self) -> Option<NodeId> {
        self.last
    }

    pub(crate) fn join(&mut self, node: NodeId, gpus: u32, gpu_type: GpuType) -> Result<(), Refusal> {
        if let Some(last) = self.last.filter(|&last| node <= last) {
            return Err(Refusal::NodeIdUsed { node, last });
        }
        if !(1..=GPUS_MAX).contains(&gpus) {
            return Err(Refusal::NodeGpus { node, gpus, limit: GPUS_MAX });
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(Refusal::TooManyNodes { node, limit: NODES_MAX });
        }
        self.last = Some(node);
        self.nodes.push(Node {
            id: node,
            gpus,
            gpu_type,
            draining: false,
            cooling_until: None,
            held: 0,
            crowding: 0,
            waiting: BTreeSet::new(),
            failures: Vec::new(),
        });
        Ok(())
    }

    pub(crate) fn remove(&mut self, node: NodeId) -> Result<(), Refusal> {
        let idx = self.position(node).ok_or(Refusal::UnknownNode { node })?;
        self.nodes.remove(idx);
        Ok(())
    }

    pub(crate) fn set_draining(&mut self, node: NodeId, draining: bool) -> Result<(), Refusal> {
        self.get_mut(node).ok_or(Refusal::UnknownNode { node })?.draining = draining;
        Ok(())
    }

    /// Whether all GPUs of an allocation are free. Who leaves a GPU beside its owner may be the last on it, once that is
    /// gone.
    pub(crate) fn have_room(&self, allocation: &Allocation) -> bool {
        let free = |node: &Node| (node.gpus - node.held).saturating_sub(node.crowding);
        allocation.iter().all(|(id, gpus)| self.get(id).is_some_and(|node| free(node) >= gpus))
    }

    /// Whether nobody is on the way out beside the owners of GPUs there.
    pub(crate) fn are_uncrowded(&self, allocation: &Allocation) -> bool {
        allocation.iter().all(|(id, _)| self.get(id).is_some_and(|node| node.crowding == 0))
    }

    /// Notes replicas that are on their way out beside the owners of their GPUs.
    pub(crate) fn crowd(&mut self, allocation: &Allocation) {
        for (id, gpus) in allocation.iter() {
            self.get_mut(id).expect("what was on a lost node is forgotten").crowding += gpus;
        }
    }

    pub(crate) fn hold(&mut self, allocation: &Allocation) {
        for (id, gpus) in allocation.iter() {
            let node = self.get_mut(id).expect("only nodes that are up are given away");
            node.held += gpus;
            assert!(node.held <= node.gpus, "{id} has {} GPUs but {} are held", node.gpus, node.held);
        }
    }

    pub(crate) fn release(&mut self, seats: &Seats) {
        for (id, gpus) in seats.owned.iter() {
            let node = self.get_mut(id).expect("what was on a lost node is forgotten");
            node.held = node.held.checked_sub(gpus).expect("only what is held is released");
        }
        for (id, gpus) in seats.shared.iter() {
            let node = self.get_mut(id).expect("what was on a lost node is forgotten");
            node.crowding = node.crowding.checked_sub(gpus).expect("only who is there leaves");
        }
    }

    /// Notes that a job will be launched on these GPUs when they are free.
    pub(crate) fn expect(&mut self, job: JobId, allocation: &Allocation) {
        for (id, _) in allocation.iter() {
            self.get_mut(id).expect("only nodes that are up are planned").waiting.insert(job);
        }
    }

    /// Undoes [`Self::expect`], also where a node is gone by now.
    pub(crate) fn forget(&mut self, job: JobId, allocation: &Allocation) {
        for (id, _) in allocation.iter() {
            if let Some(node) = self.get_mut(id) {
                node.waiting.remove(&job);
            }
        }
    }

    /// Notes that a node could not start a replica: it takes nothing new for a while, so that the retry goes elsewhere.
    /// Some node must be left, and a job that no node can start must not empty the cluster.
    pub(crate) fn blame_for_launch(&mut self, id: NodeId, now: Timestamp) {
        let cooling = self.nodes.iter().filter(|node| node.is_cooling(now)).count();
        let may_cool = self.nodes.len() > 1 && cooling < (self.nodes.len() / COOLING_SHARE).max(1);
        if let Some(node) = self.get_mut(id).filter(|_| may_cool) {
            node.cooling_until = Some(now.after_s(COOL_DOWN_S));
        }
    }

    /// Notes that a job failed on a node. One that fails several jobs takes nothing new for a while.
    ///
    /// Policies do not know which job failed where, so a single failure changes nothing: it is as likely the job's own
    /// fault, and the retry goes wherever the next plan puts it.
    pub(crate) fn blame(&mut self, id: NodeId, job: JobId, now: Timestamp) {
        let cooling = self.nodes.iter().filter(|node| node.is_cooling(now)).count();
        let another_may_cool = cooling < self.nodes.len() / COOLING_SHARE;
        let Some(node) = self.get_mut(id) else { return };
        node.failures.retain(|&(other, at)| other != job && now.since_s(at) < SUSPICION_S);
        node.failures.push((job, now));
        if node.failures.len() >= SUSPICIOUS_JOBS {
            node.failures.remove(0);
            if another_may_cool {
                node.failures.clear();
                node.cooling_until = Some(now.after_s(COOL_DOWN_S));
            }
        }
    }

    pub(crate) fn views(&self, now: Timestamp) -> Vec<NodeView> {
        let view = |node: &Node| NodeView {
            id: node.id,
            gpus: node.gpus,
            gpu_type: node.gpu_type,
            cpus: None,
            memory: None,
            schedulable: node.is_schedulable(now),
        };
        self.nodes.iter().map(view).collect()
    }

    /// The most GPUs of one kind, whatever their state.
    pub(crate) fn largest_pool(&self) -> u32 {
        let mut pools: BTreeMap<GpuType, u32> = BTreeMap::new();
        for node in &self.nodes {
            *pools.entry(node.gpu_type).or_default() += node.gpus;
        }
        pools.into_values().max().unwrap_or(0)
    }

    fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.position(id).map(|idx| &mut self.nodes[idx])
    }

    fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }
}
