use pollux_model::{GpuType, LossCurve};
use pollux_policy::{
    AntManSettings, CastorSettings, Consolidate, Flexibility, GandivaSettings, GavelObjective, GavelSettings, JobId,
    NodeId, NodeView, OptimusSettings, Oracle, PolicySettings, PolluxSettings, SiaSettings, SlaqSettings,
    ThemisSettings, TiresiasPriority, TiresiasSettings,
};
use proptest::prelude::*;

use crate::world::{Job, World, faster, profile};

pub(crate) fn policies() -> Vec<PolicySettings> {
    let pollux = |fairness, avoid_interference| {
        PolicySettings::Pollux(PolluxSettings { fairness, avoid_interference, ..PolluxSettings::default() })
    };
    vec![
        pollux(-1.0, true),
        pollux(0.0, false),
        pollux(1.0, true),
        pollux(f64::NEG_INFINITY, true),
        PolicySettings::Castor(CastorSettings::default()),
        PolicySettings::Sia(SiaSettings::default()),
        PolicySettings::Sia(SiaSettings {
            fairness: 0.5,
            whole_shapes: false,
            rounded: false,
            ..SiaSettings::default()
        }),
        PolicySettings::Gavel(GavelSettings::default()),
        PolicySettings::Gavel(GavelSettings {
            objective: GavelObjective::FinishTime,
            round_s: 60.0,
            ..GavelSettings::default()
        }),
        PolicySettings::Gavel(GavelSettings {
            objective: GavelObjective::Makespan,
            round_s: 120.0,
            ..GavelSettings::default()
        }),
        PolicySettings::Gavel(GavelSettings {
            objective: GavelObjective::Throughput,
            round_s: 60.0,
            ..GavelSettings::default()
        }),
        PolicySettings::Gavel(GavelSettings { objective: GavelObjective::Hierarchical, ..GavelSettings::default() }),
        PolicySettings::Gavel(GavelSettings {
            objective: GavelObjective::Cost,
            slowdown_max: Some(3.0),
            ..GavelSettings::default()
        }),
        PolicySettings::Fifo,
        PolicySettings::Srtf,
        PolicySettings::Tiresias(TiresiasSettings::default()),
        PolicySettings::Tiresias(TiresiasSettings {
            queue_gpu_hours: vec![0.5, 2.0, 8.0],
            promote_knob: Some(1.0),
            priority: TiresiasPriority::Gittins,
            job_gpu_hours: vec![0.1, 1.0, 1.0, 30.0],
            consolidate: Consolidate::Needed,
            ..TiresiasSettings::default()
        }),
        PolicySettings::Tiresias(TiresiasSettings { consolidate: Consolidate::Always, ..TiresiasSettings::default() }),
        PolicySettings::Themis(ThemisSettings::default()),
        PolicySettings::Themis(ThemisSettings { fairness_knob: 0.0, lease_s: 0.0 }),
        PolicySettings::Gandiva(GandivaSettings::default()),
        PolicySettings::Gandiva(GandivaSettings {
            quantum_s: 0.0,
            packing_rate_min: 0.5,
            grow_all: true,
            ..GandivaSettings::default()
        }),
        PolicySettings::AntMan(AntManSettings::default()),
        PolicySettings::AntMan(AntManSettings { queue_runs: false, slowdown_max: 0.0 }),
        PolicySettings::OptimusOracle,
        PolicySettings::Optimus(OptimusSettings::default()),
        PolicySettings::Slaq(SlaqSettings::default()),
    ]
}

fn oracles() -> impl Strategy<Value = Oracle> {
    let step_s = prop::collection::vec(prop_oneof![9 => 1e-3f64..10.0, 1 => Just(f64::INFINITY)], 0..40);
    (0.0f64..1e6, step_s).prop_map(|(remaining_steps, step_s)| Oracle::alike(remaining_steps, step_s))
}

