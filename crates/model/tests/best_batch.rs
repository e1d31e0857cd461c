//! The best batch and accumulation, against trying them all.

use pollux_model::{
    BatchChoice, BatchLimits, Goodput, LoneReplica, ModelError, NoiseStatistics, Parallelism, Shape, StepParams,
};
use proptest::prelude::*;

fn brute_force(goodput: &Goodput, shape: Shape) -> Option<BatchChoice> {
    let limits = &goodput.limits;
    let mut best: Option<BatchChoice> = None;
    for local_batch in limits.local_batch_min()..=limits.local_batch_max() {
        let micro_batches_max = limits.batch_size_max() / (local_batch * shape.replicas());
        for accumulation_steps in 0..micro_batches_max {
            let Ok(choice) = goodput.evaluate(shape, local_batch, accumulation_steps) else { continue };
            if best.is_none_or(|best| choice.goodput > best.goodput) {
                best = Some(choice);
            }
        }
    }
    best
}

fn check_against_brute_force(goodput: &Goodput, shape: Shape) -> Result<(), TestCaseError> {
    match (goodput.best(shape), brute_force(goodput, shape)) {
        (Ok(found), Some(best)) => {
            prop_assert!(goodput.limits.allow(shape, found.local_batch, found.accumulation_steps));
            prop_assert!(
                found.goodput >= best.goodput * (1.0 - 1e-11),
                "found {found:?}, best {best:?} of {goodput:?}"
            );
        }
        (Err(ModelError::NoFeasibleBatch { .. }), None) => {}
        (found, best) => prop_assert!(false, "found {found:?}, best {best:?} of {goodput:?}"),
    }
    Ok(())
}

fn log_uniform(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (low.ln()..high.ln()).prop_map(f64::exp)
}

prop_compose! {
    fn params()(
        alpha_compute in log_uniform(1e-8, 10.0),
        beta_compute in log_uniform(1e-8, 1.0),
        alpha_internode in log_uniform(1e-8, 10.0),
        beta_internode in log_uniform(1e-8, 1.0),
        alpha_intranode in log_uniform(1e-8, 10.0),
        beta_intranode in log_uniform(1e-8, 1.0),
        gamma in prop_oneof![Just(1.0), Just(10.0), 1.0..10.0],
    ) -> StepParams {
        StepParams {
            alpha_compute, beta_compute, alpha_internode, beta_internode, alpha_intranode, beta_intranode, gamma,
        }
    }
}

prop_compose! {
    fn limits()(
        batch in (1u32..600, 1u32..600),
        local in (1u32..80, 1u32..80),
        lone_replica in prop_oneof![Just(LoneReplica::Accumulates), Just(LoneReplica::Whole)],
    ) -> BatchLimits {
        BatchLimits::new(batch.0.min(batch.1), batch.0.max(batch.1), local.0.min(local.1), local.0.max(local.1))
            .expect("ordered and at least 1")
            .with_lone_replica(lone_replica)
    }
}

prop_compose! {
    fn goodputs()(
        params in params(),
        parallelism in prop_oneof![Just(Parallelism::DataParallel), Just(Parallelism::Sharded)],
        limits in limits(),
        sqr in prop_oneof![Just(0.0), log_uniform(1e-6, 1e6)],
        var in prop_oneof![Just(1e-300), log_uniform(1e-6, 1e6)],
    ) -> Goodput {
        Goodput {
            throughput: parallelism.model(params).expect("within bounds"),
            noise: NoiseStatistics::new(sqr, var).expect("positive"),
            limits,
        }
    }
}

