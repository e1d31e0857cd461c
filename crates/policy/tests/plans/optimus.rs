use pollux_model::LossCurve;
use pollux_policy::{OptimusSettings, Oracle, PolicySettings};

use crate::world::{Job, World};

/// A job with so many steps left, whose step takes the given times on one, two, three ... replicas.
fn with_oracle(remaining_steps: f64, step_s: &[f64]) -> Job {
    Job { oracle: Some(Oracle::alike(remaining_steps, step_s.to_vec())), ..Job::default() }
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
    let world = World::new(1, 4, vec![with_oracle(100.0, &SCALES_WELL), with_oracle(1000.0, &SCALES_WELL)]);
    assert_eq!(replicas(&world), [1, 3]);
    let longer = World::new(1, 4, vec![with_oracle(900.0, &SCALES_WELL), with_oracle(1000.0, &SCALES_WELL)]);
    assert_eq!(replicas(&longer), [2, 2]);
}

#[test]
fn equal_gains_go_to_the_job_that_came_first() {
    let world = World::new(1, 3, vec![with_oracle(100.0, &SCALES_WELL), with_oracle(100.0, &SCALES_WELL)]);
    assert_eq!(replicas(&world), [2, 1]);
}

#[test]
fn a_job_whose_step_stops_getting_shorter_gets_no_more() {
    let world = World::new(2, 4, vec![with_oracle(1e9, &[1.0, 0.6, 0.6, 0.3]), with_oracle(1.0, &[1.0, 1.1])]);
    assert_eq!(replicas(&world), [2, 1]);
}

#[test]
fn everyone_gets_one_gpu_in_order_of_arrival_while_they_last() {
    let world = World::new(1, 2, vec![with_oracle(1.0, &SCALES_WELL), Job::default(), with_oracle(1e9, &SCALES_WELL)]);
    assert_eq!(replicas(&world), [1, 1, 0]);
}

#[test]
fn a_job_keeps_its_gpus_while_their_number_stays() {
    let stays = with_oracle(1.0, &[1.0, 0.5]).running(&[(1, 1), (2, 1)]);
    let world = World::new(3, 2, vec![stays, with_oracle(1.0, &[1.0, 0.5, 0.4])]);
    assert_eq!((places(&world, 0), places(&world, 1)), (vec![(1, 1), (2, 1)], vec![(0, 2), (1, 1)]));
}

#[test]
fn those_that_change_are_placed_smallest_first_on_the_emptiest_nodes() {
    let grows = with_oracle(1e6, &SCALES_WELL).running(&[(0, 1)]);
    let world = World::new(2, 3, vec![grows, with_oracle(1.0, &[1.0])]);
    assert_eq!((places(&world, 0), places(&world, 1)), (vec![(0, 1), (1, 3)], vec![(0, 1)]));
}

#[test]
fn a_job_on_a_draining_node_moves() {
    let mut world = World::new(2, 2, vec![with_oracle(1.0, &[1.0]).running(&[(0, 1)])]);
    world.nodes[0].schedulable = false;
    assert_eq!(places(&world, 0), [(1, 1)]);
}

/// A job that scales well, measured on up to 64 replicas, with a loss that falls to the given floor.
fn learning(floor: f64, baseline_steps: f64) -> Job {
    let loss = LossCurve::new(1e-3, 1.0, floor).ok();
    Job { loss, epoch_steps: Some(100.0), baseline_steps, batch_size: Some(2048), ..Job::measured(64, 0.01) }
}

fn predicted(world: &World) -> Vec<u32> {
    world.replicas(&mut *PolicySettings::Optimus(OptimusSettings::default()).build())
}

#[test]
fn a_job_far_from_convergence_gets_more_than_one_close_to_it() {
    let world = World::new(4, 4, vec![learning(0.0, 9_000.0), learning(0.0, 0.0)]);
    let replicas = predicted(&world);
    assert!(replicas[0] < replicas[1] && replicas.iter().sum::<u32>() == 16, "{replicas:?}");
}

#[test]
fn a_job_beyond_its_predicted_end_still_trains_an_epoch() {
    let world = World::new(1, 4, vec![learning(0.5, 1e6), learning(0.5, 1e7)]);
    assert_eq!(predicted(&world), [2, 2]);
}

#[test]
fn before_there_is_a_curve_declared_work_counts() {
    let declared = |samples| Job { loss: None, remaining_samples: Some(samples), ..learning(0.0, 0.0) };
    let replicas = predicted(&World::new(2, 4, vec![declared(1e6), declared(1e8)]));
    assert!(replicas[0] < replicas[1], "{replicas:?}");
}

#[test]
fn a_job_grows_to_twice_what_it_was_measured_on_and_is_measured_on_one_gpu_first() {
    let world = World::new(4, 4, vec![Job::default(), Job { batch_size: Some(2048), ..Job::measured(3, 0.001) }]);
    assert_eq!(predicted(&world), [1, 6]);
}

#[test]
fn a_batch_is_not_cut_below_the_smallest_local_batch() {
    let world = World::new(4, 4, vec![Job { batch_size: Some(128), ..Job::measured(64, 1e-4) }]);
    assert_eq!(predicted(&world), [8]);
}

#[test]
fn a_gpu_stays_with_its_holder_unless_another_gains_much_more_by_it() {
    let holder = |steps| learning(0.0, steps).running(&[(0, 2)]);
    let world = World::new(1, 3, vec![learning(0.0, 0.0), holder(500.0)]);
    assert_eq!(predicted(&world), [1, 2]);
    let world = World::new(1, 3, vec![learning(0.0, 0.0), holder(8_000.0)]);
    assert_eq!(predicted(&world), [2, 1]);
}

#[test]
fn those_that_change_are_spread_evenly_over_the_fewest_nodes() {
    let six = Job { max: 6, ..learning(0.0, 0.0) };
    let plan = World::new(3, 4, vec![six]).plan(&mut *PolicySettings::Optimus(OptimusSettings::default()).build());
    let places: Vec<_> = plan.assignments[0].allocation.iter().map(|(node, count)| (node.0, count)).collect();
    assert_eq!(places, [(0, 3), (1, 3)]);
}
