use pollux_model::GpuType;
use pollux_policy::{
    Assignment, Binding, Flexibility, JobId, NodeId, PlacementRules, Plan, PlanError, PolicySettings, Reason,
};
use proptest::prelude::*;

use crate::world::{Job, World, profile};

const RULES: PlacementRules = PlacementRules { one_multi_node_job_per_node: false };

fn assign(job: u64, places: &[(u32, u32)]) -> Assignment {
    let allocation = places.iter().map(|&(node, replicas)| (NodeId(node), replicas)).collect();
    Assignment { job: JobId(job), allocation, guest_of: None, reason: Reason::default() }
}

fn check(world: &World, assignments: Vec<Assignment>) -> Result<(), PlanError> {
    world.with_view(|_, view| Plan { assignments, quality: None }.check(view, RULES))
}

fn oracle() -> Option<pollux_policy::Oracle> {
    let step_s = (1..=64u32).map(|replicas| 1.0 / f64::from(replicas)).collect();
    Some(pollux_policy::Oracle::alike(1e4, step_s))
}

/// A gang of so many replicas of so many GPUs.
fn gang(requested: u32, gpus_per_replica: u32) -> Job {
    let profiles = vec![profile(GpuType(0), 8, 0.01), profile(GpuType(1), 8, 0.01)];
    Job { requested, min: requested, max: requested, gpus_per_replica, profiles, oracle: oracle(), ..Job::default() }
}

/// Runs a few rounds under every policy; the worlds are as small as that.
fn under_every_policy(world: &World, expected: impl Fn(&str, &World, &Plan)) {
    for settings in PolicySettings::all() {
        let mut policy = settings.build();
        let mut world = world.clone();
        for _ in 0..3 {
            let plan = world.plan(&mut *policy);
            expected(policy.name(), &world, &plan);
            world.carry_out(&plan, 60);
        }
    }
}

#[test]
fn a_replica_of_four_gpus_is_never_split() {
    let mut world = World::new(3, 2, vec![gang(1, 4)]);
    under_every_policy(&world, |policy, _, plan| {
        assert!(plan.assignments[0].allocation.is_empty(), "{policy}");
        assert_eq!(plan.assignments[0].reason.binding, Binding::TooLargeForANode, "{policy}");
    });
    world.nodes[1].gpus = 5;
    under_every_policy(&world, |policy, _, plan| {
        assert_eq!(plan.assignments[0].allocation.iter().collect::<Vec<_>>(), [(NodeId(1), 1)], "{policy}");
    });
}

#[test]
fn a_waiting_replica_of_four_gpus_gets_a_node_of_its_own() {
    // Two small jobs and a large replica: they fit only if the small ones share a node.
    let world = World::new(2, 4, vec![gang(2, 1), gang(1, 2), gang(1, 4)]);
    under_every_policy(&world, |policy, _, plan| {
        let replicas: Vec<u32> = plan.assignments.iter().map(|assignment| assignment.allocation.replicas()).collect();
        assert_eq!(replicas, [2, 1, 1], "{policy}");
    });
}

#[test]
fn cpus_and_memory_limit_what_a_node_takes() {
    for job in [Job { cpus: 4, ..gang(4, 1) }, Job { memory: 30, ..gang(4, 1) }] {
        let mut world = World::new(2, 8, vec![job]);
        for node in &mut world.nodes {
            (node.cpus, node.memory) = (Some(8), Some(64));
        }
        under_every_policy(&world, |policy, _, plan| {
            let places: Vec<_> = plan.assignments[0].allocation.iter().collect();
            assert_eq!(places, [(NodeId(0), 2), (NodeId(1), 2)], "{policy}");
        });
    }
}

