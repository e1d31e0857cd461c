//! Policies that give GPUs one by one to whoever gains most by the next.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pollux_model::GpuType;

use crate::free_gpus::FreeGpus;
use crate::gang::kind_of;
use crate::{Allocation, Assignment, Binding, ClusterView, Flexibility, JobView, Plan, Reason};

/// What one more replica is worth to the job at an index of the view that has so many of a kind; otherwise what keeps it
/// from having more.
pub(crate) type Gain<'a> = dyn Fn(usize, GpuType, u32) -> Result<f64, Binding> + 'a;

/// Which nodes those take that cannot stay where they are, smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spreading {
    /// All of the node with the most free GPUs, then of the next.
    EmptiestFirst,
    /// The same number on each of the fewest nodes that have room.
    Evenly,
}

/// How a policy deals with what jobs hold already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GainOptions {
    /// How much more a GPU counts to whoever holds it, so that equal jobs do not take turns.
    pub(crate) hysteresis: f64,
    pub(crate) spreading: Spreading,
    /// Whether a job that was never measured, and so gains nothing known, begins with what it asked for.
    pub(crate) begin_as_asked: bool,
}

/// What a job has been given so far.
struct Share {
    kind: GpuType,
    replicas: u32,
    /// What one more is worth, for each GPU that it takes.
    next: Result<f64, Binding>,
    /// Where they are to be, if they do not fit wherever a GPU is free.
    placed: Option<Allocation>,
}

impl Share {
    /// Gives the job one replica more, if there is a place for it.
    fn grow(
        &mut self,
        job: &JobView<'_>,
        free: &mut FreeGpus,
        idle: &FreeGpus,
        pools: &mut BTreeMap<GpuType, u32>,
    ) -> bool {
        if let Some(placed) = &mut self.placed {
            let Some(node) = free.take_one(job, self.kind, placed, idle) else { return false };
            *placed = placed.plus(&Allocation::on(node, 1));
        }
        pools.entry(self.kind).and_modify(|gpus| *gpus -= job.per_replica().gpus);
        self.replicas += 1;
        true
    }
}

/// Gives every job its fewest replicas, in `order` (indices into the view), while GPUs last, and the others one by one to
/// the largest gain above 0; of equals to the first of the view. Whoever ends up with as many as it has stays where it
/// is. Jobs that were never measured begin, in between, with what they asked for, as far as that is idle.
pub(crate) fn plan_by_gain(view: &ClusterView<'_>, order: &[usize], gain: &Gain<'_>, options: GainOptions) -> Plan {
    let mut free = FreeGpus::beside_pinned(view);
    let idle = free.beside_running(view, &vec![None; view.jobs.len()]);
    let mut pools = free.by_kind();
    let next = |idx: usize, kind: GpuType, replicas: u32| {
        let job = &view.jobs[idx];
        if replicas >= bounds(job).1 {
            return Err(Binding::Maximum);
        }
        let held = if replicas < job.allocation.replicas() { options.hysteresis } else { 0.0 };
        let gain = gain(idx, kind, replicas)? * (1.0 + held) / f64::from(job.per_replica().gpus);
        if gain > 0.0 { Ok(gain) } else { Err(Binding::NoGain) }
    };
    let mut shares: Vec<Option<Share>> = view.jobs.iter().map(|_| None).collect();
    for &idx in order {
        let job = &view.jobs[idx];
        let (min, max) = bounds(job);
        if job.is_pinned() || min > max {
            continue;
        }
        for kind in kinds(job, view, &pools, min) {
            if let Some(placed) = first_places(job, kind, min, &mut free, &idle) {
                pools.entry(kind).and_modify(|gpus| *gpus -= job.per_replica().gpus_of(min));
                shares[idx] = Some(Share { kind, replicas: min, next: next(idx, kind, min), placed });
                break;
            }
        }
    }
    if options.begin_as_asked {
        for (idx, extra) in first_extras(view, order, &shares, &pools, idle.by_kind()) {
            let Some(share) = &mut shares[idx] else { continue };
            for _ in 0..extra {
                if !share.grow(&view.jobs[idx], &mut free, &idle, &mut pools) {
                    break;
                }
            }
            share.next = next(idx, share.kind, share.replicas);
        }
    }
    while let Some((idx, share)) = most_gaining(view, &mut shares, &pools) {
        let grew = share.grow(&view.jobs[idx], &mut free, &idle, &mut pools);
        share.next = if grew { next(idx, share.kind, share.replicas) } else { Err(Binding::Contention) };
    }
    let placed = place(view, &shares, &mut free, options.spreading);
    let assignments = view.jobs.iter().zip(shares).zip(placed).map(|((job, share), allocation)| {
        let reason = Reason { binding: binding(job, share.as_ref(), view), ..Reason::default() };
        Assignment { job: job.id, allocation, guest_of: job.pinned_to(), reason }
    });
    Plan { assignments: assignments.collect(), quality: None }
}

/// Fewest and most replicas of a job that runs.
fn bounds(job: &JobView<'_>) -> (u32, u32) {
    match job.flexibility {
        Flexibility::Rigid => (job.replicas_requested.max(1), job.replicas_requested),
        Flexibility::Elastic | Flexibility::NonPreemptible => (job.replicas_min.max(1), job.replicas_max),
    }
}

/// Kinds with GPUs for so many replicas: that which a job is on, then those with the most free GPUs.
fn kinds(job: &JobView<'_>, view: &ClusterView<'_>, pools: &BTreeMap<GpuType, u32>, replicas: u32) -> Vec<GpuType> {
    let held = kind_of(job.allocation, view);
    let needed = job.per_replica().gpus_of(replicas);
    let room = pools.iter().filter(|&(&kind, &gpus)| job.allows(kind) && gpus >= needed);
    let mut kinds: Vec<(GpuType, u32)> = room.map(|(&kind, &gpus)| (kind, gpus)).collect();
    kinds.sort_by_key(|&(kind, gpus)| (held != Some(kind), Reverse(gpus), kind));
    kinds.into_iter().map(|(kind, _)| kind).collect()
}

