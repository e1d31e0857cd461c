//! What comes back from text is as valid as what a constructor made.

use std::fmt::Debug;

use pollux_model::{
    BatchLimits, GradientNorms, LoneReplica, LossCurve, NoiseEstimator, Parallelism, StepParams, ThroughputModel,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const PARAMS: StepParams = StepParams::from_array([0.02, 0.0007, 0.1, 1e-4, 0.01, 1e-3, 1.5]);

/// Reads `value` again, then with the field `name` set to something it refuses.
fn check<T>(value: &T, name: &str, refused: f64, message: &str)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let mut json = serde_json::to_value(value).expect("plain data");
    assert_eq!(&serde_json::from_value::<T>(json.clone()).expect("as written"), value);
    json[name] = refused.into();
    assert_eq!(serde_json::from_value::<T>(json).expect_err("not within bounds").to_string(), message);
}

#[test]
fn parameters_outside_of_their_bounds_are_refused() {
    check(&PARAMS, "alpha_compute", 0.0, "alpha_compute 0: expected 1e-8 to 1e9 seconds");
    for parallelism in [Parallelism::DataParallel, Parallelism::Sharded] {
        let model: ThroughputModel = parallelism.model(PARAMS).unwrap();
        assert_eq!(model.parallelism(), parallelism);
        check(&model, "gamma", 0.5, "gamma 0.5: expected 1 to 10");
        check(&model, "beta_intranode", -1.0, "beta_intranode -1: expected 1e-8 to 1e9 seconds");
    }
    let mut json = serde_json::to_value(PARAMS).unwrap();
    json["delta"] = 1.0.into();
    assert_eq!(serde_json::from_value::<StepParams>(json).unwrap(), PARAMS, "a newer version may tell more");
}

#[test]
fn a_curve_that_no_loss_follows_is_refused() {
    let curve = LossCurve::new(0.001, 0.5, 0.1).unwrap();
    check(&curve, "slope", -1.0, "slope -1: expected 0 to 1e100");
    check(&curve, "offset", 0.0, "offset 0: expected 1e-100 to 1e100");
    check(&curve, "floor", -0.1, "floor -0.1: expected 0 to 1e100");
}

#[test]
fn sums_that_no_average_can_have_are_refused() {
    let mut estimator = NoiseEstimator::new(32);
    estimator.update(&GradientNorms { steps: 3, micro_batches: 2, batch_size: 64.0, micro_sqr: 5.0, mean_sqr: 4.0 }, 1);
    check(&estimator, "weight", 1.5, "weight 1.5: expected 0 to 1");
    check(&estimator, "weight", -0.5, "weight -0.5: expected 0 to 1");
    check(&estimator, "weight_sqr", 2.0, "weight_sqr 2: expected 0 to 1");
    check(&estimator, "var_spread", -1.0, "var_spread -1: expected finite numbers from 0");
    let mut json = serde_json::to_value(estimator).unwrap();
    json["batch_size_baseline"] = 0.into();
    let error = serde_json::from_value::<NoiseEstimator>(json).unwrap_err();
    assert_eq!(error.to_string(), "batch_size_baseline 0: expected 1 or more");
}

#[test]
fn a_count_of_measurements_stops_at_the_largest_number() {
    let text = r#"{"batch_size_baseline":32,"measurements":18446744073709551615,"sqr_sum":0.5,"var_sum":0.5,
        "weight":0.5,"weight_sqr":0.1,"sqr_spread":0.0,"var_spread":0.0}"#;
    let mut estimator: NoiseEstimator = serde_json::from_str(text).unwrap();
    let norms = GradientNorms { steps: 3, micro_batches: 2, batch_size: 64.0, micro_sqr: 5.0, mean_sqr: 4.0 };
    assert!(estimator.update(&norms, 1));
    assert_eq!(estimator.measurements(), u64::MAX);
}

#[test]
fn limits_of_an_older_worker_are_as_published_and_are_written_as_it_wrote_them() {
    let older = r#"{"batch_size_baseline":8,"batch_size_max":64,"local_batch_min":1,"local_batch_max":64}"#;
    let published: BatchLimits = serde_json::from_str(older).unwrap();
    assert_eq!(published.lone_replica(), LoneReplica::Accumulates);
    assert_eq!(serde_json::to_string(&published).unwrap(), older);

    let whole = published.with_lone_replica(LoneReplica::Whole);
    let text = serde_json::to_string(&whole).unwrap();
    assert_eq!(text, older.replace("64}", r#"64,"lone_replica":"whole"}"#));
    assert_eq!(serde_json::from_str::<BatchLimits>(&text).unwrap(), whole);
    let later = text.replace("\"whole\"", "\"of a later version\"");
    assert_eq!(serde_json::from_str::<BatchLimits>(&later).unwrap(), published);
}