#[test]
fn what_no_node_has_is_named() {
    let asks = |change: &dyn Fn(&mut Job)| {
        let mut job = gang(1, 2);
        change(&mut job);
        let mut world = World::new(2, 4, vec![job]);
        for node in &mut world.nodes {
            (node.cpus, node.memory) = (Some(16), Some(1_000));
        }
        world
    };
    let cases = [
        (asks(&|job| job.gpus_per_replica = 5), Binding::TooLargeForANode),
        (asks(&|job| job.cpus = 17), Binding::NotEnoughCpus),
        (asks(&|job| job.memory = 1_001), Binding::NotEnoughMemory),
        (asks(&|job| job.gpu_types = Some(vec![GpuType(3)])), Binding::NoSuchType),
        (asks(&|job| (job.requested, job.min, job.max) = (5, 5, 5)), Binding::Impossible),
    ];
    for (world, binding) in cases {
        under_every_policy(&world, |policy, _, plan| {
            assert!(plan.assignments[0].allocation.is_empty(), "{policy} {binding:?}");
            assert_eq!(plan.assignments[0].reason.binding, binding, "{policy}");
        });
        let rigid = Job { flexibility: Flexibility::Rigid, ..world.jobs[0].clone() };
        under_every_policy(&World { jobs: vec![rigid], ..world }, |policy, _, plan| {
            assert_eq!(plan.assignments[0].reason.binding, binding, "{policy}, rigid");
        });
    }
}

#[test]
fn a_job_runs_on_the_kinds_it_allows() {
    let only = |kind| Job { gpu_types: Some(vec![GpuType(kind)]), ..gang(2, 1) };
    let mut world = World::new(2, 4, vec![only(1), only(1), only(0)]);
    world.nodes[1].gpu_type = GpuType(1);
    under_every_policy(&world, |policy, _, plan| {
        let nodes = |idx: usize| plan.assignments[idx].allocation.iter().collect::<Vec<_>>();
        assert_eq!([nodes(0), nodes(1)], [vec![(NodeId(1), 2)], vec![(NodeId(1), 2)]], "{policy}");
        assert_eq!(nodes(2), [(NodeId(0), 2)], "{policy}");
    });
}

#[test]
fn plans_that_need_more_than_a_node_has_are_refused() {
    let (job, node) = (JobId(0), NodeId(0));
    let mut world = World::new(1, 8, vec![Job { cpus: 3, memory: 10, gpus_per_replica: 2, ..Job::default() }]);
    assert_eq!(check(&world, vec![assign(0, &[(0, 4)])]), Ok(()));
    let too_many = PlanError::Capacity { node, gpus: 8, planned: 10 };
    assert_eq!(too_many.to_string(), "node 0 has 8 GPUs but its replicas need 10");
    assert_eq!(check(&world, vec![assign(0, &[(0, 5)])]), Err(too_many));
    world.nodes[0].cpus = Some(8);
    assert_eq!(check(&world, vec![assign(0, &[(0, 3)])]), Err(PlanError::Cpus { node, cpus: 8, planned: 9 }));
    world.nodes[0].memory = Some(19);
    assert_eq!(check(&world, vec![assign(0, &[(0, 2)])]), Err(PlanError::Memory { node, memory: 19, planned: 20 }));
    assert_eq!(check(&world, vec![assign(0, &[(0, 1)])]), Ok(()));
    world.jobs[0].gpu_types = Some(vec![GpuType(1)]);
    assert_eq!(check(&world, vec![assign(0, &[(0, 1)])]), Err(PlanError::GpuType { job, node }));
}

#[test]
fn a_guest_needs_cpus_of_its_own_and_a_host_with_as_many_gpus_per_replica() {
    let host = Job { cpus: 4, gpus_per_replica: 2, ..Job::default() };
    let mut world = World::new(1, 8, vec![host.clone(), host]);
    let guest = || Assignment { guest_of: Some(JobId(0)), ..assign(1, &[(0, 2)]) };
    assert_eq!(check(&world, vec![assign(0, &[(0, 4)]), guest()]), Ok(()));
    world.nodes[0].cpus = Some(20);
    let crowded = PlanError::Cpus { node: NodeId(0), cpus: 20, planned: 24 };
    assert_eq!(check(&world, vec![assign(0, &[(0, 4)]), guest()]), Err(crowded));
    world.jobs[1].gpus_per_replica = 1;
    let refused = PlanError::Guest { job: JobId(1), host: JobId(0) };
    assert_eq!(check(&world, vec![assign(0, &[(0, 2)]), guest()]), Err(refused));
}

