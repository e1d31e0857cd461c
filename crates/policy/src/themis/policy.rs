use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use pollux_model::{BatchMode, GpuType, Shape};

use super::placement::place;
use crate::auction::{Bid, partial_allocation};
use crate::free_gpus::FreeGpus;
use crate::gang::{gang_size, kind_of, plan_of};
use crate::state::Memory;
use crate::{
    Allocation, ClusterView, Flexibility, JobId, JobView, PlacementRules, Plan, Policy, PolicyState, Timestamp,
    TypeProfile,
};

/// The work of an auction grows with its bidders; more of them than this wait for the next.
const BIDDERS_MAX: usize = 128;

/// Settings of [`PolicySettings::Themis`](crate::PolicySettings::Themis).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct ThemisSettings {
    /// Free GPUs are offered to the share `1 - fairness_knob` of jobs that is treated worst: higher is fairer, lower
    /// finds better placements.
    pub fairness_knob: f64,
    /// Seconds for which a job keeps its GPUs: shorter is fairer and restarts more.
    pub lease_s: f64,
}

impl Default for ThemisSettings {
    /// The knob of the paper's evaluation; half its lease of 20 minutes, because most jobs here are done sooner.
    fn default() -> Self {
        Self { fairness_knob: 0.8, lease_s: 600.0 }
    }
}

/// Finish-time fairness (Themis, NSDI 2020): no job is to take much longer than alone on its share of the cluster. GPUs
/// are leased; those that are free are auctioned among the jobs with the worst `ρ`, the time a job takes here over the
/// time it would take alone, and what the auction leaves goes to the others.
///
/// Bids follow from what agents reported: with so many GPUs to its end, on as few nodes as are free, this would be `ρ`.
/// A job that declared no work is taken to have as much left as it has done, one not measured yet to scale perfectly and
/// to be done after a lease. Simplified: an application is one job, which runs on any number of replicas from its fewest
/// to its request with the batch its user fixed; all its GPUs are leased together, so that one with a lease bids for
/// more only if a restart pays before that ends; where the paper leaves GPUs to chance, the next worst `ρ` goes first.
#[derive(Debug)]
pub(crate) struct Themis {
    settings: ThemisSettings,
    memory: ThemisMemory,
}

/// What it remembers from plan to plan.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct ThemisMemory {
    accounts: BTreeMap<JobId, Account>,
    /// Seconds that jobs were present, added up.
    job_s: f64,
    planned: Option<Timestamp>,
}

/// What is remembered of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Account {
    first_seen: Timestamp,
    job_s_before: f64,
    lease_ends: Option<Timestamp>,
}

/// A job that would have more GPUs.
pub(super) struct Seeker<'a> {
    pub(super) idx: usize,
    pub(super) job: &'a JobView<'a>,
    age_s: f64,
    /// Samples at full efficiency, or seconds on one GPU of a job not measured yet.
    remaining: f64,
    /// Replicas it may have.
    pub(super) sizes: RangeInclusive<u32>,
    pub(super) leased: Option<Lease>,
    /// None without GPUs: nothing is farther from fair.
    rho: Option<f64>,
    /// With all that it asked for.
    best_rho: f64,
}

/// GPUs that a job keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    replicas: u32,
    kind: GpuType,
    left_s: f64,
}

/// GPUs that a job may bid for.
#[derive(Clone, Copy, Debug)]
struct Offer {
    kind: GpuType,
    /// The most replicas of the job that a node has room for.
    on_a_node: u32,
}

/// GPUs that a job is to have.
pub(super) struct Grant<'a> {
    pub(super) seeker: &'a Seeker<'a>,
    pub(super) size: u32,
}

impl Themis {
    pub(crate) fn new(settings: ThemisSettings) -> Self {
        Self { settings, memory: ThemisMemory::default() }
    }

    fn keep_accounts(&mut self, now: Timestamp, view: &ClusterView<'_>) {
        let present: BTreeSet<JobId> = view.jobs.iter().map(|job| job.id).collect();
        self.memory.accounts.retain(|job, _| present.contains(job));
        self.memory.job_s += self.memory.planned.map_or(0.0, |planned| now.since_s(planned)) * view.jobs.len() as f64;
        self.memory.planned = Some(now);
        for job in view.jobs {
            // Whoever is found running has just got its GPUs, as far as anybody knows.
            let lease_ends = (!job.allocation.is_empty()).then(|| now.after_s(self.settings.lease_s));
            let account = Account { first_seen: now, job_s_before: self.memory.job_s, lease_ends };
            self.memory.accounts.entry(job.id).or_insert(account);
        }
    }