prop_compose! {
    fn shapes()(replicas in prop_oneof![1 => Just(1), 3 => 1u32..40], spread in 0.0..1.0) -> Shape {
        let nodes = 1 + (f64::from(replicas - 1) * spread) as u32;
        Shape::new(nodes, replicas).expect("no more nodes than replicas")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn best_equals_brute_force(goodput in goodputs(), shape in shapes()) {
        check_against_brute_force(&goodput, shape)?;
    }

    #[test]
    fn best_equals_brute_force_in_a_narrow_window(goodput in goodputs(), shape in shapes(), width in 0u32..4) {
        let limits = goodput.limits;
        let narrow = BatchLimits::new(
            limits.batch_size_baseline(),
            limits.batch_size_baseline() + width,
            limits.local_batch_min(),
            limits.local_batch_max(),
        ).expect("ordered");
        check_against_brute_force(&Goodput { limits: narrow, ..goodput }, shape)?;
    }

    /// Many micro-batches of few local batches, which the search goes through by local batch.
    #[test]
    fn best_equals_brute_force_with_few_local_batches(
        goodput in goodputs(),
        shape in shapes(),
        batch in (1u32..4_000, 0u32..4_000),
        local in (1u32..12, 0u32..6),
        free_micro_batches: bool,
    ) {
        let mut params = *goodput.throughput.params();
        if free_micro_batches {
            params.alpha_compute = 1e-8;
        }
        let goodput = Goodput {
            throughput: goodput.throughput.parallelism().model(params).expect("within bounds"),
            limits: BatchLimits::new(batch.0, batch.0 + batch.1, local.0, local.0 + local.1).expect("ordered"),
            ..goodput
        };
        check_against_brute_force(&goodput, shape)?;
    }

    #[test]
    fn no_smaller_batch_is_worth_as_much(goodput in goodputs(), shape in shapes()) {
        let Ok(found) = goodput.best(shape) else { return Ok(()) };
        let limits = &goodput.limits;
        for local_batch in limits.local_batch_min()..=limits.local_batch_max() {
            for accumulation_steps in 0..found.batch_size() / (local_batch * shape.replicas()) {
                let Ok(smaller) = goodput.evaluate(shape, local_batch, accumulation_steps) else { continue };
                prop_assert!(
                    smaller.batch_size() >= found.batch_size() || smaller.goodput < found.goodput,
                    "found {found:?}, smaller {smaller:?} of {goodput:?}"
                );
            }
        }
    }

    /// Without noise to average out, accumulation pays only where it saves synchronisation.
    #[test]
    fn accumulation_that_changes_nothing_is_not_chosen(
        params in params(), local_batch_max in 2u32..1000, replicas in 1u32..40, rounds in 2u32..5_000,
    ) {
        let goodput = |parallelism: Parallelism, shape: Shape| Goodput {
            throughput: parallelism.model(params).expect("within bounds"),
            noise: NoiseStatistics::from_noise_scale(f64::INFINITY, 1).expect("positive"),
            limits: BatchLimits::new(1, local_batch_max * shape.replicas() * rounds, 1, local_batch_max).expect("ordered"),
        };
        for parallelism in [Parallelism::DataParallel, Parallelism::Sharded] {
            let best = goodput(parallelism, Shape::single()).best(Shape::single()).expect("feasible");
            prop_assert!(best.batch_size() <= 2 * local_batch_max, "{best:?}");
        }
        let shape = Shape::new(1, replicas + 1).expect("one node");
        let best = goodput(Parallelism::Sharded, shape).best(shape).expect("feasible");
        prop_assert_eq!(best.accumulation_steps, 0);
    }

    /// The two promises that make the search exact.
    #[test]
    fn step_times_are_convex_and_accumulation_is_never_faster(
        goodput in goodputs(), shape in shapes(), samples in 2.0..500.0, pieces in 1.0..20.0, cut in 1.0..20.0,
    ) {
        let model = goodput.throughput;
        for step_s in [
            &|local| model.micro_step_s(shape, local),
            &|local| model.final_step_s(shape, local),
        ] as [&dyn Fn(f64) -> f64; 2] {
            let (low, middle, high) = (step_s(samples * 0.5), step_s(samples), step_s(samples * 1.5));
            prop_assert!(low > 0.0 && low <= middle && middle <= high);
            prop_assert!(middle <= (low + high) / 2.0 * (1.0 + 1e-12));
        }
        // Fractions of a micro-batch, too: they bound the whole numbers above.
        for pieces in [1.0, pieces] {
            let in_pieces = |pieces: f64| model.step_s(shape, samples / pieces, pieces - 1.0);
            let (fewer, more) = (in_pieces(pieces), in_pieces(pieces * cut));
            prop_assert!(fewer <= more * (1.0 + 1e-12), "{} in {} pieces, {} in {}", fewer, pieces, more, pieces * cut);
        }
    }
}

fn cifar10() -> Goodput {
    let params = [0.019_652_9, 0.000_678_717, 0.105_565, 0.000_120_558, 0.009_150_16, 0.001_388_61, 1.272_28];
    Goodput {
        throughput: Parallelism::DataParallel.model(StepParams::from_array(params)).expect("within bounds"),
        noise: NoiseStatistics::new(7.330_741_248e-5, 0.099_595_186_99).expect("positive"),
        limits: BatchLimits::new(128, 4096, 32, 1024).expect("ordered"),
    }
}

#[test]
fn published_choices_are_reached_or_beaten() {
    for (nodes, replicas, published) in [
        (1, 1, 1416.9),
        (1, 2, 2824.9),
        (1, 4, 5579.6),
        (2, 8, 9410.6),
        (4, 16, 15277.6),
        (8, 32, 21533.3),
        (16, 64, 26085.2),
    ] {
        let best = cifar10().best(Shape::new(nodes, replicas).unwrap()).unwrap();
        assert!(best.goodput >= published, "{replicas} replicas: {} below {published}", best.goodput);
    }
}

#[test]
fn a_single_replica_whose_worker_measures_in_halves_runs_a_larger_batch_whole() {
    let published = cifar10();
    let limits = published.limits.with_lone_replica(LoneReplica::Whole);
    let shape = Shape::single();
    let (whole, halves) = (Goodput { limits, ..published }.best(shape).unwrap(), published.best(shape).unwrap());
    assert!(whole.batch_size() > limits.batch_size_baseline() && whole.accumulation_steps == 0, "{whole:?}");
    assert!(whole.goodput > halves.goodput, "{whole:?} against {halves:?}");
}

#[test]
fn a_single_replica_above_the_baseline_accumulates() {
    let best = cifar10().best(Shape::single()).unwrap();
    assert!(best.batch_size() > 128);
    assert!(best.accumulation_steps >= 1);
}

#[test]
fn of_equal_batches_the_smallest_is_chosen() {
    // From the published measurements of bert, where rounding once chose 7 micro-batches of 12.
    let params = [0.170_872_823_112_680_1, 0.058_478_079_936_554_21, 1.33, 0.018_7, 0.26, 0.016_8, 1.79];
    let goodput = Goodput {
        throughput: Parallelism::DataParallel.model(StepParams::from_array(params)).unwrap(),
        noise: NoiseStatistics::from_noise_scale(f64::INFINITY, 4).unwrap(),
        limits: BatchLimits::new(4, 192, 4, 12).unwrap(),
    };
    let best = goodput.best(Shape::single()).unwrap();
    assert_eq!((best.local_batch, best.accumulation_steps), (12, 1));
    let whole = Goodput { limits: BatchLimits::new(12, 192, 4, 12).unwrap(), ..goodput };
    let best = whole.best(Shape::single()).unwrap();
    assert_eq!((best.local_batch, best.accumulation_steps), (12, 0));
}

#[test]
fn of_equal_splits_of_a_batch_the_fewest_micro_batches_are_chosen() {
    // 6,000,017 has no divisor up to 40, and the next number has 2, 3 and 6. The overhead of a micro-batch is lost in
    // the last bits of a step.
    let params = StepParams { alpha_compute: 1e-8, beta_compute: 1e6, ..*cifar10().throughput.params() };
    let goodput = Goodput {
        throughput: Parallelism::DataParallel.model(params).unwrap(),
        noise: NoiseStatistics::NOISELESS,
        limits: BatchLimits::new(6_000_017, 6_000_018, 2, 40).unwrap(),
    };
    let best = goodput.best(Shape::single()).unwrap();
    assert_eq!((best.local_batch, best.accumulation_steps), (6, 1_000_002));
}

#[test]
fn too_many_replicas_are_refused_with_the_limits_in_the_message() {
    let error = cifar10().best(Shape::new(64, 256).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no batch for 256 replicas: replicas x local batch (32..=1024) x micro-batches never falls within the batch \
         size 128..=4096"
    );
}

#[test]
fn a_batch_size_that_only_huge_factors_reach_ends_quickly() {
    let prime = 4_294_967_291;
    let goodput = Goodput { limits: BatchLimits::new(prime, prime, 2, 1000).unwrap(), ..cifar10() };
    assert!(matches!(goodput.best(Shape::single()), Err(ModelError::NoFeasibleBatch { .. })));
}

/// Nothing but divisibility tells these choices apart, so no bound ends the search.
#[test]
fn where_only_divisors_matter_the_search_still_ends() {
    let check = |batch_min: u32, batch_max: u32, local_min: u32, local_max: u32| {
        let params = StepParams { alpha_compute: 1e-8, beta_compute: 1e-6, ..*cifar10().throughput.params() };
        let goodput = Goodput {
            throughput: Parallelism::DataParallel.model(params).unwrap(),
            noise: NoiseStatistics::NOISELESS,
            limits: BatchLimits::new(batch_min, batch_max, local_min, local_max).unwrap(),
        };
        let best = goodput.best(Shape::single()).unwrap();
        // Without noise each further sample is a loss: for a local batch, the fewest micro-batches are best.
        let expected = (local_min..=local_max)
            .filter_map(|local_batch| {
                let micro_batches = batch_min.div_ceil(local_batch).max(2);
                goodput.evaluate(Shape::single(), local_batch, micro_batches - 1).ok()
            })
            .map(|choice| choice.goodput)
            .fold(0.0, f64::max);
        assert!(best.goodput >= expected * (1.0 - 1e-11), "{best:?} below {expected}");
    };
    check(400_000_003, u32::MAX, 2, 3);
    check(400_000_003, u32::MAX, 2, 200_000);
    check(4_294_967_231, 4_294_967_295, 1_000, 100_000);
    check(u32::MAX - 4, u32::MAX, 1, 65_535);
}

#[test]
fn statistics_may_be_very_small() {
    for (nodes, replicas) in [(1, 1), (1, 4), (4, 16)] {
        let shape = Shape::new(nodes, replicas).unwrap();
        for (sqr, var) in [(1.0, 0.0), (0.0, 1.0), (1.0, 3.0), (1.0, 50.0)] {
            let with = |unit: f64| {
                let noise = NoiseStatistics::new(sqr * unit, var * unit).unwrap();
                Goodput { noise, ..cifar10() }.best(shape).unwrap()
            };
            assert_eq!(with(f64::from_bits(1)), with(1.0));
        }
    }
}

#[test]
fn a_batch_size_beyond_all_numbers_is_the_largest() {
    let best = cifar10().best(Shape::single()).unwrap();
    let huge = BatchChoice { local_batch: u32::MAX, accumulation_steps: u32::MAX, ..best };
    assert_eq!(huge.batch_size(), u32::MAX);
    assert_eq!(BatchChoice { local_batch: 0, ..huge }.batch_size(), 0);
}

#[test]
fn no_noise_means_the_baseline_and_all_noise_means_the_largest_batch() {
    let shape = Shape::new(1, 4).unwrap();
    let with = |sqr, var| Goodput { noise: NoiseStatistics::new(sqr, var).unwrap(), ..cifar10() };
    let quiet = with(1.0, 0.0).best(shape).unwrap();
    assert_eq!((quiet.batch_size(), quiet.efficiency), (128, 1.0));
    let noisy = with(0.0, 1.0).best(shape).unwrap();
    assert_eq!((noisy.batch_size(), noisy.efficiency), (4096, 1.0));
}
