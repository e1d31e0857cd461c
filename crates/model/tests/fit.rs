//! The fit of step times: recovery, priors, refusals.

use pollux_model::{ModelError, Observation, Parallelism, Shape, StepParams, ThroughputModel, fit, objective};
use proptest::prelude::*;

const TRUTH: StepParams = StepParams {
    alpha_compute: 0.02,
    beta_compute: 0.0007,
    alpha_internode: 0.1,
    beta_internode: 0.002,
    alpha_intranode: 0.01,
    beta_intranode: 0.001,
    gamma: 1.5,
};

fn observe(params: &StepParams, nodes: u32, replicas: u32, local_batch: u32) -> Observation {
    let shape = Shape::new(nodes, replicas).expect("valid");
    let model = Parallelism::DataParallel.model(*params).expect("valid");
    Observation {
        shape,
        local_batch,
        compute_s: model.micro_step_s(shape, f64::from(local_batch)),
        step_s: model.final_step_s(shape, f64::from(local_batch)),
    }
}

fn profile(params: &StepParams, shapes: &[(u32, u32)], local_batches: &[u32]) -> Vec<Observation> {
    let pairs = shapes.iter().flat_map(|shape| local_batches.iter().map(move |batch| (shape, batch)));
    pairs.map(|(&(nodes, replicas), &batch)| observe(params, nodes, replicas, batch)).collect()
}

fn fitted(observations: &[Observation]) -> ThroughputModel {
    fit(Parallelism::DataParallel, observations, None).expect("valid observations").model
}

#[test]
fn a_known_model_is_found_again() {
    let shapes = [(1, 1), (1, 2), (1, 4), (2, 8), (4, 16), (8, 32)];
    let observations = profile(&TRUTH, &shapes, &[32, 128, 512]);
    let model = fitted(&observations);
    for seen in &observations {
        let predicted = model.final_step_s(seen.shape, f64::from(seen.local_batch));
        assert!((predicted / seen.step_s - 1.0).abs() < 0.01, "{seen:?}: predicted {predicted}");
    }
}

#[test]
fn without_multi_node_data_links_between_nodes_cost_a_tenth_more() {
    let params = *fitted(&profile(&TRUTH, &[(1, 1), (1, 2), (1, 4)], &[32, 128])).params();
    assert!((params.alpha_internode / params.alpha_intranode - 1.1).abs() < 1e-12);
    assert!((params.beta_internode / params.beta_intranode - 1.1).abs() < 1e-12);
}

#[test]
fn a_single_replica_predicts_perfect_scaling() {
    let model = fitted(&profile(&TRUTH, &[(1, 1)], &[32, 128]));
    let alone = model.final_step_s(Shape::single(), 64.0);
    let many = model.final_step_s(Shape::new(4, 16).unwrap(), 64.0);
    assert!(many < alone * 1.000_1, "16 replicas step in {many}, one in {alone}");
}

#[test]
fn without_more_than_two_replicas_further_ones_are_free() {
    let params = *fitted(&profile(&TRUTH, &[(1, 1), (1, 2), (2, 2)], &[32, 128])).params();
    assert_eq!((params.beta_intranode, params.beta_internode), (1e-8, 1e-8));
}

#[test]
fn with_one_batch_size_half_of_the_compute_time_is_overhead() {
    let observations = profile(&TRUTH, &[(1, 1), (1, 2)], &[64]);
    assert!((fitted(&observations).params().alpha_compute - observations[0].compute_s / 2.0).abs() < 1e-12);
}

#[test]
fn the_order_of_observations_does_not_matter() {
    let mut observations = profile(&TRUTH, &[(1, 1), (1, 3), (2, 6)], &[32, 100, 256]);
    let forwards = fitted(&observations);
    observations.reverse();
    assert_eq!(fitted(&observations), forwards);
}