/// What a replica needs: GPUs, CPUs, memory, kinds of GPU.
fn needs() -> impl Strategy<Value = (u32, u32, u64, Option<Vec<GpuType>>)> {
    let gpus = prop_oneof![4 => Just(1u32), 2 => 2u32..5, 1 => 5u32..9];
    let cpus = prop_oneof![3 => Just(0u32), 2 => 1u32..6, 1 => Just(u32::MAX)];
    let memory = prop_oneof![3 => Just(0u64), 2 => 1u64..40, 1 => Just(u64::MAX)];
    let types = prop_oneof![
        4 => Just(None),
        1 => Just(Some(vec![GpuType(0)])),
        1 => Just(Some(vec![GpuType(1), GpuType(7)])),
        1 => Just(Some(vec![GpuType(0), GpuType(1)])),
        1 => Just(Some(vec![GpuType(9)])),
    ];
    (gpus, cpus, memory, types)
}

/// A node: GPUs, kind, whether it drains (0), CPUs and memory.
fn nodes() -> impl Strategy<Value = NodeView> {
    let counted = (prop::option::of(0u32..40), prop::option::of(0u64..200));
    (1u32..9, 0u16..2, 0u8..10, counted).prop_map(|(gpus, kind, drain, (cpus, memory))| NodeView {
        id: NodeId(0),
        gpus,
        gpu_type: GpuType(kind),
        cpus,
        memory,
        schedulable: drain > 0,
    })
}

/// What is left of a node.
#[derive(Clone, Copy)]
struct Left {
    gpus: u32,
    cpus: Option<u32>,
    memory: Option<u64>,
}

impl Left {
    /// Takes what so many replicas of a job need, without GPUs if it is a guest; false if there is not enough.
    fn take(&mut self, job: &Job, replicas: u32, is_guest: bool) -> bool {
        let gpus = if is_guest { 0 } else { job.gpus_per_replica * replicas };
        let cpus = u64::from(job.cpus) * u64::from(replicas);
        let memory = u128::from(job.memory) * u128::from(replicas);
        let fits = gpus <= self.gpus
            && self.cpus.is_none_or(|left| cpus <= u64::from(left))
            && self.memory.is_none_or(|left| memory <= u128::from(left));
        if fits {
            self.gpus -= gpus;
            self.cpus = self.cpus.map(|left| left - cpus as u32);
            self.memory = self.memory.map(|left| left - memory as u64);
        }
        fits
    }
}

prop_compose! {
    fn jobs()(
        age_s in 0u64..50_000,
        restarts in 0u32..40,
        requested in 1u32..20,
        bounds in (0u32..6, 1u32..70),
        flexibility in prop_oneof![
            6 => Just(Flexibility::Elastic), 1 => Just(Flexibility::NonPreemptible), 1 => Just(Flexibility::Rigid)
        ],
        profiled in prop::option::of((1u32..40, 1e-4f64..2.0)),
        two_kinds: bool,
        remaining_samples in prop::option::of(1.0f64..1e9),
        (priority, samples_per_s) in (-2i32..3, prop::option::of(1.0f64..1e4)),
        batch_size in prop::option::of(0u32..20_000),
        wants in (0usize..8, 1u32..9),
        needs in needs(),
        oracle in prop::option::of(oracles()),
        loss in prop::option::of((0.0f64..1.0, 1e-3f64..10.0, 0.0f64..5.0)),
        trained in (0.0f64..1e6, prop::option::of(1.0f64..1e5)),
    ) -> (Job, (usize, u32)) {
        let mut profiles: Vec<_> =
            profiled.iter().map(|&(replicas, sync_s)| profile(GpuType(0), replicas, sync_s)).collect();
        if let (true, Some((replicas, sync_s))) = (two_kinds, profiled) {
            profiles.push(profile(GpuType(1), replicas, sync_s / 3.0));
        }
        let job = Job {
            age_s, restarts, requested, min: bounds.0, max: bounds.0.max(bounds.1), flexibility, profiles,
            remaining_samples, executed_s: age_s as f64 / 2.0, priority, samples_per_s, batch_size, oracle,
            loss: loss.and_then(|(slope, offset, floor)| LossCurve::new(slope, offset, floor).ok()),
            baseline_steps: trained.0, epoch_steps: trained.1,
            gpus_per_replica: needs.0, cpus: needs.1, memory: needs.2, gpu_types: needs.3, ..Job::default()
        };
        (job, wants)
    }
}