    fn holds_lease(&self, job: &JobView<'_>, now: Timestamp) -> bool {
        !job.allocation.is_empty() && self.lease_left_s(job, now) > 0.0
    }

    fn lease_left_s(&self, job: &JobView<'_>, now: Timestamp) -> f64 {
        let lease_ends = self.memory.accounts.get(&job.id).and_then(|account| account.lease_ends);
        lease_ends.map_or(0.0, |ends| ends.since_s(now))
    }

    /// Replicas for which a job would have had GPUs if all had shared alike while it was here, at most those it asked
    /// for.
    fn share(&self, job: &JobView<'_>, now: Timestamp, view: &ClusterView<'_>) -> f64 {
        let jobs = self.memory.accounts.get(&job.id).map_or(0.0, |account| {
            (self.memory.job_s - account.job_s_before) / now.since_s(account.first_seen).max(f64::MIN_POSITIVE)
        });
        let jobs = if jobs >= 1.0 { jobs } else { view.jobs.len() as f64 };
        (f64::from(view.gpus()) / jobs / f64::from(job.per_replica().gpus)).min(f64::from(gang_size(job)))
    }

    fn seeker<'a>(&self, idx: usize, is_leased: bool, now: Timestamp, view: &'a ClusterView<'a>) -> Seeker<'a> {
        let job = &view.jobs[idx];
        let size = gang_size(job);
        let fewest = if job.flexibility == Flexibility::Rigid { size } else { job.replicas_min.max(1) };
        let usable = view.nodes.iter().filter(|node| node.schedulable && job.allows(node.gpu_type));
        let on_a_node = usable.map(|node| node.resources().fits(job.per_replica())).max().unwrap_or(1).max(1);
        let packed = |replicas: u32| speed(job, None, replicas.div_ceil(on_a_node), replicas);
        let done = job
            .profiles
            .first()
            .map_or(0.0, |profile| job.baseline_steps * f64::from(profile.goodput.limits.batch_size_baseline()));
        let (done, remaining) = match job.remaining_samples.filter(|_| !job.profiles.is_empty()) {
            Some(remaining) => (done, remaining),
            None if done > 0.0 => (done, done),
            None => (0.0, self.settings.lease_s * packed(size)),
        };
        let share = self.share(job, now, view);
        let (low, high) = (share.floor().max(1.0), share.ceil().max(1.0));
        let (low_speed, high_speed) = (packed(low as u32), packed(high as u32));
        let alone = if share < 1.0 { low_speed * share } else { low_speed + (high_speed - low_speed) * (share - low) };
        let alone_s = (done + remaining) / alone;
        let age_s = job.age_s(now);
        let rho = |speed: f64| (age_s + remaining / speed) / alone_s.max(f64::MIN_POSITIVE);
        let held = job.allocation.shape();
        let held_kind = kind_of(job.allocation, view);
        Seeker {
            idx,
            job,
            age_s,
            remaining,
            sizes: fewest..=size,
            leased: held_kind.filter(|_| is_leased).map(|kind| Lease {
                replicas: job.allocation.replicas(),
                kind,
                left_s: self.lease_left_s(job, now),
            }),
            rho: held.map(|shape| rho(speed(job, held_kind, shape.nodes(), shape.replicas()))),
            best_rho: rho(packed(size)),
        }
    }