/// Where the first replicas of a job are to be, if they do not fit wherever a GPU is free; nothing if there is no room.
fn first_places(
    job: &JobView<'_>,
    kind: GpuType,
    replicas: u32,
    free: &mut FreeGpus,
    idle: &FreeGpus,
) -> Option<Option<Allocation>> {
    if job.per_replica().fits_any_gpu() {
        return Some(None);
    }
    let mut placed = Allocation::NONE;
    for _ in 0..replicas {
        let Some(node) = free.take_one(job, kind, &placed, idle) else {
            free.give_back(job.per_replica(), &placed);
            return None;
        };
        placed = placed.plus(&Allocation::on(node, 1));
    }
    Some(Some(placed))
}

/// Replicas beside their fewest that jobs are given which were never measured: what they have, and what newcomers ask for
/// of GPUs that nobody has and nobody else who waits is given.
fn first_extras(
    view: &ClusterView<'_>,
    order: &[usize],
    shares: &[Option<Share>],
    pools: &BTreeMap<GpuType, u32>,
    mut idle: BTreeMap<GpuType, u32>,
) -> Vec<(usize, u32)> {
    let gpus_of = |idx: usize, replicas: u32| view.jobs[idx].per_replica().gpus_of(replicas);
    let waits = |idx: usize| view.jobs[idx].allocation.is_empty();
    for (idx, share) in shares.iter().enumerate().filter(|&(idx, _)| waits(idx)) {
        if let Some(share) = share {
            idle.entry(share.kind).and_modify(|gpus| *gpus = gpus.saturating_sub(gpus_of(idx, share.replicas)));
        }
    }
    let mut left = pools.clone();
    let mut extras = Vec::new();
    let (newcomers, running): (Vec<usize>, Vec<usize>) = order.iter().partition(|&&idx| waits(idx));
    for idx in running.into_iter().chain(newcomers) {
        let (job, Some(share)) = (&view.jobs[idx], &shares[idx]) else { continue };
        let (wanted, there) = if waits(idx) {
            (job.first_size(), left[&share.kind].min(idle[&share.kind]))
        } else {
            (Some(job.allocation.replicas()).filter(|_| job.profiles.is_empty()), left[&share.kind])
        };
        let wanted = wanted.map_or(0, |size| size.min(bounds(job).1).saturating_sub(share.replicas));
        let extra = wanted.min(there / job.per_replica().gpus);
        let gpus = gpus_of(idx, extra);
        left.entry(share.kind).and_modify(|left| *left -= gpus);
        if waits(idx) {
            idle.entry(share.kind).and_modify(|idle| *idle -= gpus);
        }
        extras.push((idx, extra));
    }
    extras
}

/// Who is to get the next replica.
fn most_gaining<'a>(
    view: &ClusterView<'_>,
    shares: &'a mut [Option<Share>],
    pools: &BTreeMap<GpuType, u32>,
) -> Option<(usize, &'a mut Share)> {
    let gains = shares.iter_mut().enumerate().filter_map(|(idx, share)| {
        let needed = view.jobs[idx].per_replica().gpus;
        let share = share.as_mut().filter(|share| pools.get(&share.kind).is_some_and(|&gpus| gpus >= needed))?;
        let gain = share.next.ok()?;
        Some((gain, idx, share))
    });
    let most = gains.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    most.map(|(_, idx, share)| (idx, share))
}

fn place(
    view: &ClusterView<'_>,
    shares: &[Option<Share>],
    free: &mut FreeGpus,
    spreading: Spreading,
) -> Vec<Allocation> {
    let mut placed = vec![Allocation::NONE; view.jobs.len()];
    let mut moving = Vec::new();
    for (idx, job) in view.jobs.iter().enumerate() {
        let Some(share) = &shares[idx] else {
            if job.is_pinned() {
                placed[idx] = job.allocation.clone();
            }
            continue;
        };
        if let Some(allocation) = &share.placed {
            placed[idx] = allocation.clone();
            continue;
        }
        let unchanged =
            share.replicas == job.allocation.replicas() && kind_of(job.allocation, view) == Some(share.kind);
        if unchanged && free.keep(job.per_replica(), job.allocation) {
            placed[idx] = job.allocation.clone();
        } else {
            moving.push((share.replicas, idx, share.kind));
        }
    }
    moving.sort_unstable_by_key(|&(replicas, idx, _)| (replicas, idx));
    for (replicas, idx, kind) in moving {
        let replica = view.jobs[idx].per_replica();
        let taken = match spreading {
            Spreading::EmptiestFirst => free.take_emptiest_first(kind, replica, replicas),
            Spreading::Evenly => free.take_evenly(kind, replica, replicas),
        };
        placed[idx] = taken.unwrap_or_default();
    }
    placed
}

fn binding(job: &JobView<'_>, share: Option<&Share>, view: &ClusterView<'_>) -> Binding {
    let (min, max) = bounds(job);
    match share {
        Some(_) if job.flexibility == Flexibility::Rigid => Binding::Request,
        Some(share) => share.next.err().unwrap_or(Binding::Contention),
        None if job.is_pinned() && job.flexibility == Flexibility::Rigid => Binding::Request,
        None if job.is_pinned() => Binding::Contention,
        None if min > max => Binding::Impossible,
        None => view.obstacle(job, min).unwrap_or(Binding::Contention),
    }
}
