//! What holds for every application, batch and placement.

use pollux_model::Batch;
use pollux_sim::{ApplicationName, ApplicationSet, Outcome, Running, TrainingState};
use proptest::prelude::*;

fn application_name() -> impl Strategy<Value = ApplicationName> {
    prop::sample::select(ApplicationName::ALL.to_vec())
}

fn placement() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..9_u32, 1..12)
        .prop_filter("a replica", |placement| placement.iter().any(|&count| count > 0))
}

proptest! {
    #[test]
    fn progress_never_falls_and_training_ends(
        name in application_name(),
        placement in placement(),
        local_batch in 1..300_u32,
        accumulation_steps in 0..4_u32,
        slowdown in 0.0..0.9_f64,
        seconds in 1.0..1e6_f64,
    ) {
        let applications = ApplicationSet::parametric();
        let application = applications.get(name);
        let batch = Batch { local_batch, accumulation_steps };
        let running = Running { placement: &placement, batch, slowdown };
        let mut state = TrainingState::default();
        let mut rounds = 0;
        loop {
            let before = state;
            let outcome = application.run(&mut state, &running, seconds);
            prop_assert!(state.progress >= before.progress && state.epoch >= before.epoch);
            match outcome {
                Outcome::Ran => prop_assert!(state.progress > before.progress && state.epoch == before.epoch),
                Outcome::EpochEnded { after_s } | Outcome::Finished { after_s } => {
                    prop_assert!((0.0..=seconds).contains(&after_s));
                    prop_assert_eq!(state.progress, application.progress_target(before.epoch));
                }
            }
            rounds += 1;
            if matches!(outcome, Outcome::Finished { .. }) {
                prop_assert_eq!(state.epoch, application.epochs());
                break;
            }
            if rounds == 300 {
                break;
            }
        }
    }

    #[test]
    fn more_samples_never_take_less_time(name in application_name(), placement in placement(), local_batch in 1..4000_u32) {
        let applications = ApplicationSet::parametric();
        let application = applications.get(name);
        let less = application.step_time(&placement, local_batch);
        let more = application.step_time(&placement, local_batch + 1);
        prop_assert!(less.step_s > 0.0 && less.sync_s >= 0.0 && less.sync_s < less.step_s);
        prop_assert!(more.with_accumulation(1) > less.with_accumulation(1));
    }
}

#[test]
fn the_end_of_an_epoch_is_rounded_to_a_second_and_the_rest_is_left() {
    let applications = ApplicationSet::parametric();
    let application = applications.get(ApplicationName::Cifar10);
    let batch = Batch::fixed(application.limits(), 128, 1).unwrap();
    let running = Running { placement: &[1], batch, slowdown: 0.5 };
    let needed_s = application.progress_target(0) / application.progress_rate(0, &running);

    let mut state = TrainingState::default();
    let outcome = application.run(&mut state, &running, 1000.0);
    assert_eq!(outcome, Outcome::EpochEnded { after_s: needed_s.round() });
    assert_eq!(state, TrainingState { epoch: 1, progress: application.progress_target(0) });
}
