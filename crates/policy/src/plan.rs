use std::collections::BTreeMap;

use pollux_job::size;
use thiserror::Error;

use crate::{Allocation, ClusterView, Flexibility, JobId, JobView, NodeId, NodeView, ReplicaResources};

/// What every job gets until the next plan. A job that is not mentioned gets nothing.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Plan {
    /// One per job, ordered as in the view.
    pub assignments: Vec<Assignment>,
    /// How good the plan is by the policy's own measure, where it has one.
    pub quality: Option<Quality>,
}

/// What one job gets.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Assignment {
    /// Which job.
    pub job: JobId,
    /// Its replicas.
    pub allocation: Allocation,
    /// The job whose GPUs it uses as a guest; ordinarily none.
    pub guest_of: Option<JobId>,
    /// Why.
    pub reason: Reason,
}

/// The objective a plan reached and a proven bound on what any plan could reach.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Quality {
    /// Reached.
    pub objective: f64,
    /// No plan can be above.
    pub upper_bound: f64,
}

/// Why a job has what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reason {
    /// What keeps it from having more.
    pub binding: Binding,
    /// Goodput with one more replica against now, minus 1.
    pub one_more: Option<f64>,
    /// Goodput with one replica fewer against now, minus 1.
    pub one_fewer: Option<f64>,
    /// The job that would have to give up a replica, and what that would cost it (its goodput against now, minus 1).
    pub payer: Option<(JobId, f64)>,
}

/// What keeps a job from having more GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Binding {
    /// Other jobs make better use of the GPUs, or came first.
    #[default]
    Contention,
    /// More GPUs would not raise its goodput.
    NoGain,
    /// Its own maximum, or the cluster's size.
    Maximum,
    /// It has not yet been measured at a size that would justify more.
    Profile,
    /// A change would cost more than it brings before the next one.
    RestartCost,
    /// It asked for exactly this.
    Request,
    /// What it asks for does not fit this cluster.
    Impossible,
    /// No node has a kind of GPU that it may run on.
    NoSuchType,
    /// A replica needs more GPUs than any node has.
    TooLargeForANode,
    /// A replica needs more CPUs than any node with enough GPUs has.
    NotEnoughCpus,
    /// A replica needs more memory than any node with enough GPUs and CPUs has.
    NotEnoughMemory,
    /// The best shares could not be computed, so that it has an equal share.
    EqualShare,
    /// Even with all that it can be given it will not be done as soon as it should.
    Late,
}

/// Rules that a policy promises its plans to keep, beside capacity and the bounds of each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementRules {
    /// No node hosts two jobs that each span several nodes, because they would fight over its network.
    pub one_multi_node_job_per_node: bool,
}

