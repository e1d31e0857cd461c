//! Speedups of jobs by kind of GPU and size, kept from round to round.

use pollux_model::{Goodput, GpuType, Shape};

use crate::by_size::BySize;
use crate::{ClusterView, Flexibility, JobId, JobView, TypeProfile};

/// Goodput of every job at every size and what follows from it, kept from round to round: of most jobs nothing changes.
#[derive(Debug, Default)]
pub(crate) struct GoodputTables {
    /// Ordered by id.
    jobs: Vec<(JobId, Box<Kept>)>,
    /// Kinds of GPU of the last round.
    kinds: Vec<GpuType>,
    /// Whether jobs are judged by batches up to the one that their users asked for.
    within_requests: bool,
}

/// What is kept of a job.
#[derive(Debug, Default)]
struct Kept {
    tables: Vec<Table>,
    /// Kinds of GPU that something was known of.
    measured: Vec<GpuType>,
    /// What its speedups were made for; none before that.
    made_for: Option<MadeFor>,
    speedups: Speedups,
}

#[derive(Debug, PartialEq)]
struct MadeFor {
    sizes: Sizes,
    size_max: u32,
    gpus: u32,
    gpu_types: Option<Vec<GpuType>>,
}

#[derive(Debug)]
struct Table {
    gpu_type: GpuType,
    goodput: Goodput,
    /// At index `r - 1`: `r` replicas on one node.
    single: Vec<f64>,
    /// At index `r - 1`: `r` replicas over several nodes.
    multi: Vec<f64>,
}

/// Speedups of one job by kind of GPU and size.
#[derive(Debug, Default)]
pub(crate) struct Speedups {
    pub(crate) sizes: BySize,
    /// Replicas that the profile allows, before the job's own maximum.
    pub(crate) profile_max: u32,
    /// Replicas that the cluster has room for when nobody else is there.
    pub(crate) room: u32,
    /// Goodput on the fair share, on the kind of GPU where it is highest; none before the first report.
    pub(crate) fair_goodput: Option<f64>,
    /// Goodput on one replica, likewise.
    pub(crate) single_goodput: Option<f64>,
    /// Speedup on the fewest replicas that have a feasible batch, likewise.
    pub(crate) first: f64,
    /// By how many percent goodput grows with one percent more GPUs, at the fair share.
    pub(crate) elasticity: f64,
}

/// Bounds on the sizes of a job that are worth tabulating.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    /// Replicas that fit on one node.
    pub(crate) single_max: u32,
    /// Replicas that fit on all nodes together.
    pub(crate) multi_max: u32,
    /// GPUs of a fair share, which may be less than a replica or no whole number of them.
    pub(crate) fair_gpus: u32,
    /// The same, not rounded.
    pub(crate) share: f64,
    pub(crate) profile_limit: f64,
}

impl GoodputTables {
    /// Of the best batches up to the one that the user of each job asked for.
    pub(crate) fn within_requests() -> Self {
        Self { within_requests: true, ..Self::default() }
    }

