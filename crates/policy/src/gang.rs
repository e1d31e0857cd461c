//! Policies that give every job what it asked for, or nothing, in some order.

use pollux_model::GpuType;

use crate::free_gpus::FreeGpus;
use crate::{Allocation, Assignment, Binding, ClusterView, Flexibility, JobView, Plan, Reason, ReplicaResources};

/// How newly started gangs are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GangPlacement {
    /// On as few nodes as possible.
    Consolidated,
    /// On no more nodes than it would need in an empty cluster, or not yet.
    FewestNodes,
    /// On the nodes with the most free GPUs.
    EmptiestFirst,
}

/// Whether a gang may start before one that came first and does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overtaking {
    Allowed,
    Forbidden,
}

/// Replicas a job gets from a policy that does not choose sizes.
pub(crate) fn gang_size(job: &JobView<'_>) -> u32 {
    if job.flexibility == Flexibility::Rigid {
        return job.replicas_requested;
    }
    job.replicas_requested.clamp(job.replicas_min.max(1), job.replicas_max.max(job.replicas_min.max(1)))
}

/// Walks the jobs in `order` (indices into the view) and gives each its gang while GPUs last. Jobs that run and still
/// fit keep their GPUs; the newly started are placed after all of those.
pub(crate) fn plan_gangs(
    view: &ClusterView<'_>,
    order: &[usize],
    placement: GangPlacement,
    overtaking: Overtaking,
) -> Plan {
    plan_placed_gangs(view, order, &|_| placement, overtaking)
}

/// The same with a placement for each job, by its index of the view. What a gang leaves that waits for fewer nodes is
/// for those after it.
pub(crate) fn plan_placed_gangs(
    view: &ClusterView<'_>,
    order: &[usize],
    placement: &dyn Fn(usize) -> GangPlacement,
    overtaking: Overtaking,
) -> Plan {
    let mut free = FreeGpus::beside_pinned(view);
    let mut granted: Vec<Option<Allocation>> = vec![None; view.jobs.len()];
    for (idx, job) in view.jobs.iter().enumerate().filter(|(_, job)| job.is_pinned()) {
        granted[idx] = Some(job.allocation.clone());
    }
    // Who runs is decided on the GPUs as a pool per kind; where, once it is known who keeps what. Only a gang whose
    // replicas do not fit wherever a GPU is free is placed at once: the others find room around it.
    let mut pools = free.by_kind();
    // A gang that waits for others to end is not one that can never run.
    let empty = FreeGpus::of(view);
    let (mut starting, mut waiting) = (Vec::new(), Vec::new());
    for &idx in order {
        let job = &view.jobs[idx];
        let (replica, size) = (job.per_replica(), gang_size(job));
        if granted[idx].is_some() || !empty.has_room(job, size) {
            continue;
        }
        let gpus = replica.gpus_of(size);
        let room = |kind: &GpuType| job.allows(*kind) && pools.get(kind).is_some_and(|&free| free >= gpus);
        let kept = (job.allocation.replicas() == size).then(|| kind_of(job.allocation, view)).flatten();
        let kept = kept.filter(|kind| room(kind) && free.keep(replica, job.allocation));
        let found = match kept {
            Some(kind) => Some((kind, Some(job.allocation.clone()))),
            None if replica.fits_any_gpu() => pools.keys().copied().find(room).map(|kind| (kind, None)),
            None => pools.keys().copied().filter(room).find_map(|kind| {
                let beside = free.beside_running(view, &granted);
                let take = |free: &mut FreeGpus| place(view, free, kind, job, placement(idx));
                let taken = quietest(&mut free.clone(), beside, take)?;
                free.pin(replica, &taken);
                Some((kind, Some(taken)))
            }),
        };
        match (found, overtaking) {
            (Some((kind, allocation)), _) => {
                pools.entry(kind).and_modify(|free| *free -= gpus);
                if allocation.is_none() {
                    starting.push((idx, kind));
                }
                granted[idx] = allocation;
            }
            (None, Overtaking::Allowed) => waiting.push(idx),
            (None, Overtaking::Forbidden) => break,
        }
    }
    let mut left_out = false;
    for (idx, kind) in starting {
        granted[idx] = place(view, &mut free, kind, &view.jobs[idx], placement(idx));
        left_out |= granted[idx].is_none();
    }
    for idx in waiting.into_iter().filter(|_| left_out) {
        let job = &view.jobs[idx];
        granted[idx] = if job.allocation.replicas() == gang_size(job) && free.keep(job.per_replica(), job.allocation) {
            Some(job.allocation.clone())
        } else {
            let kinds: Vec<GpuType> = free.by_kind().into_keys().filter(|&kind| job.allows(kind)).collect();
            kinds.into_iter().find_map(|kind| place(view, &mut free, kind, job, placement(idx)))
        };
    }
    plan_of(view, granted)
}