prop_compose! {
    /// A world whose running jobs fit its nodes, some as guests of others.
    pub(crate) fn worlds()(
        nodes in prop::collection::vec(nodes(), 1..8),
        jobs in prop::collection::vec(jobs(), 0..25),
    ) -> World {
        let nodes: Vec<NodeView> = (0..).zip(nodes).map(|(id, node)| NodeView { id: NodeId(id * 3), ..node }).collect();
        let left = |node: &NodeView| Left { gpus: node.gpus, cpus: node.cpus, memory: node.memory };
        let mut free: Vec<Left> = nodes.iter().map(left).collect();
        let wants: Vec<u32> = jobs.iter().map(|&(_, (_, replicas))| replicas).collect();
        let jobs = jobs.into_iter().map(|(job, (node, replicas))| {
            let size = if job.flexibility == Flexibility::Rigid { job.requested } else { replicas };
            let allowed = |node: usize| {
                let kind = nodes[node].gpu_type;
                job.gpu_types.as_ref().is_none_or(|kinds| kinds.contains(&kind))
            };
            let fits = node < nodes.len() && allowed(node) && (job.min.max(1)..=job.max).contains(&size);
            if !fits || !free[node].take(&job, size, false) {
                return job;
            }
            job.running(&[(nodes[node].id.0, size)])
        }).collect();
        let mut world = World { nodes, ..World::new(0, 0, jobs) };
        for (idx, replicas) in wants.into_iter().enumerate().skip(1).step_by(2) {
            come_as_guest(&mut world, &mut free, idx, replicas);
        }
        world
    }
}

/// Puts a job that waits on GPUs of the first that could have it as a guest.
fn come_as_guest(world: &mut World, free: &mut [Left], idx: usize, replicas: u32) {
    let job = &world.jobs[idx];
    let size = if job.flexibility == Flexibility::Rigid { job.requested } else { replicas };
    let is_host = |host: usize| world.jobs.iter().any(|job| job.guest_of == Some(JobId(host as u64)));
    let host = (0..world.jobs.len()).find(|&host| {
        let of_host = &world.jobs[host];
        let alike = of_host.gpus_per_replica == job.gpus_per_replica && of_host.guest_of.is_none() && !is_host(host);
        let allowed = |kind| job.gpu_types.as_ref().is_none_or(|kinds| kinds.contains(&kind));
        let node = of_host.allocation.iter().next().map(|(node, _)| node.0 as usize / 3);
        alike && of_host.allocation.replicas() >= size && node.is_some_and(|node| allowed(world.nodes[node].gpu_type))
    });
    let fits = job.allocation.is_empty() && (job.min.max(1)..=job.max).contains(&size);
    if let (Some(host), true) = (host, fits) {
        let node = world.jobs[host].allocation.iter().next().expect("it runs").0;
        if !free[node.0 as usize / 3].take(job, size, true) {
            return;
        }
        world.jobs[idx] = world.jobs[idx].clone().running(&[(node.0, size)]);
        world.jobs[idx].guest_of = Some(JobId(host as u64));
    }
    pin_hosts(world);
}

/// A guest that may not be moved keeps its host where it is.
fn pin_hosts(world: &mut World) {
    let pinned = world.jobs.iter().filter(|job| job.flexibility != Flexibility::Elastic);
    for host in pinned.filter_map(|job| job.guest_of).collect::<Vec<_>>() {
        pin(&mut world.jobs[host.0 as usize]);
    }
}

fn unpin(job: &mut Job) {
    if job.flexibility == Flexibility::NonPreemptible {
        job.flexibility = Flexibility::Elastic;
    }
}

