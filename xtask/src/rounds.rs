//! Planning rounds of growing clusters: what a round costs, and how close it comes to the bound.

use std::time::Instant;

use anyhow::Result;
use pollux_model::{BatchLimits, Goodput, GpuType, NoiseStatistics, Parallelism, StepParams};
use pollux_policy::{
    Allocation, ClusterView, Flexibility, JobId, JobView, NodeId, NodeView, PolicySettings, Timestamp, TypeProfile,
};

/// GPUs of a node of each type.
const GPUS_PER_NODE: [u32; 4] = [4, 8, 8, 8];
const ROUND_S: u64 = 60;
/// Share of jobs that leave, and as many that come, between two rounds.
const TURNOVER: f64 = 0.02;

/// Parameters of a step on the first type, bounds on batches, noise scale, speeds.
type Kind = ([f64; 7], [u32; 4], f64, [f64; 4]);

/// Three kinds of jobs, by their fitted parameters: one that scales well, one that does not, one in between; and how many
/// times as fast they are on each type of GPU.
const KINDS: [Kind; 3] = [
    ([0.44, 0.037, 1.2, 1e-8, 0.047, 0.005, 1.0], [12, 384, 4, 12], 16_000.0, [1.0, 2.07, 10.8, 3.2]),
    ([0.024, 0.00062, 0.11, 0.00012, 0.0092, 0.0014, 1.27], [128, 4096, 32, 1024], 2_000.0, [1.0, 2.27, 6.9, 3.23]),
    ([0.22, 0.0138, 1.08, 1e-8, 0.135, 0.118, 2.0], [8, 512, 4, 8], 400.0, [1.0, 0.42, 2.03, 1.52]),
];

/// A cluster and how many jobs it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) gpus: u32,
    /// Types of GPU, from 1 to 4.
    pub(crate) types: u16,
    pub(crate) jobs: u32,
}

/// What rounds of one size cost.
#[derive(Debug)]
pub(crate) struct RoundCost {
    pub(crate) gpus: u32,
    pub(crate) jobs: u32,
    pub(crate) mean_ms: f64,
    pub(crate) gap_mean: f64,
}

struct Job {
    id: u64,
    submitted_s: u64,
    restarts: u32,
    allocation: Allocation,
    profiles: Vec<TypeProfile>,
}

/// Plays `rounds` rounds with jobs coming and going, carrying every plan out, and times all but the first.
pub(crate) fn measure(policy: &PolicySettings, scale: Scale, rounds: u32) -> Result<RoundCost> {
    let Scale { gpus, types, jobs } = scale;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    let node = |(id, (gpus, gpu_type))| NodeView {
        id: NodeId(id),
        gpus,
        gpu_type,
        cpus: None,
        memory: None,
        schedulable: true,
    };
    let nodes: Vec<NodeView> = (0..).zip(machines(gpus, types)).map(node).collect();
    let mut population: Vec<Job> =
        (0..u64::from(jobs)).map(|id| job(id, 0, types, &mut next)).collect::<Result<_>>()?;
    let mut policy = policy.build();
    let mut ids = u64::from(jobs);
    let (mut seconds, mut gaps) = (0.0, 0.0);
    for round in 0..=rounds {
        let now_s = 20_000 + u64::from(round) * ROUND_S;
        let now = Timestamp(now_s * 1000);
        let views: Vec<JobView<'_>> = population.iter().map(view).collect();
        let cluster = ClusterView { nodes: &nodes, jobs: &views, succeeded: &[], gpu_types: &[] };
        let start = Instant::now();
        let plan = policy.plan(now, &cluster);
        if round > 0 {
            seconds += start.elapsed().as_secs_f64();
            gaps += plan.quality.map_or(0.0, |quality| 1.0 - quality.objective / quality.upper_bound);
        }
        plan.check(&cluster, policy.rules())?;
        let planned: Vec<Allocation> = plan.assignments.into_iter().map(|assignment| assignment.allocation).collect();
        for (job, allocation) in population.iter_mut().zip(planned) {
            job.restarts += u32::from(job.allocation != allocation && !job.allocation.is_empty());
            job.allocation = allocation;
        }
        let leaving = (f64::from(jobs) * TURNOVER).ceil() as usize;
        for _ in 0..leaving {
            population.remove((next() * population.len() as f64) as usize);
            population.push(job(ids, now_s, types, &mut next)?);
            ids += 1;
        }
    }
    let rounds = f64::from(rounds);
    Ok(RoundCost { gpus, jobs, mean_ms: seconds * 1e3 / rounds, gap_mean: gaps / rounds })
}

