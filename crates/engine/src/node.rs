use std::collections::BTreeSet;

use pollux_model::GpuType;
use pollux_policy::{Allocation, JobId, NodeEnd, NodeId, NodeResources, NodeView, ReplicaResources, Timestamp};

use crate::Refusal;
use crate::job::HeldGpus;

const NODES_MAX: usize = 100_000;
const GPUS_MAX: u32 = 1_024;
/// So many different jobs must fail on a node within [`SUSPICION_S`] for it to be the node's fault.
const SUSPICIOUS_JOBS: usize = 3;
const SUSPICION_S: f64 = 900.0;
const COOL_DOWN_S: f64 = 900.0;
/// At most one node in so many is cooling down: beyond that it is rather the jobs that are broken.
const COOLING_SHARE: usize = 4;

/// A node that is not lost.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) id: NodeId,
    pub(crate) gpus: u32,
    pub(crate) gpu_type: GpuType,
    pub(crate) cpus: Option<u32>,
    pub(crate) memory: Option<u64>,
    pub(crate) draining: bool,
    /// When it ends, if that is known.
    pub(crate) end: Option<NodeEnd>,
    /// Whether it is emptied because it ends.
    pub(crate) ending: bool,
    pub(crate) unreachable: bool,
    /// Whether it goes with the last replica on it.
    pub(crate) retired: bool,
    pub(crate) cooling_until: Option<Timestamp>,
    pub(crate) held: u32,
    pub(crate) crowding: u32,
    /// CPUs and memory of all replicas that may be here, guests and those on their way out included, where counted.
    pub(crate) cpus_held: u32,
    pub(crate) memory_held: u64,
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
        self.draining || self.ending
    }

    /// Whether it is to be emptied because it ends.
    pub const fn is_ending(&self) -> bool {
        self.ending
    }

    /// When it ends, if that is known.
    pub const fn end(&self) -> Option<NodeEnd> {
        self.end
    }

    /// Whether it does not answer.
    pub const fn is_unreachable(&self) -> bool {
        self.unreachable
    }

    /// Whether it never takes anything again, and goes with the last replica on it.
    pub const fn is_retired(&self) -> bool {
        self.retired
    }

    /// Whether it has less than what replicas on it were given.
    pub fn is_overcommitted(&self) -> bool {
        self.cpus.is_some_and(|cpus| cpus < self.cpus_held)
            || self.memory.is_some_and(|memory| memory < self.memory_held)
    }

    /// Until when it takes nothing new because several jobs failed on it.
    pub const fn cooling_until(&self) -> Option<Timestamp> {
        self.cooling_until
    }

    /// GPUs that jobs own: on which a process may be that is no guest.
    pub const fn gpus_held(&self) -> u32 {
        self.held
    }

    /// CPUs it has, if they are counted.
    pub const fn cpus(&self) -> Option<u32> {
        self.cpus
    }

    /// Bytes of memory it has, if they are counted.
    pub const fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// CPUs of replicas that may be here, where they are counted.
    pub const fn cpus_held(&self) -> u32 {
        self.cpus_held
    }

    /// Bytes of memory of replicas that may be here, where they are counted.
    pub const fn memory_held(&self) -> u64 {
        self.memory_held
    }

    /// All that it has.
    pub(crate) const fn resources(&self) -> NodeResources {
        NodeResources { gpus: self.gpus, cpus: self.cpus, memory: self.memory }
    }

    /// What nobody has. Who leaves a GPU beside its owner may be the last on it, once that is gone.
    pub(crate) fn free(&self) -> NodeResources {
        NodeResources {
            gpus: (self.gpus - self.held).saturating_sub(self.crowding),
            cpus: self.cpus.map(|cpus| cpus.saturating_sub(self.cpus_held)),
            memory: self.memory.map(|memory| memory.saturating_sub(self.memory_held)),
        }
    }

    /// GPUs of replicas on their way out beside those who own them.
    pub(crate) const fn crowding(&self) -> u32 {
        self.crowding
    }

    /// Whether it takes replicas.
    pub fn is_schedulable(&self, now: Timestamp) -> bool {
        !self.is_draining() && !self.unreachable && !self.retired && !self.is_overcommitted() && !self.is_cooling(now)
    }

    /// Jobs that failed here so lately that another attempt is better made elsewhere.
    pub(crate) fn failed_lately(&self, now: Timestamp) -> impl Iterator<Item = JobId> {
        self.failures.iter().filter(move |(_, at)| now.since_s(*at) < SUSPICION_S).map(|(job, _)| *job)
    }

    /// Whether no process can be on it.
    pub(crate) const fn is_empty(&self) -> bool {
        self.held == 0 && self.crowding == 0
    }

    pub(crate) const fn waiting(&self) -> &BTreeSet<JobId> {
        &self.waiting
    }

    const fn view(&self, schedulable: bool) -> NodeView {
        let &Self { id, gpus, gpu_type, cpus, memory, .. } = self;
        NodeView { id, gpus, gpu_type, cpus, memory, schedulable }
    }

    fn is_cooling(&self, now: Timestamp) -> bool {
        self.cooling_until.is_some_and(|until| now < until)
    }
}

