use pollux_model::LossCurve;
use pollux_policy::{PolicySettings, SlaqSettings};

use crate::world::{Job, World};

/// A job that scales well, measured on up to 64 replicas, whose loss starts at `start` and falls towards 0.
fn learning(start: f64, baseline_steps: f64) -> Job {
    let loss = LossCurve::new(1e-3 / start, 1.0 / start, 0.0).ok();
    Job { loss, baseline_steps, batch_size: Some(2048), ..Job::measured(64, 0.01) }
}

fn replicas(world: &World) -> Vec<u32> {
    world.replicas(&mut *PolicySettings::Slaq(SlaqSettings::default()).build())
}

#[test]
fn a_nearly_converged_job_loses_its_gpus_to_one_that_learns_fast() {
    let converged = learning(1.0, 50_000.0).running(&[(0, 4), (1, 4)]);
    let world = World::new(2, 4, vec![converged, learning(1.0, 0.0)]);
    assert_eq!(replicas(&world), [1, 7]);
}

#[test]
fn losses_of_any_scale_compare() {
    let world = World::new(2, 4, vec![learning(1.0, 1_000.0), learning(500.0, 1_000.0)]);
    assert_eq!(replicas(&world), [4, 4]);
}

#[test]
fn a_job_without_a_curve_gets_one_gpu_before_all_others() {
    let world = World::new(1, 2, vec![learning(1.0, 9_000.0), learning(1.0, 0.0), Job::default()]);
    assert_eq!(replicas(&world), [0, 1, 1]);
    let roomy = World::new(2, 4, vec![learning(1.0, 0.0), Job::default()]);
    assert_eq!(replicas(&roomy), [7, 1]);
}

#[test]
fn a_loss_that_does_not_fall_earns_one_gpu() {
    let flat = Job { loss: LossCurve::new(0.0, 1.0, 0.0).ok(), ..learning(1.0, 0.0) };
    assert_eq!(replicas(&World::new(2, 4, vec![flat, learning(1.0, 0.0)])), [1, 7]);
}
