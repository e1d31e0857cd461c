//! A mixed cluster as it looks to who knows no types of GPU.

use std::collections::BTreeMap;

use pollux_model::GpuType;

use crate::{Allocation, Assignment, ClusterView, JobView, NodeView, Plan, TypeProfile};

/// A view in which all GPUs are alike.
pub(crate) struct TypeBlind {
    nodes: Vec<NodeView>,
    /// What is known of each job: one model, whatever it was measured on.
    profiles: Vec<Vec<TypeProfile>>,
    application_profiles: Vec<Vec<TypeProfile>>,
}

impl TypeBlind {
    pub(crate) fn of(view: &ClusterView<'_>) -> Self {
        Self {
            nodes: view.nodes.iter().map(|node| NodeView { gpu_type: GpuType::default(), ..*node }).collect(),
            profiles: view.jobs.iter().map(|job| one(job.profiles)).collect(),
            application_profiles: view.jobs.iter().map(|job| one(job.application_profiles)).collect(),
        }
    }

    /// Plans for the view as it looks like this, and keeps of every allocation what is on one type.
    pub(crate) fn plan<'a>(&'a self, view: &ClusterView<'a>, plan: impl FnOnce(&ClusterView<'_>) -> Plan) -> Plan {
        let job = |(idx, job): (usize, &JobView<'a>)| JobView {
            profiles: &self.profiles[idx],
            application_profiles: &self.application_profiles[idx],
            gpu_types: None,
            ..job.clone()
        };
        let jobs: Vec<JobView<'_>> = view.jobs.iter().enumerate().map(job).collect();
        let seen = ClusterView { nodes: &self.nodes, jobs: &jobs, succeeded: view.succeeded, gpu_types: &[] };
        let plan = plan(&seen);
        let trim = |(assignment, job): (Assignment, &JobView<'_>)| {
            let allocation = on_one_type(&assignment.allocation, job, view.nodes);
            Assignment { allocation, ..assignment }
        };
        Plan { assignments: plan.assignments.into_iter().zip(view.jobs).map(trim).collect(), ..plan }
    }
}

/// What was measured on the most replicas, as if it were of all types.
fn one(profiles: &[TypeProfile]) -> Vec<TypeProfile> {
    let measured = profiles.iter().rev().filter(|profile| !profile.is_estimated);
    let best = measured.max_by_key(|profile| profile.replicas_profiled).or_else(|| profiles.first());
    best.map(|best| TypeProfile { gpu_type: GpuType::default(), ..*best }).into_iter().collect()
}

/// The replicas on the type that has most of them, of those that the job may run on; as many on two, on the one that was
/// named last. Nothing if that is fewer than it can run with.
fn on_one_type(allocation: &Allocation, job: &JobView<'_>, nodes: &[NodeView]) -> Allocation {
    let type_of = |id| nodes.binary_search_by_key(&id, |node: &NodeView| node.id).ok().map(|idx| nodes[idx].gpu_type);
    let mut replicas: BTreeMap<GpuType, u32> = BTreeMap::new();
    for (node, count) in allocation.iter() {
        if let Some(gpu_type) = type_of(node).filter(|&gpu_type| job.allows(gpu_type)) {
            *replicas.entry(gpu_type).or_default() += count;
        }
    }
    match replicas.into_iter().max_by_key(|&(gpu_type, count)| (count, gpu_type)) {
        Some((gpu_type, count)) if count >= job.fewest() => {
            allocation.iter().filter(|&(node, _)| type_of(node) == Some(gpu_type)).collect()
        }
        Some(_) | None => Allocation::NONE,
    }
}
