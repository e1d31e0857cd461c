//! The best batch and accumulation, against trying them all.

use pollux_model::{BatchChoice, BatchLimits, Goodput, ModelError, NoiseStatistics, Parallelism, Shape, StepParams};
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
    ) -> BatchLimits {
        BatchLimits::new(batch.0.min(batch.1), batch.0.max(batch.1), local.0.min(local.1), local.0.max(local.1))
            .expect("ordered and at least 1")
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
    fn shapes()(replicas in 1u32..40, spread in 0.0..1.0) -> Shape {
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

    /// The two promises that make the search exact.
    #[test]
    fn step_times_are_convex_and_accumulation_is_never_faster(
        goodput in goodputs(), shape in shapes(), samples in 2.0..500.0, cut in 1.0..20.0,
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
        let whole = model.step_s(shape, samples, 0.0);
        let in_pieces = model.step_s(shape, samples / cut, cut - 1.0);
        prop_assert!(whole <= in_pieces * (1.0 + 1e-12), "{} in one, {} in {} pieces", whole, in_pieces, cut);
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
fn a_single_replica_above_the_baseline_accumulates() {
    let best = cifar10().best(Shape::single()).unwrap();
    assert!(best.batch_size() > 128);
    assert!(best.accumulation_steps >= 1);
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

#[test]
fn no_noise_means_the_baseline_and_all_noise_means_the_largest_batch() {
    let shape = Shape::new(1, 4).unwrap();
    let with = |sqr, var| Goodput { noise: NoiseStatistics::new(sqr, var).unwrap(), ..cifar10() };
    let quiet = with(1.0, 0.0).best(shape).unwrap();
    assert_eq!((quiet.batch_size(), quiet.efficiency), (128, 1.0));
    let noisy = with(0.0, 1.0).best(shape).unwrap();
    assert_eq!((noisy.batch_size(), noisy.efficiency), (4096, 1.0));
}