    /// The speedups of all jobs of a view on the kinds of GPU that there are, at the sizes that each may have.
    pub(crate) fn speedups(
        &mut self,
        view: &ClusterView<'_>,
        kinds: &[GpuType],
        sizes: impl Fn(&JobView<'_>) -> Sizes,
    ) -> Vec<&Speedups> {
        self.keep_only(view);
        if self.kinds != kinds {
            self.kinds = kinds.to_vec();
            self.jobs.iter_mut().for_each(|(_, kept)| kept.made_for = None);
        }
        let within_requests = self.within_requests;
        let mut places = Vec::with_capacity(view.jobs.len());
        for job in view.jobs {
            let place = self.place(job.id, places.last().copied());
            self.jobs[place].1.update(job, within_requests, kinds, &sizes(job));
            places.push(place);
        }
        places.into_iter().map(|place| &self.jobs[place].1.speedups).collect()
    }

    /// Forgets jobs that are gone, and has room for those that came.
    fn keep_only(&mut self, view: &ClusterView<'_>) {
        let mut present: Vec<JobId> = view.jobs.iter().map(|job| job.id).collect();
        present.sort_unstable();
        let mut ids = present.iter().copied().peekable();
        self.jobs.retain(|&(job, _)| {
            while ids.next_if(|&id| id < job).is_some() {}
            ids.peek() == Some(&job)
        });
        let mut known = self.jobs.iter().map(|&(job, _)| job).peekable();
        let new: Vec<JobId> = present.into_iter().filter(|id| known.next_if_eq(id).is_none()).collect();
        self.jobs.extend(new.into_iter().map(|job| (job, Box::default())));
        self.jobs.sort_by_key(|&(job, _)| job);
    }

    /// Where a job is that is kept; most come in the order of their ids.
    fn place(&self, job: JobId, before: Option<usize>) -> usize {
        let next = before.map_or(0, |before| before + 1);
        if self.jobs.get(next).is_some_and(|&(id, _)| id == job) {
            return next;
        }
        self.jobs.binary_search_by_key(&job, |&(id, _)| id).expect("all jobs of the view are kept")
    }
}

/// What a job would do where it was measured, at the batches that it is judged by.
fn judged(job: &JobView<'_>, profile: &TypeProfile, within_requests: bool) -> Goodput {
    let goodput = profile.goodput;
    match job.batch_size.filter(|_| within_requests) {
        Some(most) if most < goodput.limits.batch_size_max() => {
            Goodput { limits: goodput.limits.with_batch_size_max(most), ..goodput }
        }
        Some(_) | None => goodput,
    }
}

impl Kept {
    fn update(&mut self, job: &JobView<'_>, within_requests: bool, kinds: &[GpuType], sizes: &Sizes) {
        let profiled = job.profiles.iter().map(|profile| profile.replicas_profiled).max().unwrap_or(0);
        let limit = (f64::from(profiled) * sizes.profile_limit).max(1.0);
        let profile_max = if limit >= f64::from(u32::MAX) { u32::MAX } else { limit as u32 };
        // A gang that must be larger than its profile would otherwise never start and never be profiled.
        let profile_max = profile_max
            .max(job.replicas_min)
            .max(job.allocation.replicas())
            .max(if job.flexibility == Flexibility::Rigid { job.replicas_requested } else { 0 });
        let size_max = job.replicas_max.min(profile_max).min(sizes.multi_max).max(job.allocation.replicas());
        let gpus = job.per_replica().gpus;
        let is_kept = self.forget_outdated(job, within_requests);
        let made_for = self.made_for.as_ref().filter(|made_for| {
            let for_sizes = made_for.sizes == *sizes && made_for.size_max == size_max && made_for.gpus == gpus;
            for_sizes && made_for.gpu_types.as_deref() == job.gpu_types
        });
        if !is_kept || made_for.is_none() {
            // One more than the share, which tells what jobs would gain by it.
            let tabled_max = size_max.min(sizes.single_max).max(sizes.fair_gpus.div_ceil(gpus) + 1);
            self.tabulate(job, within_requests, kinds, (tabled_max, size_max));
            self.speedups = Speedups::of(job, &self.tables, kinds, sizes, (tabled_max, size_max));
            let gpu_types = job.gpu_types.map(<[GpuType]>::to_vec);
            self.made_for = Some(MadeFor { sizes: *sizes, size_max, gpus, gpu_types });
        }
        self.speedups.profile_max = profile_max;
        self.speedups.room = sizes.multi_max;
    }

    /// Forgets tables of what was measured otherwise since; false if what was measured is not what speedups were made of.
    fn forget_outdated(&mut self, job: &JobView<'_>, within_requests: bool) -> bool {
        let before = self.tables.len();
        self.tables.retain(|table| {
            let profile = job.profiles.iter().find(|profile| profile.gpu_type == table.gpu_type);
            profile.is_some_and(|profile| judged(job, profile, within_requests) == table.goodput)
        });
        let measured = || job.profiles.iter().map(|profile| profile.gpu_type);
        let is_alike = measured().eq(self.measured.iter().copied());
        if !is_alike {
            self.measured = measured().collect();
        }
        is_alike && before == self.tables.len()
    }