    /// Who is to have how many GPUs of one kind: those treated worst by auction, then all in turn.
    fn grants<'a>(&self, seekers: &[&'a Seeker<'a>], offered: usize, kind: GpuType, free: &FreeGpus) -> Vec<Grant<'a>> {
        let mut left = free.by_kind().get(&kind).copied().unwrap_or(0);
        let offers: BTreeMap<usize, Offer> =
            seekers.iter().map(|seeker| (seeker.idx, seeker.offer(kind, free))).collect();
        let (mut bidders, mut bids, mut needed) = (Vec::new(), Vec::new(), 0);
        for &seeker in seekers.iter().take(offered.min(BIDDERS_MAX)) {
            let bid = seeker.bid(offers[&seeker.idx], left);
            if let Some(bid) = bid.filter(|bid| bid.fewest <= left - needed) {
                needed += bid.fewest;
                bidders.push(seeker);
                bids.push(bid);
            }
        }
        let wanted = bids.iter().fold(0u32, |sum, bid| sum.saturating_add(bid.most()));
        let awards = partial_allocation(&bids, left.min(wanted));
        let sizes = bidders.iter().zip(awards.iter().zip(&bids)).map(|(seeker, (award, bid))| {
            let size = seeker.held() + award.kept(bid) / seeker.gpus();
            if seeker.is_served_by(offers[&seeker.idx], size) { size } else { seeker.held() }
        });
        let won = bidders.iter().zip(sizes).filter(|&(_, size)| size > 0);
        let mut grants: Vec<Grant<'_>> = won.map(|(seeker, size)| Grant { seeker, size }).collect();
        left -= grants.iter().map(|grant| grant.seeker.gpus() * (grant.size - grant.seeker.held())).sum::<u32>();
        let asked: BTreeSet<usize> = bidders.iter().map(|seeker| seeker.idx).collect();
        for &seeker in seekers.iter().filter(|seeker| !asked.contains(&seeker.idx)) {
            let size = seeker.most(left);
            if seeker.sizes.start() <= &size && seeker.is_served_by(offers[&seeker.idx], size) {
                left -= seeker.gpus() * (size - seeker.held());
                grants.push(Grant { seeker, size });
            }
        }
        // What nobody else wants goes back to those who paid it.
        for grant in grants.iter_mut().filter(|grant| grant.seeker.leased.is_none()) {
            let more = (left / grant.seeker.gpus()).min(grant.seeker.sizes.end() - grant.size);
            grant.size += more;
            left -= grant.seeker.gpus() * more;
        }
        grants
    }

    fn renew_leases(&mut self, now: Timestamp, view: &ClusterView<'_>, granted: &[Option<Allocation>]) {
        for (job, granted) in view.jobs.iter().zip(granted) {
            let holds = self.holds_lease(job, now);
            let Some(account) = self.memory.accounts.get_mut(&job.id) else { continue };
            match granted {
                // What is added to a lease ends with it.
                Some(_) if holds => {}
                Some(_) => account.lease_ends = Some(now.after_s(self.settings.lease_s)),
                None => account.lease_ends = None,
            }
        }
    }
}

impl Policy for Themis {
    fn name(&self) -> &'static str {
        "themis"
    }

    fn plan(&mut self, now: Timestamp, view: &ClusterView<'_>) -> Plan {
        self.keep_accounts(now, view);
        let mut free = FreeGpus::beside_pinned(view);
        let mut granted: Vec<Option<Allocation>> = vec![None; view.jobs.len()];
        for (idx, job) in view.jobs.iter().enumerate().filter(|(_, job)| job.is_pinned()) {
            granted[idx] = Some(job.allocation.clone());
        }
        for (idx, job) in view.jobs.iter().enumerate() {
            let keeps = granted[idx].is_none() && self.holds_lease(job, now);
            if keeps && free.keep(job.per_replica(), job.allocation) {
                granted[idx] = Some(job.allocation.clone());
            }
        }
        let seekers = (0..view.jobs.len()).filter(|&idx| !view.jobs[idx].is_pinned());
        let mut seekers: Vec<Seeker<'_>> =
            seekers.map(|idx| self.seeker(idx, granted[idx].is_some(), now, view)).collect();
        seekers.sort_by(|a, b| {
            let of = |seeker: &Seeker<'_>| seeker.rho.unwrap_or(f64::INFINITY);
            of(b).total_cmp(&of(a)).then(b.best_rho.total_cmp(&a.best_rho)).then(a.idx.cmp(&b.idx))
        });
        let offered = ((1.0 - self.settings.fairness_knob) * view.jobs.len() as f64).ceil().max(1.0) as usize;
        for kind in free.by_kind().into_keys() {
            let may_bid = |seeker: &&Seeker<'_>| match seeker.leased {
                Some(lease) => lease.kind == kind,
                None => granted[seeker.idx].is_none(),
            };
            let bidding = seekers.iter().filter(|seeker| seeker.job.allows(kind)).filter(may_bid);
            let bidding: Vec<&Seeker<'_>> = bidding.collect();
            let grants = self.grants(&bidding, offered, kind, &free);
            place(view, &mut free, kind, grants, &mut granted);
        }
        self.renew_leases(now, view, &granted);
        plan_of(view, granted)
    }

    fn save(&self) -> Option<PolicyState> {
        Some(PolicyState::new(Memory::Themis(self.memory.clone())))
    }

    fn restore(&mut self, state: PolicyState) -> bool {
        let Memory::Themis(memory) = state.memory else { return false };
        self.memory = memory;
        true
    }

    fn chooses_sizes(&self) -> bool {
        true
    }

    fn rules(&self) -> PlacementRules {
        PlacementRules { one_multi_node_job_per_node: false }
    }
}