/// What a gang takes of `idle`, which nobody uses, unless that is on more nodes than what it would take of all that is
/// `free`.
pub(crate) fn quietest(
    free: &mut FreeGpus,
    mut idle: FreeGpus,
    take: impl Fn(&mut FreeGpus) -> Option<Allocation>,
) -> Option<Allocation> {
    let nodes = |allocation: &Option<Allocation>| allocation.as_ref().map(|allocation| allocation.iter().len());
    let (quiet, best) = (take(&mut idle), take(free));
    if quiet.is_some() && nodes(&quiet) <= nodes(&best) { quiet } else { best }
}

fn place(
    view: &ClusterView<'_>,
    free: &mut FreeGpus,
    kind: GpuType,
    job: &JobView<'_>,
    placement: GangPlacement,
) -> Option<Allocation> {
    let (replica, size) = (job.per_replica(), gang_size(job));
    match placement {
        GangPlacement::Consolidated => free.take_consolidated(kind, replica, size),
        GangPlacement::EmptiestFirst => free.take_emptiest_first(kind, replica, size),
        GangPlacement::FewestNodes => {
            let allocation = free.take_consolidated(kind, replica, size)?;
            let is_consolidated = allocation.iter().len() <= fewest_nodes(view, kind, replica, size);
            if !is_consolidated {
                free.give_back(replica, &allocation);
            }
            is_consolidated.then_some(allocation)
        }
    }
}

/// Nodes of a kind that so many replicas need in an empty cluster.
fn fewest_nodes(view: &ClusterView<'_>, kind: GpuType, replica: ReplicaResources, size: u32) -> usize {
    let usable = view.nodes.iter().filter(|node| node.schedulable && node.gpu_type == kind);
    let mut rooms: Vec<u32> = usable.map(|node| node.resources().fits(replica)).collect();
    rooms.sort_unstable_by(|a, b| b.cmp(a));
    let held = rooms.into_iter().scan(0u32, |sum, room| {
        let enough = *sum >= size;
        *sum = sum.saturating_add(room);
        (!enough).then_some(())
    });
    held.count()
}

/// The kind of GPU that an allocation is on.
pub(crate) fn kind_of(allocation: &Allocation, view: &ClusterView<'_>) -> Option<GpuType> {
    let (node, _) = allocation.iter().next()?;
    let idx = view.nodes.binary_search_by_key(&node, |node| node.id).ok()?;
    Some(view.nodes[idx].gpu_type)
}

/// What every job of a view is granted, as a plan.
pub(crate) fn plan_of(view: &ClusterView<'_>, granted: Vec<Option<Allocation>>) -> Plan {
    let assignments = view.jobs.iter().zip(granted).map(|(job, granted)| {
        let binding = match &granted {
            Some(allocation) if allocation.replicas() < gang_size(job) && !job.is_pinned() => Binding::Contention,
            Some(_) => Binding::Request,
            None => view.obstacle(job, gang_size(job)).unwrap_or(Binding::Contention),
        };
        let reason = Reason { binding, ..Reason::default() };
        Assignment { job: job.id, allocation: granted.unwrap_or_default(), guest_of: job.pinned_to(), reason }
    });
    Plan { assignments: assignments.collect(), quality: None }
}