/// How a plan is broken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum PlanError {
    /// A job that the view does not have, or twice in the plan.
    #[error("{job} is unknown or planned twice")]
    Job {
        /// Which job.
        job: JobId,
    },
    /// A node that the view does not have, or that takes no new replicas.
    #[error("{job} gets replicas on {node}, which takes none")]
    Node {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
    },
    /// Replicas that need more GPUs than a node has.
    #[error("{node} has {gpus} GPUs but its replicas need {planned}")]
    Capacity {
        /// Which node.
        node: NodeId,
        /// Its GPUs.
        gpus: u32,
        /// GPUs planned.
        #[cfg_attr(feature = "serde", serde(alias = "replicas"))]
        planned: u32,
    },
    /// Replicas that need more CPUs than a node has.
    #[error("{node} has {cpus} CPUs but its replicas need {planned}")]
    Cpus {
        /// Which node.
        node: NodeId,
        /// Its CPUs.
        cpus: u32,
        /// CPUs planned.
        planned: u64,
    },
    /// Replicas that need more memory than a node has.
    #[error("{node} has {} of memory but its replicas need {}", size(*memory), size(*planned))]
    Memory {
        /// Which node.
        node: NodeId,
        /// Its memory.
        memory: u64,
        /// Memory planned.
        planned: u64,
    },
    /// A kind of GPU that the job may not run on.
    #[error("{job} gets replicas on {node}, whose kind of GPU it may not use")]
    GpuType {
        /// Which job.
        job: JobId,
        /// Which node.
        node: NodeId,
    },
    /// A size that the job does not allow.
    #[error("{job} gets {replicas} replicas: expected 0 or {min} to {max}")]
    Bounds {
        /// Which job.
        job: JobId,
        /// Replicas planned.
        replicas: u32,
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
    /// A change to a job that may not be changed.
    #[error("{job} keeps what it has, but the plan changes it")]
    Pinned {
        /// Which job.
        job: JobId,
    },
    /// GPUs of several kinds for one job.
    #[error("{job} gets GPUs of several kinds")]
    MixedTypes {
        /// Which job.
        job: JobId,
    },
    /// Two multi-node jobs on one node.
    #[error("{node} hosts two multi-node jobs, {first} and {second}")]
    Interference {
        /// Which node.
        node: NodeId,
        /// One of them.
        first: JobId,
        /// The other.
        second: JobId,
    },
    /// A guest without a host that has room for it.
    #[error(
        "{job} is to share the GPUs of {host}, which does not have them, has other numbers of GPUs per replica, has \
         another guest or is one itself"
    )]
    Guest {
        /// The guest.
        job: JobId,
        /// The host.
        host: JobId,
    },
}

impl PlanError {
    /// The rule that was broken, in one word.
    pub const fn rule(&self) -> &'static str {
        match self {
            Self::Job { .. } => "job",
            Self::Node { .. } => "node",
            Self::Capacity { .. } => "capacity",
            Self::Cpus { .. } => "cpus",
            Self::Memory { .. } => "memory",
            Self::GpuType { .. } => "gpu_type",
            Self::Bounds { .. } => "bounds",
            Self::Pinned { .. } => "pinned",
            Self::MixedTypes { .. } => "mixed_types",
            Self::Interference { .. } => "interference",
            Self::Guest { .. } => "guest",
        }
    }
}

impl Plan {
    /// Refuses a plan that breaks capacity, bounds, gangs, pins, or the rules its policy promised.
    pub fn check(&self, view: &ClusterView<'_>, rules: PlacementRules) -> Result<(), PlanError> {
        let mut planned: BTreeMap<JobId, &Assignment> = BTreeMap::new();
        let jobs: BTreeMap<JobId, &JobView<'_>> = view.jobs.iter().map(|job| (job.id, job)).collect();
        for assignment in &self.assignments {
            let job = assignment.job;
            let known = jobs.get(&job).ok_or(PlanError::Job { job })?;
            if planned.insert(job, assignment).is_some() {
                return Err(PlanError::Job { job });
            }
            check_job(known, assignment, view)?;
        }
        if let Some(&job) = jobs.values().find(|job| job.is_pinned() && !planned.contains_key(&job.id)) {
            return Err(PlanError::Pinned { job: job.id });
        }
        check_guests(&planned, &jobs)?;
        self.check_interference(view, rules)?;
        self.check_nodes(view, &jobs)
    }

    /// Guests are on GPUs of their hosts, but need CPUs and memory of their own.
    fn check_nodes(&self, view: &ClusterView<'_>, jobs: &BTreeMap<JobId, &JobView<'_>>) -> Result<(), PlanError> {
        let mut used = vec![(0u32, 0u64, 0u64); view.nodes.len()];
        for assignment in &self.assignments {
            let replica = jobs.get(&assignment.job).map_or(ReplicaResources::ONE_GPU, |job| job.per_replica());
            for (node, replicas) in assignment.allocation.iter() {
                let Ok(idx) = view.nodes.binary_search_by_key(&node, |node| node.id) else {
                    return Err(PlanError::Node { job: assignment.job, node });
                };
                let (gpus, cpus, memory) = &mut used[idx];
                if assignment.guest_of.is_none() {
                    *gpus = gpus.saturating_add(replica.gpus_of(replicas));
                }
                *cpus = cpus.saturating_add(replica.cpus_of(replicas));
                *memory = memory.saturating_add(replica.memory_of(replicas));
            }
        }
        for (&NodeView { id: node, gpus, cpus, memory, .. }, planned) in view.nodes.iter().zip(used) {
            if planned.0 > gpus {
                return Err(PlanError::Capacity { node, gpus, planned: planned.0 });
            }
            if let Some(cpus) = cpus.filter(|&cpus| planned.1 > u64::from(cpus)) {
                return Err(PlanError::Cpus { node, cpus, planned: planned.1 });
            }
            if let Some(memory) = memory.filter(|&memory| planned.2 > memory) {
                return Err(PlanError::Memory { node, memory, planned: planned.2 });
            }
        }
        Ok(())
    }