/// Two fits of the published implementation, `γ` and the links' growth well off their priors.
#[test]
fn published_fits_are_told_again_and_reached() {
    let check = |rows: &[(u32, u32, u32, f64, f64)], params: [f64; 7], published: f64| {
        let observations: Vec<Observation> = rows
            .iter()
            .map(|&(nodes, replicas, local_batch, compute_s, step_s)| {
                let shape = Shape::new(nodes, replicas).expect("valid");
                Observation { shape, local_batch, compute_s, step_s }
            })
            .collect();
        let told = objective(&observations, &StepParams::from_array(params)).unwrap();
        assert!((told / published - 1.0).abs() < 1e-6, "{told}, published {published}");
        let found = fit(Parallelism::DataParallel, &observations, None).unwrap().objective;
        assert!(found <= published * 1.001, "{found}, published {published}");
    };
    check(
        &[
            (1, 1, 12, 0.907_819_919_3, 0.921_515_673_4),
            (2, 2, 12, 0.861_790_900_7, 1.481_467_187),
            (1, 4, 12, 0.864_250_343_3, 0.957_118_213_2),
            (1, 2, 12, 0.864_366_402_5, 0.919_040_814),
            (2, 3, 12, 0.865_482_503_2, 1.874_689_847),
        ],
        [
            0.436_371_006_9,
            0.037_035_167_39,
            1.130_981_382,
            0.459_440_097_2,
            0.228_397_184_1,
            0.044_817_778_14,
            1.810_617_253,
        ],
        0.044_971_723_14,
    );
    check(
        &[
            (1, 1, 8, 0.323_658_284_5, 0.326_148_420_6),
            (1, 2, 4, 0.284_048_136_8, 0.304_201_141),
            (1, 4, 8, 0.381_963_275_3, 0.500_925_108_8),
            (2, 7, 8, 0.338_750_473_4, 1.578_358_158),
        ],
        [
            0.226_279_688_1,
            0.013_103_763_71,
            1.500_927_014,
            0.013_937_507_54,
            0.176_141_592_1,
            0.129_534_119_3,
            2.758_010_509,
        ],
        0.090_011_942_35,
    );
}

#[test]
fn bad_observations_are_named() {
    let good = observe(&TRUTH, 1, 2, 64);
    let message = |bad: Observation| fit(Parallelism::DataParallel, &[good, bad], None).unwrap_err().to_string();
    assert_eq!(
        message(Observation { compute_s: f64::NAN, ..good }),
        "compute time NaN for 64 samples on 2 replicas: expected 1e-7 to 1e7 seconds"
    );
    assert_eq!(
        message(Observation { step_s: -1.0, ..good }),
        "step time -1 for 64 samples on 2 replicas: expected 1e-7 to 1e7 seconds"
    );
    assert_eq!(
        message(Observation { compute_s: 2.0, step_s: 1.0, ..good }),
        "step time 1 for 64 samples on 2 replicas: expected step times of at least the compute time"
    );
    assert_eq!(message(Observation { local_batch: 0, ..good }), "local batch 0 on 2 replicas: expected 1 or more");
    assert_eq!(
        message(Observation { step_s: 1000.0, ..good }),
        format!(
            "step times {} s and 1000 s for the same local batch 64 on 2 replicas over 1 nodes: expected times \
             within a factor of 100",
            good.step_s
        )
    );
    assert_eq!(fit(Parallelism::DataParallel, &[], None), Err(ModelError::NoObservations));
}

prop_compose! {
    fn observations()(
        rows in prop::collection::vec((1u32..5, 1u32..17, 1u32..2000, -7.0f64..7.0, 0.0f64..3.0), 1..30)
    ) -> Vec<Observation> {
        rows.into_iter().map(|(nodes, replicas, local_batch, log_compute, slower)| {
            let compute_s = 10f64.powf(log_compute);
            Observation {
                shape: Shape::new(nodes.min(replicas), replicas).expect("no more nodes than replicas"),
                local_batch,
                compute_s,
                step_s: (compute_s * (1.0 + slower)).min(1e7),
            }
        }).collect()
    }
}

proptest! {
    #[test]
    fn any_valid_observations_give_a_valid_model_or_a_named_error(observations in observations()) {
        match fit(Parallelism::DataParallel, &observations, None) {
            Ok(found) => {
                prop_assert!(found.model.params().check().is_ok());
                prop_assert!(found.objective.is_finite());
                let value = objective(&observations, found.model.params()).expect("the same observations");
                prop_assert!((value - found.objective).abs() <= 1e-9 * value.max(1.0));
            }
            Err(error) => prop_assert!(matches!(error, ModelError::Contradiction { .. }), "{}", error),
        }
    }

    #[test]
    fn a_warm_start_is_never_much_worse_than_a_cold_one(observations in observations(), cut in 1usize..30) {
        let Ok(cold) = fit(Parallelism::DataParallel, &observations, None) else { return Ok(()) };
        let earlier = &observations[..cut.min(observations.len())];
        let before = fit(Parallelism::DataParallel, earlier, None).expect("fewer observations contradict less");
        let warm = fit(Parallelism::DataParallel, &observations, Some(&before.model)).expect("as the cold one");
        prop_assert!(warm.objective <= cold.objective * 1.1, "warm {} cold {}", warm.objective, cold.objective);
    }
}
