//! What more nodes would be worth to the jobs that there are.

use std::collections::BTreeMap;

use pollux_engine::{Engine, EngineSettings, EngineState, Job, Node};
use pollux_job::Phase;
use pollux_model::GpuTypeName;
use pollux_policy::{Autoscaler, AutoscalerSettings, ClusterView, NodeId, NodePool, PolicySettings, Timestamp};
use pollux_slurm::{Allocation, Demand, MachineNode, Queue, Stage};

use crate::Cluster;

/// What a node costs before it is of use: its agent joins, jobs come and learn.
const START_S: f64 = 90.0;

/// The cluster at a moment.
pub(crate) struct Snapshot {
    now: Timestamp,
    state: EngineState,
    settings: EngineSettings,
    policy: PolicySettings,
    nodes: BTreeMap<String, MachineNode>,
    names: BTreeMap<NodeId, String>,
}

impl Snapshot {
    pub(crate) fn of(cluster: &Cluster<'_>) -> Self {
        let engine = cluster.engine();
        let name = |node: &Node| (node.id(), cluster.node_name(node.id()).to_owned());
        Self {
            now: cluster.now(),
            state: engine.state(),
            settings: cluster.settings().engine,
            policy: cluster.settings().policy.clone(),
            nodes: Self::nodes_of(cluster),
            names: engine.nodes().map(name).collect(),
        }
    }

    /// All nodes, by name.
    pub(crate) fn nodes_of(cluster: &Cluster<'_>) -> BTreeMap<String, MachineNode> {
        let of = |node: &Node| {
            let name = cluster.node_name(node.id()).to_owned();
            let gpu_type = cluster.gpu_type_name(node.gpu_type()).to_owned();
            let (gpus, held, is_draining) = (node.gpus(), node.gpus_held(), node.is_draining());
            (name.clone(), MachineNode { name, gpus, gpu_type, held, is_draining })
        };
        cluster.engine().nodes().map(of).collect()
    }

    pub(crate) const fn nodes(&self) -> &BTreeMap<String, MachineNode> {
        &self.nodes
    }

    /// What the jobs of this moment are worth; it takes time, and nobody is to wait for it in the loop.
    pub(crate) fn demand(self) -> Demands {
        let engine = Engine::restore(self.settings, &self.policy, self.state).ok();
        Demands { now: self.now, engine, policy: self.policy, names: self.names }
    }
}

/// What jobs are worth, for each queue.
pub(crate) struct Demands {
    now: Timestamp,
    engine: Option<Engine>,
    policy: PolicySettings,
    names: BTreeMap<NodeId, String>,
}

/// What a queue has and would have.
struct Offer<'a> {
    queue: &'a Queue,
    gpus: u32,
    /// Nodes on their way.
    coming: u32,
    /// Nodes that there are of its kind, without those that end soon.
    staying: Vec<&'a Node>,
}

impl Demands {
    /// What it should ask for.
    pub(crate) fn of(&self, queue: &Queue) -> Demand {
        let Some(engine) = &self.engine else {
            return Demand { reason: "The state of the cluster makes no sense.".to_owned(), ..Demand::default() };
        };
        let offer = self.offer(engine, queue);
        if !engine.jobs().any(|job| job.is_plannable() && offer.may_run(job)) {
            return Demand { reason: "There is no job that may use its nodes.".to_owned(), ..Demand::default() };
        }
        let (waiting, sentence) = self.of_waiting_jobs(engine, &offer);
        let worth = self.of_growth(engine, &offer, offer.coming);
        let missing = waiting.saturating_sub(offer.coming);
        let more = worth.map_or(0, |(nodes, _)| nodes);
        // Whole allocations, of which no part would be idle at once, unless a job waits for the part.
        let per_alloc = queue.spec.nodes_per_alloc;
        let allocations = missing.div_ceil(per_alloc).max(more / per_alloc);
        let reason = match worth {
            _ if missing > 0 => sentence,
            Some((nodes, gain)) if allocations > 0 => {
                let s = if nodes == 1 { "" } else { "s" };
                format!("With {nodes} more node{s} jobs would train {} faster together.", percent(gain))
            }
            _ if offer.coming > 0 => format!("{} on their way are enough for now.", count(offer.coming)),
            _ => "No job waits for nodes, and by more of them jobs would gain too little.".to_owned(),
        };
        // What is on its way is wanted if it would be asked for without it.
        let wants_waiting = waiting > 0 || worth.is_some() || self.of_growth(engine, &offer, 0).is_some();
        Demand { allocations, wants_waiting, reason }
    }