    fn check_interference(&self, view: &ClusterView<'_>, rules: PlacementRules) -> Result<(), PlanError> {
        let mut multi_node: Vec<Option<JobId>> = vec![None; view.nodes.len()];
        for assignment in self.assignments.iter().filter(|assignment| assignment.guest_of.is_none()) {
            for (node, _) in assignment.allocation.iter() {
                let Ok(idx) = view.nodes.binary_search_by_key(&node, |node| node.id) else {
                    return Err(PlanError::Node { job: assignment.job, node });
                };
                if rules.one_multi_node_job_per_node && assignment.allocation.is_multi_node() {
                    if let Some(first) = multi_node[idx] {
                        return Err(PlanError::Interference { node, first, second: assignment.job });
                    }
                    multi_node[idx] = Some(assignment.job);
                }
            }
        }
        Ok(())
    }
}

fn check_job(job: &JobView<'_>, assignment: &Assignment, view: &ClusterView<'_>) -> Result<(), PlanError> {
    let allocation = &assignment.allocation;
    if job.is_pinned() {
        let kept = allocation == job.allocation && assignment.guest_of == job.guest_of;
        return if kept { Ok(()) } else { Err(PlanError::Pinned { job: job.id }) };
    }
    let (min, max) = match job.flexibility {
        Flexibility::Rigid => (job.replicas_requested, job.replicas_requested),
        Flexibility::Elastic | Flexibility::NonPreemptible => (job.replicas_min, job.replicas_max),
    };
    let replicas = allocation.replicas();
    if !allocation.is_empty() && !(min..=max).contains(&replicas) {
        return Err(PlanError::Bounds { job: job.id, replicas, min, max });
    }
    let mut gpu_type = None;
    for (id, replicas) in allocation.iter() {
        let node = view.nodes.binary_search_by_key(&id, |node| node.id).map(|idx| &view.nodes[idx]);
        let kept = job.allocation.replicas_on(id) >= replicas;
        let Some(node) = node.ok().filter(|node| node.schedulable || kept) else {
            return Err(PlanError::Node { job: job.id, node: id });
        };
        if *gpu_type.get_or_insert(node.gpu_type) != node.gpu_type {
            return Err(PlanError::MixedTypes { job: job.id });
        }
        if !job.allows(node.gpu_type) {
            return Err(PlanError::GpuType { job: job.id, node: id });
        }
    }
    Ok(())
}

/// A replica of a guest is on the GPUs of one of its host.
fn check_guests(planned: &BTreeMap<JobId, &Assignment>, jobs: &BTreeMap<JobId, &JobView<'_>>) -> Result<(), PlanError> {
    let gpus = |job: JobId| jobs.get(&job).map(|job| job.per_replica().gpus);
    let mut hosts = BTreeMap::new();
    for (&job, assignment) in planned {
        let Some(host) = assignment.guest_of else { continue };
        let room = planned
            .get(&host)
            .is_some_and(|of_host| of_host.guest_of.is_none() && assignment.allocation.is_within(&of_host.allocation));
        if !room || host == job || gpus(job) != gpus(host) || hosts.insert(host, job).is_some() {
            return Err(PlanError::Guest { job, host });
        }
    }
    Ok(())
}