#[test]
fn a_fair_share_is_counted_in_gpus() {
    // Two jobs alike but for what they call a replica: half of the cluster for each.
    let job = |gpus_per_replica| Job { gpus_per_replica, ..Job::default() };
    for policy in ["pollux", "castor"] {
        let world = World::new(2, 8, vec![job(4), job(4), job(4), job(4)]);
        let plan = world.plan(&mut *PolicySettings::named(policy).expect("known").build());
        let replicas: Vec<u32> = plan.assignments.iter().map(|assignment| assignment.allocation.replicas()).collect();
        assert_eq!(replicas, [1, 1, 1, 1], "{policy}");
        let quality = plan.quality.expect("it measures its plans");
        assert!((quality.objective - 1.0).abs() < 0.01, "{policy}: four GPUs are a fair share: {quality:?}");
    }
}

/// Every way to put up to two replicas of each job on each of two nodes.
fn options() -> Vec<Vec<(u32, u32)>> {
    let sizes = || 0..3u32;
    let all = sizes().flat_map(|first| sizes().map(move |second| vec![(0, first), (1, second)]));
    all.map(|places| places.into_iter().filter(|&(_, replicas)| replicas > 0).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_bound_holds_for_every_plan_of_replicas_with_several_gpus(
        jobs in prop::collection::vec((1e-3f64..1.0, 1u64..1_000, 1u32..=8, 0u32..4), 3),
        nodes in (4u32..=8, 4u32..=8, prop::option::of(2u32..8)),
        name in prop_oneof![Just("pollux"), Just("castor")],
    ) {
        let jobs = jobs.into_iter().map(|(sync_s, age_s, gpus_per_replica, cpus)| {
            Job { age_s, gpus_per_replica, cpus, max: 4, ..Job::measured(4, sync_s) }
        });
        let mut world = World::new(2, nodes.0, jobs.collect());
        world.nodes[1].gpus = nodes.1;
        world.nodes.iter_mut().for_each(|node| node.cpus = nodes.2);
        let settings = PolicySettings::named(name).expect("known");
        let quality = world.plan(&mut *settings.build()).quality.expect("it measures its plans");
        prop_assert!(quality.objective <= quality.upper_bound * (1.0 + 1e-9));
        let mut best: f64 = 0.0;
        for first in options() {
            for second in options() {
                for third in options() {
                    let places = [first.clone(), second.clone(), third];
                    best = best.max(worth(&world, &settings, &places).unwrap_or(0.0));
                }
            }
        }
        prop_assert!(best <= quality.upper_bound * (1.0 + 1e-9), "{} above {:?}", best, quality);
        prop_assert!(quality.objective >= 0.5 * best, "{:?}, but {} is possible", quality, best);
    }
}

/// What a policy says of an assignment that it cannot change: whoever has GPUs keeps them, whoever has none gets none.
fn worth(world: &World, settings: &PolicySettings, places: &[Vec<(u32, u32)>; 3]) -> Option<f64> {
    let jobs = world.jobs.iter().zip(places).map(|(job, places)| match places.is_empty() {
        true => Job { max: 0, ..job.clone() },
        false => {
            let pinned = Job { flexibility: Flexibility::NonPreemptible, ..job.clone() };
            Job { executed_s: 0.0, ..pinned.running(places) }
        }
    });
    let fixed = World { jobs: jobs.collect(), ..world.clone() };
    fixed.with_view(|now, view| {
        let mut policy = settings.build();
        let plan = policy.plan(now, view);
        plan.check(view, policy.rules()).ok()?;
        plan.quality.map(|quality| quality.objective)
    })
}
