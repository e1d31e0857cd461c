//! Scheduling rounds recorded with the answers of the published genetic algorithm.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pollux_model::{BatchLimits, Goodput, GpuType, NoiseStatistics, Parallelism, Shape, StepParams};
use pollux_policy::{
    Allocation, ClusterView, Flexibility, JobId, JobView, NodeId, NodeView, PolicySettings, PolluxSettings, Timestamp,
    TypeProfile,
};
use serde::{Deserialize, Serialize};

/// The published search takes each speedup at a quarter, plus a floor.
const SPEEDUP_SHARE: f64 = 0.25;
const FITNESS_FLOOR: f64 = 1e-3;
const RESTART_COST_S: f64 = 30.0;
/// The reference prints ten digits.
const FITNESS_TOLERANCE: f64 = 1e-8;
const TIMED_RUNS: u32 = 20;

/// Our plans against the recorded ones.
#[derive(Debug, Serialize)]
pub(crate) struct InstanceSummary {
    /// Rounds compared.
    pub(crate) count: usize,
    /// Rounds where our fitness is lower than that of the recorded allocation, both by exact goodput.
    pub(crate) below_ga: usize,
    /// Rounds where it is lower than the fitness as recorded.
    pub(crate) below_ga_as_recorded: usize,
    /// Smallest ratio of our fitness to that of the recorded allocation, both by exact goodput.
    pub(crate) ratio_min: f64,
    /// The same against the fitness as recorded, whose goodput comes from a grid that may overshoot the largest batch.
    pub(crate) ratio_min_as_recorded: f64,
    /// Mean ratio.
    pub(crate) ratio_mean: f64,
    /// Mean distance to the certified upper bound.
    pub(crate) gap_mean: f64,
    /// Largest distance.
    pub(crate) gap_max: f64,
    /// Mean time of a plan with warm tables.
    pub(crate) plan_ms_mean: f64,
    /// Mean time of the recorded search.
    pub(crate) ga_ms_mean: f64,
}

#[derive(Deserialize)]
pub(crate) struct InstanceFile {
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    round: u32,
    nodes: Vec<u32>,
    jobs: Vec<InstanceJob>,
    ga_seconds: f64,
    ga_allocation: BTreeMap<String, Vec<u32>>,
    ga_fitness: f64,
}

#[derive(Deserialize)]
struct InstanceJob {
    name: String,
    init_batch_size: u32,
    max_batch_size: u32,
    min_local_bsz: u32,
    max_local_bsz: u32,
    perf_params: Option<[f64; 7]>,
    grad_params: Option<[f64; 2]>,
    max_replicas: u32,
    num_restarts: u32,
    age: f64,
    attained_service: f64,
    allocation: Vec<u32>,
}

impl InstanceJob {
    fn profiles(&self) -> Result<Vec<TypeProfile>> {
        let (Some(params), Some([sqr, var])) = (self.perf_params, self.grad_params) else { return Ok(Vec::new()) };
        let goodput = Goodput {
            throughput: Parallelism::DataParallel.model(StepParams::from_array(params))?,
            noise: NoiseStatistics::new(sqr, var)?,
            limits: BatchLimits::new(
                self.init_batch_size,
                self.max_batch_size,
                self.min_local_bsz,
                self.max_local_bsz,
            )?,
        };
        Ok(vec![TypeProfile {
            gpu_type: GpuType::default(),
            goodput,
            replicas_profiled: self.max_replicas,
            is_estimated: false,
        }])
    }

    fn allocation(&self) -> Allocation {
        on_nodes(&self.allocation)
    }
}