/// GPUs and type of each node: types have about as many GPUs each.
fn machines(gpus: u32, types: u16) -> Vec<(u32, GpuType)> {
    let mut of_type = vec![0; usize::from(types)];
    let mut machines = Vec::new();
    while of_type.iter().sum::<u32>() < gpus {
        let fewest = (0..types).min_by_key(|&gpu_type| of_type[usize::from(gpu_type)]).unwrap_or(0);
        let on_a_node = GPUS_PER_NODE[usize::from(fewest)];
        of_type[usize::from(fewest)] += on_a_node;
        machines.push((on_a_node, GpuType(fewest)));
    }
    machines.sort_by_key(|&(_, gpu_type)| gpu_type);
    machines
}

fn job(id: u64, submitted_s: u64, types: u16, next: &mut impl FnMut() -> f64) -> Result<Job> {
    let (mut params, [baseline, batch_max, local_min, local_max], noise_scale, speeds) = KINDS[(next() * 3.0) as usize];
    params[0] *= 0.8 + 0.4 * next();
    params[1] *= 0.8 + 0.4 * next();
    let noise = NoiseStatistics::from_noise_scale(noise_scale * (0.3 + 3.0 * next()), baseline)?;
    let limits = BatchLimits::new(baseline, batch_max, local_min, local_max)?;
    let replicas_profiled = 1 << (next() * 5.0) as u32;
    let on_type = |gpu_type: u16| {
        let own = StepParams::from_array(params);
        let speed = speeds[usize::from(gpu_type)];
        let params =
            StepParams { alpha_compute: own.alpha_compute / speed, beta_compute: own.beta_compute / speed, ..own };
        let goodput = Goodput { throughput: Parallelism::DataParallel.model(params)?, noise, limits };
        Ok(TypeProfile { gpu_type: GpuType(gpu_type), goodput, replicas_profiled, is_estimated: false })
    };
    let profiles = (0..types).map(on_type).collect::<Result<_>>()?;
    Ok(Job { id, submitted_s, restarts: 0, allocation: Allocation::NONE, profiles })
}

fn view(job: &Job) -> JobView<'_> {
    JobView {
        id: JobId(job.id),
        eligible_since: Timestamp(job.submitted_s * 1000),
        // Nobody has waited too long: it is the optimiser that is measured.
        queued_since: Timestamp(u64::MAX),
        running_since: None,
        attained_gpu_s: 0.0,
        executed_s: if job.restarts > 0 { 1.0 } else { 0.0 },
        restarts: job.restarts,
        restart_cost_s: 30.0,
        allocation: &job.allocation,
        replicas_requested: 1,
        replicas_min: 1,
        replicas_max: u32::MAX,
        gpus_per_replica: 1,
        cpus: 0,
        memory: 0,
        gpu_types: None,
        flexibility: Flexibility::Elastic,
        guest_of: None,
        batch_size: None,
        owner: "",
        priority: 0,
        application: None,
        profiles: &job.profiles,
        application_profiles: &[],
        application_ended: &[],
        remaining_samples: Some(1e6),
        baseline_steps: 0.0,
        epoch_steps: None,
        samples_per_s: None,
        loss: None,
        oracle: None,
    }
}