impl Seeker<'_> {
    /// Replicas that it keeps.
    fn held(&self) -> u32 {
        self.leased.map_or(0, |lease| lease.replicas)
    }

    /// GPUs of each replica.
    pub(super) fn gpus(&self) -> u32 {
        self.job.per_replica().gpus
    }

    fn offer(&self, kind: GpuType, free: &FreeGpus) -> Offer {
        Offer { kind, on_a_node: free.most_on_a_node(kind, self.job.per_replica()) }
    }

    /// Replicas that it takes if there are so many more GPUs.
    fn most(&self, more: u32) -> u32 {
        self.held().max(*self.sizes.end()).min(self.held() + more / self.gpus())
    }

    /// What up to `more` further GPUs are worth to it: `1/ρ` with them, but for its time alone, which changes nothing
    /// about an auction.
    fn bid(&self, offer: Offer, more: u32) -> Option<Bid> {
        let sizes = self.held().max(*self.sizes.start())..=self.most(more);
        let values: Vec<(u32, f64)> = sizes.map(|size| (size, self.value(offer, size))).collect();
        let useful = &values[values.iter().position(|(_, value)| value.is_finite())?..];
        // GPUs that do not make up another replica are worth nothing more.
        let (&(_, largest), smaller) = useful.split_last()?;
        let values = smaller.iter().flat_map(|&(_, value)| std::iter::repeat_n(value, self.gpus() as usize));
        let fewest = self.gpus() * (useful[0].0 - self.held());
        Some(Bid { fewest, values: values.chain([largest]).collect() })
    }

    /// Whether so many replicas are better than what it keeps.
    fn is_served_by(&self, offer: Offer, size: u32) -> bool {
        let value = |size| self.value(offer, size);
        value(size) > self.leased.map_or(f64::NEG_INFINITY, |lease| value(lease.replicas))
    }

    fn value(&self, Offer { kind, on_a_node }: Offer, size: u32) -> f64 {
        let held = self.job.allocation.shape();
        let is_held = held.is_some_and(|held| held.replicas() == size);
        let nodes = held.filter(|_| is_held).map_or(size.div_ceil(on_a_node.max(1)).min(size), Shape::nodes);
        let speed = |nodes, replicas| speed(self.job, Some(kind), nodes, replicas);
        let change_s = if held.is_none() || is_held { 0.0 } else { self.job.restart_cost_s };
        if let (Some(lease), Some(held), false) = (self.leased, held, is_held) {
            // A restart must pay before the lease ends.
            let pays =
                speed(nodes, size) * (lease.left_s - change_s) > speed(held.nodes(), held.replicas()) * lease.left_s;
            if !pays {
                return f64::NEG_INFINITY;
            }
        }
        -(self.age_s + change_s + self.remaining / speed(nodes, size)).max(1.0).ln()
    }
}

/// Samples a second at full efficiency with the batch its user fixed; perfect scaling of one GPU's seconds before it was
/// measured. A kind of GPU that it was not measured on is taken to be as fast as the best that it was.
fn speed(job: &JobView<'_>, kind: Option<GpuType>, nodes: u32, replicas: u32) -> f64 {
    let of = |profile: &TypeProfile| {
        let shape = Shape::new(nodes, replicas).ok()?;
        Some(profile.goodput.chosen(shape, BatchMode::Fixed { batch_size: job.batch_size })?.goodput)
    };
    let known = kind.and_then(|kind| job.profiles.iter().find(|profile| profile.gpu_type == kind));
    match known {
        Some(profile) => of(profile).unwrap_or(0.0),
        None if job.profiles.is_empty() => f64::from(replicas),
        None => job.profiles.iter().filter_map(of).fold(0.0, f64::max),
    }
}