    /// Makes the tables of a job on the kinds of GPU that it was measured on, at least up to so many replicas on one node
    /// and over several, on those given.
    fn tabulate(&mut self, job: &JobView<'_>, within_requests: bool, kinds: &[GpuType], most: (u32, u32)) {
        let is_here = |profile: &&TypeProfile| kinds.contains(&profile.gpu_type) && job.allows(profile.gpu_type);
        // Where a job was only measured elsewhere, that is what there is to go by.
        let none_here = !job.profiles.iter().any(|profile| is_here(&profile));
        for profile in job.profiles.iter().filter(|profile| none_here || is_here(profile)) {
            let gpu_type = profile.gpu_type;
            let idx = self.tables.iter().position(|table| table.gpu_type == gpu_type).unwrap_or_else(|| {
                let goodput = judged(job, profile, within_requests);
                self.tables.push(Table { gpu_type, goodput, single: Vec::new(), multi: Vec::new() });
                self.tables.len() - 1
            });
            self.tables[idx].extend(most.0, most.1);
        }
    }
}

impl Speedups {
    /// By tables that reach up to so many replicas on one node and over several, where they do not belong to other kinds.
    fn of(
        job: &JobView<'_>,
        tables: &[Table],
        kinds: &[GpuType],
        sizes: &Sizes,
        (tabled_max, size_max): (u32, u32),
    ) -> Self {
        let gpus = job.per_replica().gpus;
        let single_max = size_max.min(sizes.single_max);
        let (mut fair_goodput, mut single_goodput): (Option<f64>, Option<f64>) = (None, None);
        // A kind that nothing is known of is taken to be like the slowest that something is.
        let is_whole =
            |table: &&Table| table.single.len() >= tabled_max as usize && table.multi.len() >= size_max as usize;
        let slowest = tables.iter().filter(is_whole).min_by(|a, b| a.single_goodput().total_cmp(&b.single_goodput()));
        let table = |kind: GpuType| tables.iter().find(|table| table.gpu_type == kind).or(slowest);
        let mut elasticity = 1.0;
        for &gpu_type in kinds.iter().filter(|&&kind| job.allows(kind)) {
            if let Some(table) = table(gpu_type) {
                let (fair, on_one) = (table.fair(sizes.fair_gpus, gpus), table.single_goodput());
                if fair_goodput.is_none_or(|other| fair > other) {
                    elasticity = table.elasticity(sizes.share / f64::from(gpus), sizes.single_max);
                }
                fair_goodput = Some(fair_goodput.map_or(fair, |other| other.max(fair)));
                single_goodput = Some(single_goodput.map_or(on_one, |other| other.max(on_one)));
            }
        }
        let mut by_size = BySize::with_room(kinds.len(), single_max, size_max);
        // One denominator for all kinds, so that a faster one is worth more.
        let fair = fair_goodput.unwrap_or(1.0);
        for &gpu_type in kinds {
            // One replica is on one node.
            let multi = |replicas: u32, speedup: f64| if replicas == 1 { 0.0 } else { speedup };
            match table(gpu_type) {
                _ if !job.allows(gpu_type) => by_size.push_kind(|_| 0.0, |_| 0.0),
                Some(table) => by_size.push_kind(
                    |replicas| table.single[replicas as usize - 1] / fair,
                    |replicas| multi(replicas, table.multi[replicas as usize - 1] / fair),
                ),
                None => {
                    let unmeasured = |replicas: u32| f64::from(gpus * replicas) / f64::from(sizes.fair_gpus);
                    by_size.push_kind(unmeasured, |replicas| multi(replicas, unmeasured(replicas)));
                }
            }
        }
        let first = by_size.first();
        Self { sizes: by_size, fair_goodput, single_goodput, first, elasticity, ..Self::default() }
    }

    pub(crate) fn at(&self, kind: usize, replicas: u32, multi: bool) -> f64 {
        self.sizes.at(kind, replicas, multi).unwrap_or(0.0)
    }

    pub(crate) fn best(&self, kind: usize, replicas: u32) -> f64 {
        self.at(kind, replicas, false).max(self.at(kind, replicas, true))
    }
}

impl Table {
    fn extend(&mut self, single_max: u32, multi_max: u32) {
        let goodput = self.goodput;
        let at = |nodes: u32, replicas: u32| {
            let shape = Shape::new(nodes, replicas).ok()?;
            Some(goodput.best(shape).ok()?.goodput)
        };
        for replicas in self.single.len() as u32 + 1..=single_max {
            self.single.push(at(1, replicas).unwrap_or(0.0));
        }
        for replicas in self.multi.len() as u32 + 1..=multi_max {
            self.multi.push(at(2, replicas).unwrap_or(0.0));
        }
    }

    /// Goodput on one replica.
    fn single_goodput(&self) -> f64 {
        self.single.first().copied().unwrap_or(0.0)
    }

    /// By how many percent goodput grows with one percent more replicas, around so many of which a node takes some; up to
    /// one replica it grows in proportion.
    fn elasticity(&self, replicas: f64, on_a_node: u32) -> f64 {
        let at = |replicas: usize| {
            let idx = replicas - 1;
            let multi = self.multi.get(idx).filter(|_| replicas > on_a_node as usize);
            multi.or(self.single.get(idx)).copied().unwrap_or(0.0)
        };
        let (fewer, more) = ((replicas / 2.0).max(1.0) as usize, replicas as usize + 1);
        let (low, high) = (at(fewer), at(more));
        if replicas <= 1.0 || low <= 0.0 || high <= 0.0 {
            return 1.0;
        }
        ((high / low).ln() / (more as f64 / fewer as f64).ln()).clamp(0.0, 1.0)
    }

    /// Goodput on the fair share, or on the most replicas below it that have a feasible batch. A share between two
    /// numbers of replicas is worth what lies between them, and less than one as much of the first.
    fn fair(&self, fair_gpus: u32, gpus_per_replica: u32) -> f64 {
        let (whole, rest) = (fair_gpus / gpus_per_replica, fair_gpus % gpus_per_replica);
        let feasible = self.single.iter().take(whole.max(1) as usize).rev().find(|goodput| **goodput > 0.0);
        let feasible = feasible.or_else(|| self.multi.iter().find(|goodput| **goodput > 0.0)).copied().unwrap_or(1.0);
        let part = f64::from(rest) / f64::from(gpus_per_replica);
        match self.single.get(whole as usize) {
            _ if rest == 0 => feasible,
            _ if whole == 0 => feasible * part,
            Some(&next) if next > feasible => feasible + (next - feasible) * part,
            Some(_) | None => feasible,
        }
    }
}
