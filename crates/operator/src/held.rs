//! Pods that hold GPUs while nobody knows any more who has ordered them: what a scheduler would have written that has.

use std::collections::{BTreeMap, BTreeSet};

use pollux_backend::NodeInfo;
use pollux_backend_kube::HeldPod;
use pollux_engine::{Engine, Event, Revision};
use pollux_model::GpuTypeName;
use pollux_policy::{Allocation, Assignment, JobId, NodeId, PlacementRules, Plan, Reason, Timestamp};
use pollux_store::{Batch, GroupRow, NodeRow, Record, ReplicaRow};

/// A job's first.
const REVISION: Revision = Revision(1);

/// Adds nodes and pods to what was written of jobs, as far as an engine that knows nothing yet would place them so; of how many jobs.
pub(crate) fn keep_held(
    batch: &mut Batch,
    engine: &mut Engine,
    held: &[&HeldPod],
    nodes: &[NodeInfo],
    epoch: u64,
    now: Timestamp,
) -> usize {
    let mut ids: BTreeMap<&str, NodeId> = BTreeMap::new();
    for (id, node) in (0..).map(NodeId).zip(nodes) {
        let NodeInfo { name, gpus, gpu_type, cpus, memory, address, .. } = node.clone();
        let gpu_type = GpuTypeName::nearest(&gpu_type);
        ids.insert(&node.name, id);
        batch.nodes.push((id, NodeRow { name, gpu_type: gpu_type.to_string(), gpus, address }));
        let event = Event::NodeJoined { node: id, gpus, gpu_type, cpus, memory };
        batch.records.push(Record::Event { at: now, event });
    }
    let mut out = Vec::new();
    for record in &batch.records {
        if let Record::Event { at, event } = record {
            engine.replay(*at, event.clone(), &mut out);
        }
    }
    let torn = torn(held);
    let mut by_job: BTreeMap<JobId, Vec<ReplicaRow>> = BTreeMap::new();
    for pod in held.iter().filter(|pod| !torn.contains(&pod.job)) {
        let rows = by_job.entry(pod.job).or_default();
        // Where its node is not used any more, the job cannot go on as it was.
        let node = ids.get(pod.node.as_str()).copied().unwrap_or(NodeId(u32::MAX));
        let bundle = pod.replicas.first().filter(|_| pod.replicas.len() > 1).map(|first| first.0);
        let row = |id: u64| ReplicaRow { id, job: pod.job, node, shares_with: None, bundle };
        rows.extend(pod.replicas.iter().map(|replica| row(replica.0)));
    }
    let plan = fitting(engine, &by_job, now);
    let kept = plan.assignments.len();
    for Assignment { job, .. } in &plan.assignments {
        let mut rows = by_job.remove(job).unwrap_or_default();
        rows.sort_unstable_by_key(|row| row.id);
        batch.groups.push((*job, Some(group(rows.iter().map(|row| row.id).collect(), epoch))));
        batch.replicas_ordered.extend(rows);
    }
    if kept > 0 {
        batch.records.push(Record::Round { at: now, policy: None, plan: Some(plan) });
    }
    kept
}

/// Jobs of which two pods say that they are the same replica: nobody knows which of them is.
fn torn(held: &[&HeldPod]) -> BTreeSet<JobId> {
    let mut jobs = BTreeMap::new();
    let replicas = held.iter().flat_map(|pod| pod.replicas.iter().map(|replica| (*replica, pod.job)));
    let twice = replicas.filter_map(|(replica, job)| jobs.insert(replica, job).map(|other| [job, other]));
    twice.flatten().collect()
}

/// Every job where its pods are, as far as it may be there.
fn fitting(engine: &Engine, by_job: &BTreeMap<JobId, Vec<ReplicaRow>>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let rules = PlacementRules { one_multi_node_job_per_node: false };
    engine.view(now, |view| {
        for (job, rows) in by_job {
            let allocation: Allocation = rows.iter().map(|row| (row.node, 1)).collect();
            plan.assignments.push(Assignment { job: *job, allocation, guest_of: None, reason: Reason::default() });
            if plan.check(view, rules).is_err() {
                plan.assignments.pop();
            }
        }
    });
    plan
}

/// Ranks follow the order in which replicas came. Whoever trains has heard of a generation that nobody remembers: the next one is
/// beyond all that can have been since the epoch before.
fn group(members: Vec<u64>, epoch: u64) -> GroupRow {
    let generation = epoch.saturating_add(1) << 20;
    GroupRow {
        generation,
        revision: REVISION,
        heard: (generation, REVISION),
        members,
        rendezvous: None,
        awaits_additions: false,
        shrunk: false,
        stopping: false,
        last_leader: None,
        past: Vec::new(),
    }
}
