use pollux_policy::{Oracle, PolicySettings};

use crate::world::{Job, World};

/// A job with so many steps left, whose step takes the given times on one, two, three ... replicas.
fn foretold(remaining_steps: f64, step_s: &[f64]) -> Job {
    Job { oracle: Some(Oracle { remaining_steps, step_s: step_s.to_vec() }), ..Job::default() }
}

fn replicas(world: &World) -> Vec<u32> {
    world.replicas(&mut *PolicySettings::OptimusOracle.build())
}

fn places(world: &World, job: usize) -> Vec<(u32, u32)> {
    let plan = world.plan(&mut *PolicySettings::OptimusOracle.build());
    plan.assignments[job].allocation.iter().map(|(node, count)| (node.0, count)).collect()
}

const SCALES_WELL: [f64; 4] = [1.0, 0.5, 0.34, 0.25];

#[test]
fn the_next_gpu_goes_to_the_job_that_saves_the_most_time_by_it() {
    let world = World::new(1, 4, vec![foretold(100.0, &SCALES_WELL), foretold(1000.0, &SCALES_WELL)]);
    assert_eq!(replicas(&world), [1, 3]);
    let longer = World::new(1, 4, vec![foretold(900.0, &SCALES_WELL), foretold(1000.0, &SCALES_WELL)]);
    assert_eq!(replicas(&longer), [2, 2]);
}

#[test]
fn equal_gains_go_to_the_job_that_came_first() {
    let world = World::new(1, 3, vec![foretold(100.0, &SCALES_WELL), foretold(100.0, &SCALES_WELL)]);
    assert_eq!(replicas(&world), [2, 1]);
}

#[test]
fn a_job_whose_step_stops_getting_shorter_gets_no_more() {
    let world = World::new(2, 4, vec![foretold(1e9, &[1.0, 0.6, 0.6, 0.3]), foretold(1.0, &[1.0, 1.1])]);
    assert_eq!(replicas(&world), [2, 1]);
}

#[test]
fn everyone_gets_one_gpu_in_order_of_arrival_while_they_last() {
    let world = World::new(1, 2, vec![foretold(1.0, &SCALES_WELL), Job::default(), foretold(1e9, &SCALES_WELL)]);
    assert_eq!(replicas(&world), [1, 1, 0]);
}

#[test]
fn a_job_keeps_its_gpus_while_their_number_stays() {
    let stays = foretold(1.0, &[1.0, 0.5]).running(&[(1, 1), (2, 1)]);
    let world = World::new(3, 2, vec![stays, foretold(1.0, &[1.0, 0.5, 0.4])]);
    assert_eq!((places(&world, 0), places(&world, 1)), (vec![(1, 1), (2, 1)], vec![(0, 2), (1, 1)]));
}

#[test]
fn those_that_change_are_placed_smallest_first_on_the_emptiest_nodes() {
    let grows = foretold(1e6, &SCALES_WELL).running(&[(0, 1)]);
    let world = World::new(2, 3, vec![grows, foretold(1.0, &[1.0])]);
    assert_eq!((places(&world, 0), places(&world, 1)), (vec![(0, 1), (1, 3)], vec![(0, 1)]));
}

#[test]
fn a_job_on_a_draining_node_moves() {
    let mut world = World::new(2, 2, vec![foretold(1.0, &[1.0]).running(&[(0, 1)])]);
    world.nodes[0].schedulable = false;
    assert_eq!(places(&world, 0), [(1, 1)]);
}
