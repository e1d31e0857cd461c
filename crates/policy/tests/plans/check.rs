use pollux_model::GpuType;
use pollux_policy::{Allocation, Assignment, Flexibility, JobId, NodeId, PlacementRules, Plan, PlanError, Reason};

use crate::world::{Job, World};

const STRICT: PlacementRules = PlacementRules { one_multi_node_job_per_node: true };

fn assign(job: u64, places: &[(u32, u32)]) -> Assignment {
    let allocation = places.iter().map(|&(node, replicas)| (NodeId(node), replicas)).collect();
    Assignment { job: JobId(job), allocation, guest_of: None, reason: Reason::default() }
}

fn check(world: &World, assignments: Vec<Assignment>) -> Result<(), PlanError> {
    world.with_view(|_, view| Plan { assignments, quality: None }.check(view, STRICT))
}

fn three_jobs() -> World {
    let rigid = Job { requested: 2, flexibility: Flexibility::Rigid, ..Job::default() };
    World::new(2, 4, vec![Job { min: 2, max: 6, ..Job::default() }, Job::default(), rigid])
}

#[test]
fn a_plan_within_the_rules_passes() {
    assert_eq!(
        check(&three_jobs(), vec![assign(0, &[(0, 2), (1, 2)]), assign(1, &[(0, 2)]), assign(2, &[(1, 2)])]),
        Ok(())
    );
}

#[test]
fn broken_plans_are_named() {
    let world = three_jobs();
    let job = |id| JobId(id);
    assert_eq!(check(&world, vec![assign(7, &[(0, 1)])]), Err(PlanError::Job { job: job(7) }));
    assert_eq!(check(&world, vec![assign(1, &[(0, 1)]), assign(1, &[])]), Err(PlanError::Job { job: job(1) }));
    assert_eq!(check(&world, vec![assign(1, &[(9, 1)])]), Err(PlanError::Node { job: job(1), node: NodeId(9) }));
    assert_eq!(
        check(&world, vec![assign(0, &[(0, 3)]), assign(1, &[(0, 2)])]),
        Err(PlanError::Capacity { node: NodeId(0), gpus: 4, planned: 5 })
    );
    assert_eq!(
        check(&world, vec![assign(0, &[(0, 1)])]),
        Err(PlanError::Bounds { job: job(0), replicas: 1, min: 2, max: 6 })
    );
    assert_eq!(
        check(&world, vec![assign(2, &[(0, 3)])]),
        Err(PlanError::Bounds { job: job(2), replicas: 3, min: 2, max: 2 })
    );
    assert_eq!(
        check(&world, vec![assign(0, &[(0, 1), (1, 1)]), assign(1, &[(0, 1), (1, 1)])]),
        Err(PlanError::Interference { node: NodeId(0), first: job(0), second: job(1) })
    );
}

#[test]
fn what_is_pinned_stays_also_by_omission() {
    let mut world = three_jobs();
    world.jobs[2] = world.jobs[2].clone().running(&[(1, 2)]);
    let pinned = Err(PlanError::Pinned { job: JobId(2) });
    assert_eq!(check(&world, vec![assign(2, &[(0, 2)])]), pinned);
    assert_eq!(check(&world, vec![]), pinned);
    assert_eq!(check(&world, vec![assign(2, &[(1, 2)])]), Ok(()));
}

#[test]
fn a_draining_node_takes_nothing_new() {
    let mut world = three_jobs();
    world.nodes[0].schedulable = false;
    assert_eq!(check(&world, vec![assign(1, &[(0, 1)])]), Err(PlanError::Node { job: JobId(1), node: NodeId(0) }));
    world.jobs[1] = world.jobs[1].clone().running(&[(0, 2)]);
    assert_eq!(check(&world, vec![assign(1, &[(0, 1)])]), Ok(()));
}

#[test]
fn a_job_gets_one_kind_of_gpu() {
    let mut world = three_jobs();
    world.nodes[1].gpu_type = GpuType(1);
    assert_eq!(check(&world, vec![assign(1, &[(0, 1), (1, 1)])]), Err(PlanError::MixedTypes { job: JobId(1) }));
}

#[test]
fn a_guest_needs_a_host_with_room_and_takes_no_gpus_of_its_own() {
    let world = three_jobs();
    let guest = |places| Assignment { guest_of: Some(JobId(0)), ..assign(1, places) };
    assert_eq!(check(&world, vec![assign(0, &[(0, 4)]), guest(&[(0, 3)])]), Ok(()));
    let refused = Err(PlanError::Guest { job: JobId(1), host: JobId(0) });
    assert_eq!(check(&world, vec![assign(0, &[(0, 2)]), guest(&[(0, 3)])]), refused);
    assert_eq!(check(&world, vec![guest(&[(0, 1)])]), refused);
}

#[test]
fn a_guest_that_is_pinned_stays_with_its_host() {
    let mut world = three_jobs();
    world.jobs[0] = Job { flexibility: Flexibility::NonPreemptible, ..world.jobs[0].clone().running(&[(0, 2)]) };
    world.jobs[2] = Job { guest_of: Some(JobId(0)), ..world.jobs[2].clone().running(&[(0, 2)]) };
    let guest = |guest_of| Assignment { guest_of, ..assign(2, &[(0, 2)]) };
    assert_eq!(check(&world, vec![assign(0, &[(0, 2)]), guest(Some(JobId(0)))]), Ok(()));
    assert_eq!(check(&world, vec![assign(0, &[(0, 2)]), guest(None)]), Err(PlanError::Pinned { job: JobId(2) }));
}

#[test]
fn an_allocation_is_ordered_and_adds_up() {
    let allocation: Allocation = [(NodeId(3), 1), (NodeId(1), 2), (NodeId(3), 1), (NodeId(2), 0)].into_iter().collect();
    assert_eq!(allocation.iter().collect::<Vec<_>>(), [(NodeId(1), 2), (NodeId(3), 2)]);
    assert_eq!(
        (allocation.replicas(), allocation.replicas_on(NodeId(3)), allocation.replicas_on(NodeId(2))),
        (4, 2, 0)
    );
}