pub(crate) fn compare(file: &InstanceFile) -> Result<InstanceSummary> {
    ensure!(!file.instances.is_empty(), "instances.json: no instances");
    let (mut ratios, mut recorded_ratios, mut gaps, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for instance in &file.instances {
        let outcome = plan(instance).with_context(|| format!("instances.json: round {}", instance.round))?;
        ratios.push(outcome.fitness / outcome.ga_fitness);
        recorded_ratios.push(outcome.fitness / instance.ga_fitness);
        gaps.push(1.0 - outcome.fitness / outcome.fitness_bound);
        times.push(outcome.plan_ms);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let ga_ms: Vec<f64> = file.instances.iter().map(|instance| instance.ga_seconds * 1e3).collect();
    Ok(InstanceSummary {
        count: ratios.len(),
        below_ga: ratios.iter().filter(|&&ratio| ratio < 1.0 - FITNESS_TOLERANCE).count(),
        below_ga_as_recorded: recorded_ratios.iter().filter(|&&ratio| ratio < 1.0 - FITNESS_TOLERANCE).count(),
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_min_as_recorded: recorded_ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_mean: mean(&ratios),
        gap_mean: mean(&gaps),
        gap_max: gaps.iter().copied().fold(0.0, f64::max),
        plan_ms_mean: mean(&times),
        ga_ms_mean: mean(&ga_ms),
    })
}

struct Outcome {
    fitness: f64,
    ga_fitness: f64,
    fitness_bound: f64,
    plan_ms: f64,
}

fn plan(instance: &Instance) -> Result<Outcome> {
    let now = Timestamp(10_000_000_000);
    let profiles: Vec<Vec<TypeProfile>> = instance.jobs.iter().map(InstanceJob::profiles).collect::<Result<_>>()?;
    let allocations: Vec<Allocation> = instance.jobs.iter().map(InstanceJob::allocation).collect();
    let jobs: Vec<JobView<'_>> = (0..instance.jobs.len())
        .map(|idx| {
            let job = &instance.jobs[idx];
            JobView {
                id: JobId(idx as u64),
                eligible_since: Timestamp(now.0 - (job.age * 1000.0) as u64),
                queued_since: now,
                running_since: None,
                attained_gpu_s: job.attained_service,
                executed_s: 0.0,
                restarts: job.num_restarts,
                restart_cost_s: RESTART_COST_S,
                allocation: &allocations[idx],
                replicas_requested: 1,
                replicas_min: 1,
                replicas_max: job.max_replicas,
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
                profiles: &profiles[idx],
                application_profiles: &[],
                application_ended: &[],
                remaining_samples: None,
                baseline_steps: 0.0,
                epoch_steps: None,
                samples_per_s: None,
                loss: None,
                oracle: None,
            }
        })
        .collect();
    let nodes: Vec<NodeView> = (0..).zip(&instance.nodes).map(|(id, &gpus)| node(id, gpus)).collect();
    let view = ClusterView { nodes: &nodes, jobs: &jobs, succeeded: &[], gpu_types: &[] };
    let settings = PolluxSettings { profile_limit: 1.0, first_start_costs: true, ..PolluxSettings::default() };
    let mut policy = PolicySettings::Pollux(settings).build();
    let plan = policy.plan(now, &view);
    plan.check(&view, policy.rules())?;
    let start = Instant::now();
    for _ in 0..TIMED_RUNS {
        black_box(policy.plan(now, &view));
    }
    let plan_ms = start.elapsed().as_secs_f64() * 1e3 / f64::from(TIMED_RUNS);
    let planned: Vec<&Allocation> = plan.assignments.iter().map(|assignment| &assignment.allocation).collect();
    let quality = plan.quality.context("no quality in the plan")?;
    let recorded = instance.jobs.iter().map(|job| instance.ga_allocation.get(&job.name).map_or(&[][..], Vec::as_slice));
    let recorded: Vec<Allocation> = recorded.map(on_nodes).collect();
    Ok(Outcome {
        fitness: fitness(&view, &planned, now)?,
        ga_fitness: fitness(&view, &recorded.iter().collect::<Vec<_>>(), now)?,
        fitness_bound: SPEEDUP_SHARE * quality.upper_bound,
        plan_ms,
    })
}

fn on_nodes(nodes: &[u32]) -> Allocation {
    nodes.iter().map(|&node| (NodeId(node), 1)).collect()
}

fn node(id: u32, gpus: u32) -> NodeView {
    NodeView { id: NodeId(id), gpus, gpu_type: GpuType::default(), cpus: None, memory: None, schedulable: true }
}

/// The published fitness, written a second time: what the policy says of itself is not asked.
fn fitness(view: &ClusterView<'_>, planned: &[&Allocation], now: Timestamp) -> Result<f64> {
    let fair = view.gpus().div_ceil(view.jobs.len() as u32);
    let mut inverse_sum = 0.0;
    for (job, &allocation) in view.jobs.iter().zip(planned) {
        let speedup = match (allocation.shape(), job.profiles.first()) {
            (None, _) => 0.0,
            (Some(shape), None) => f64::from(shape.replicas()) / f64::from(fair),
            (Some(shape), Some(profile)) => {
                profile.goodput.best(shape)?.goodput / profile.goodput.best(Shape::new(1, fair)?)?.goodput
            }
        };
        let age = job.age_s(now);
        let lost = f64::from(job.restarts) * RESTART_COST_S;
        let restart = if allocation == job.allocation { 1.0 } else { (age - lost).max(0.0) / (age + RESTART_COST_S) };
        inverse_sum += 1.0 / (SPEEDUP_SHARE * speedup * restart + FITNESS_FLOOR);
    }
    Ok(view.jobs.len() as f64 / inverse_sum)
}