/// All nodes that are not lost, ordered by number, and who holds or awaits how many of their GPUs.
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

    pub(crate) fn join(&mut self, node: NodeId, has: NodeResources, gpu_type: GpuType) -> Result<(), Refusal> {
        let NodeResources { gpus, cpus, memory } = has;
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
            cpus,
            memory,
            draining: false,
            end: None,
            ending: false,
            unreachable: false,
            retired: false,
            cooling_until: None,
            held: 0,
            crowding: 0,
            cpus_held: 0,
            memory_held: 0,
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

    /// Removes those of these nodes that only waited for their last replica.
    pub(crate) fn remove_emptied(&mut self, ids: impl Iterator<Item = NodeId>) {
        for id in ids {
            if let Some(idx) = self.position(id).filter(|&idx| self.nodes[idx].retired && self.nodes[idx].is_empty()) {
                self.nodes.remove(idx);
            }
        }
    }

    pub(crate) fn set_draining(&mut self, node: NodeId, draining: bool) -> Result<(), Refusal> {
        self.get_mut(node).ok_or(Refusal::UnknownNode { node })?.draining = draining;
        Ok(())
    }

    pub(crate) fn set_unreachable(&mut self, node: NodeId, unreachable: bool) -> Result<(), Refusal> {
        self.get_mut(node).ok_or(Refusal::UnknownNode { node })?.unreachable = unreachable;
        Ok(())
    }

    pub(crate) fn set_retired(&mut self, node: NodeId) -> Result<(), Refusal> {
        self.get_mut(node).ok_or(Refusal::UnknownNode { node })?.retired = true;
        Ok(())
    }

    /// What a node has, and what replicas that may be there were given of it.
    pub(crate) fn set_resources(
        &mut self,
        node: NodeId,
        cpus: Option<u32>,
        memory: Option<u64>,
        given: (u32, u64),
    ) -> Result<(), Refusal> {
        let node = self.get_mut(node).ok_or(Refusal::UnknownNode { node })?;
        (node.cpus, node.memory) = (cpus, memory);
        node.cpus_held = cpus.map_or(0, |_| given.0);
        node.memory_held = memory.map_or(0, |_| given.1);
        Ok(())
    }

    /// Whether a part of an allocation is on a node that does not answer.
    pub(crate) fn has_unreachable(&self, allocation: &Allocation) -> bool {
        allocation.iter().any(|(id, _)| self.get(id).is_some_and(Node::is_unreachable))
    }

    /// Whether a part of an allocation is on a node that cannot be told to start anything.
    pub(crate) fn refuse(&self, allocation: &Allocation) -> bool {
        let refuses = |node: &Node| node.unreachable || node.retired;
        allocation.iter().any(|(id, _)| self.get(id).is_some_and(refuses))
    }

    /// Whether all that replicas on GPUs of their own need is free.
    pub(crate) fn have_room(&self, replica: ReplicaResources, allocation: &Allocation) -> bool {
        let fits = |id, replicas| self.get(id).is_some_and(|node| node.free().fits(replica) >= replicas);
        allocation.iter().all(|(id, replicas)| fits(id, replicas))
    }

    /// Whether guests find what they need beside the owners of their GPUs, and nobody else is on the way out there.
    pub(crate) fn have_room_for_guests(&self, replica: ReplicaResources, allocation: &Allocation) -> bool {
        let fits = |node: &Node, replicas| node.crowding == 0 && node.free().fits(replica.as_guest()) >= replicas;
        allocation.iter().all(|(id, replicas)| self.get(id).is_some_and(|node| fits(node, replicas)))
    }

    /// Notes replicas that are on their way out beside the owners of their GPUs.
    pub(crate) fn add_departing(&mut self, replica: ReplicaResources, allocation: &Allocation) {
        for (id, replicas) in allocation.iter() {
            self.get_mut(id).expect("what was on a lost node is forgotten").crowding += replica.gpus_of(replicas);
        }
    }

    /// Gives replicas what they need; guests get no GPUs of their own, but everything else.
    pub(crate) fn hold(&mut self, replica: ReplicaResources, allocation: &Allocation) {
        for (id, replicas) in allocation.iter() {
            let node = self.get_mut(id).expect("only nodes that are up are given away");
            node.held += replica.gpus_of(replicas);
            assert!(node.held <= node.gpus, "{id} has {} GPUs but {} are held", node.gpus, node.held);
            if let Some(cpus) = node.cpus {
                node.cpus_held += replica.cpus * replicas;
                let fits = replica.cpus == 0 || node.cpus_held <= cpus;
                assert!(fits, "{id} has {cpus} CPUs but {} are held", node.cpus_held);
            }
            if let Some(memory) = node.memory {
                node.memory_held += replica.memory_of(replicas);
                let fits = replica.memory == 0 || node.memory_held <= memory;
                assert!(fits, "{id} has {memory} bytes but {} are held", node.memory_held);
            }
        }
    }

    /// Takes back what replicas had that are gone: their GPUs, and with every replica its CPUs and memory.
    pub(crate) fn release(&mut self, replica: ReplicaResources, released: &Allocation, held: &HeldGpus) {
        for (id, replicas) in held.owned.iter() {
            let node = self.get_mut(id).expect("what was on a lost node is forgotten");
            node.held = node.held.checked_sub(replica.gpus_of(replicas)).expect("only what is held is released");
        }
        for (id, replicas) in held.shared.iter() {
            let node = self.get_mut(id).expect("what was on a lost node is forgotten");
            node.crowding = node.crowding.checked_sub(replica.gpus_of(replicas)).expect("only who is there leaves");
        }
        for (id, replicas) in released.iter() {
            let node = self.get_mut(id).expect("what was on a lost node is forgotten");
            if node.cpus.is_some() {
                let left = node.cpus_held.checked_sub(replica.cpus * replicas);
                node.cpus_held = left.expect("only CPUs that are held are released");
            }
            if node.memory.is_some() {
                let left = node.memory_held.checked_sub(replica.memory_of(replicas));
                node.memory_held = left.expect("only memory that is held is released");
            }
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

    /// The nodes that policies know. Where replicas have more than there is, what they have is what there is: they may
    /// stay, and nothing else comes.
    pub(crate) fn views(&self, now: Timestamp) -> Vec<NodeView> {
        let view = |node: &Node| NodeView {
            cpus: node.cpus.map(|cpus| cpus.max(node.cpus_held)),
            memory: node.memory.map(|memory| memory.max(node.memory_held)),
            ..node.view(node.is_schedulable(now))
        };
        self.nodes.iter().filter(|node| !node.retired).map(view).collect()
    }

    /// The nodes as if they took replicas.
    pub(crate) fn all_views(&self) -> Vec<NodeView> {
        self.nodes.iter().filter(|node| !node.retired).map(|node| node.view(true)).collect()
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.position(id).map(|idx| &mut self.nodes[idx])
    }

    fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }
}