fn pin(job: &mut Job) {
    if job.flexibility == Flexibility::Elastic {
        job.flexibility = Flexibility::NonPreemptible;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_ever_breaks_a_rule_and_none_is_random(world in worlds()) {
        for settings in policies() {
            let plan = world.plan(&mut *settings.build());
            prop_assert_eq!(plan.assignments.len(), world.jobs.len());
            prop_assert_eq!(&plan, &world.plan(&mut *settings.build()));
            if let Some(quality) = plan.quality {
                prop_assert!(
                    quality.objective <= quality.upper_bound * (1.0 + 1e-9) + 1e-9,
                    "{:?} of {:?}", quality, settings
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_breaks_a_rule_in_a_world_that_goes_on(
        world in worlds(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..6, 1u64..300, 1.0f64..1e4), 8),
    ) {
        for settings in policies() {
            let mut policy = settings.build();
            let mut world = world.clone();
            for (which, what, seconds, rate) in &changes {
                let plan = world.plan(&mut *policy);
                world.carry_out(&plan, *seconds);
                let idx = which.index(world.jobs.len().max(1));
                let node = which.index(world.nodes.len());
                match what {
                    _ if world.jobs.is_empty() => {}
                    0 => world.end(idx as u64),
                    1 => world.nodes[node].schedulable ^= true,
                    2 => world.jobs.iter_mut().for_each(unpin),
                    3 => pin(&mut world.jobs[idx]),
                    _ => world.jobs[idx].samples_per_s = Some(*rate),
                }
                pin_hosts(&mut world);
            }
        }
    }
}

/// Every way to give up to two nodes of two GPUs to three jobs.
fn all_assignments() -> Vec<[Vec<(u32, u32)>; 3]> {
    let options: Vec<Vec<(u32, u32)>> = (0..3)
        .flat_map(|first| (0..3).map(move |second| vec![(0, first), (1, second)]))
        .map(|places| places.into_iter().filter(|&(_, replicas)| replicas > 0).collect())
        .collect();
    let mut all = Vec::new();
    for first in &options {
        for second in &options {
            for third in &options {
                let used = |node| {
                    let on_node = |places: &Vec<(u32, u32)>| -> u32 {
                        places.iter().filter(|place| place.0 == node).map(|place| place.1).sum()
                    };
                    on_node(first) + on_node(second) + on_node(third)
                };
                if used(0) <= 2 && used(1) <= 2 {
                    all.push([first.clone(), second.clone(), third.clone()]);
                }
            }
        }
    }
    all
}

/// What a policy says of an assignment that it cannot change: whoever has GPUs keeps them, whoever has none gets none.
fn worth(world: &World, settings: &PolicySettings, places: &[Vec<(u32, u32)>; 3]) -> Option<f64> {
    let jobs = world.jobs.iter().zip(places).map(|(job, places)| {
        if places.is_empty() {
            return Job { max: 0, ..job.clone() };
        }
        let pinned = Job { flexibility: Flexibility::NonPreemptible, ..job.clone() };
        Job { executed_s: 0.0, ..pinned.running(places) }
    });
    let fixed = World { jobs: jobs.collect(), ..world.clone() };
    fixed.with_view(|now, view| {
        let mut policy = settings.build();
        let plan = policy.plan(now, view);
        plan.check(view, policy.rules()).ok()?;
        plan.quality.map(|quality| quality.objective)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_bound_holds_for_every_plan_there_is_and_ours_is_close_to_the_best(
        jobs in prop::collection::vec((1e-3f64..1.0, 0u64..1_000, 0.1f64..10.0), 3),
        fairness in prop_oneof![Just(-1.0), Just(0.0), Just(1.0), Just(-4.0)],
        second_kind in 0u16..2,
    ) {
        let jobs = jobs.into_iter().map(|(sync_s, age_s, times)| {
            let mut job = Job { age_s, ..Job::measured(4, sync_s) };
            job.profiles.push(faster(&job.profiles[0], GpuType(1), times));
            job
        });
        let mut world = World::new(2, 2, jobs.collect());
        world.nodes[1].gpu_type = GpuType(second_kind);
        let settings = PolicySettings::Pollux(PolluxSettings { fairness, ..PolluxSettings::default() });
        let quality = world.plan(&mut *settings.build()).quality.expect("pollux measures its plans");
        // Nobody trains on two kinds at a time.
        let is_on_one_kind = |places: &&[Vec<(u32, u32)>; 3]| second_kind == 0 || places.iter().all(|of| of.len() < 2);
        let assignments = all_assignments();
        let worths = assignments.iter().filter(is_on_one_kind).filter_map(|places| worth(&world, &settings, places));
        let best = worths.fold(0.0, f64::max);
        prop_assert!(best <= quality.upper_bound * (1.0 + 1e-9), "{} above {:?}", best, quality);
        prop_assert!(quality.objective >= 0.99 * best, "{:?}, but {} is possible", quality, best);
    }
}