    fn offer<'a>(&self, engine: &'a Engine, queue: &'a Queue) -> Offer<'a> {
        let per_alloc = queue.spec.nodes_per_alloc;
        let joined = |prefix: &str| self.names.values().filter(|name| name.starts_with(prefix)).count();
        let is_new = |it: &&Allocation| it.given_up.is_none() && (it.stage != Stage::Runs || !it.has_joined);
        let coming = queue.allocations.iter().filter(is_new).map(|allocation| {
            let there = allocation.machine_prefix(&queue.spec.name).as_deref().map_or(0, joined);
            per_alloc.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX))
        });
        // A node is replaced in time before it is emptied.
        let replaced_by = self.now.after_s(queue.usual_wait_s() as f64 + START_S);
        let gpus = queue.gpus_per_node();
        let is_alike = |node: &&Node| {
            let name = engine.gpu_type_name(node.gpu_type()).map(GpuTypeName::as_str);
            let ends = node.end().is_some_and(|end| end.drains_at <= replaced_by);
            queue.gpu_type().is_none_or(|wanted| name == Some(wanted)) && node.is_schedulable(self.now) && !ends
        };
        Offer { queue, gpus, coming: coming.sum(), staying: engine.nodes().filter(is_alike).collect() }
    }

    /// Nodes that jobs need which have none, and why.
    fn of_waiting_jobs(&self, engine: &Engine, offer: &Offer<'_>) -> (u32, String) {
        let sizes_itself = self.policy.build().chooses_sizes();
        let fewest = |job: &Job| if sizes_itself { job.spec().fewest() } else { job.spec().replicas };
        let waits = |job: &&Job| {
            let has_nothing = job.group().is_empty() && job.target().is_empty();
            job.is_plannable() && job.phase() == Phase::Queued && has_nothing && offer.may_run(job)
        };
        let total: u32 = offer.staying.iter().map(|node| node.gpus()).sum();
        let most = offer.queue.spec.max_nodes.map_or(u32::MAX, |nodes| nodes.saturating_mul(offer.gpus));
        let gpus = |job: &Job| job.per_replica().gpus_of(fewest(job));
        let needs: Vec<u32> =
            engine.jobs().filter(waits).map(gpus).filter(|it| *it <= most.saturating_add(total)).collect();
        let free: u32 = offer.staying.iter().map(|node| node.gpus().saturating_sub(node.gpus_held())).sum();
        let needed = needs.iter().fold(0_u32, |sum, gpus| sum.saturating_add(*gpus)).saturating_sub(free);
        let nodes = needed.div_ceil(offer.gpus.max(1));
        let jobs = if needs.len() == 1 { "1 job waits".to_owned() } else { format!("{} jobs wait", needs.len()) };
        let plural = if needed == 1 { "" } else { "s" };
        (nodes, format!("{jobs} for {needed} GPU{plural} more than are free."))
    }

    /// Nodes that jobs would make good use of beside those that there are and come, and how much faster they would be.
    fn of_growth(&self, engine: &Engine, offer: &Offer<'_>, coming: u32) -> Option<(u32, f64)> {
        let spec = &offer.queue.spec;
        // Until a node of it has joined, nothing is known of its type.
        let gpu_type = engine.gpu_type(&GpuTypeName::nearest(offer.queue.gpu_type()?))?;
        let model = offer.staying.first();
        let nodes = u32::try_from(offer.staying.len()).unwrap_or(u32::MAX).saturating_add(coming);
        let room = spec.max_nodes.map_or(u32::MAX, |most| most.saturating_sub(offer.queue.nodes()));
        let more = room.min(spec.backlog.saturating_mul(spec.nodes_per_alloc));
        let nodes_max = nodes.saturating_add(more.max(offer.coming - coming)).max(1);
        let settings = AutoscalerSettings { nodes_max, ..AutoscalerSettings::default() };
        let mut autoscaler = Autoscaler::new(settings, &self.policy).ok()?;
        let (cpus, memory) = (model.and_then(|node| node.cpus()), model.and_then(|node| node.memory()));
        let pool = NodePool { nodes, gpus: offer.gpus, gpu_type, cpus, memory };
        let elsewhere = |node: NodeId| engine.node(node).is_some_and(|node| node.gpu_type() != gpu_type);
        let advice = engine.view(self.now, |view| {
            // Jobs on nodes of other types stay there.
            let stays = |allocation: &pollux_policy::Allocation| {
                !allocation.is_empty() && allocation.iter().all(|(node, _)| elsewhere(node))
            };
            let jobs: Vec<_> = view.jobs.iter().filter(|job| !stays(job.allocation)).cloned().collect();
            autoscaler.advise(self.now, &ClusterView { jobs: &jobs, ..*view }, pool)
        });
        let gpus = f64::from(pool.gpus);
        let now = advice.utility_now * f64::from(nodes) * gpus;
        let then = advice.utility * f64::from(advice.nodes) * gpus;
        let added = advice.nodes.saturating_sub(nodes);
        let life_s = spec.time_limit_s.saturating_sub(spec.drain_before_s) as f64;
        let is_worth_it = (then - now) * life_s > f64::from(added) * gpus * START_S;
        (added > 0 && is_worth_it).then(|| (added, if now > 0.0 { then / now - 1.0 } else { 1.0 }))
    }
}

impl Offer<'_> {
    /// Whether a replica of a job fits its nodes.
    fn may_run(&self, job: &Job) -> bool {
        let allowed = &job.spec().gpu_types;
        let is_allowed =
            allowed.is_empty() || self.queue.gpu_type().is_none_or(|its| allowed.iter().any(|allowed| allowed == its));
        is_allowed && job.per_replica().gpus <= self.gpus
    }
}

fn count(nodes: u32) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", 100.0 * part)
}
