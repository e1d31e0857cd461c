//! Of two schedulers one is refused.

use std::time::Duration;

use super::{LONG_GRACE, Trial};
use crate::{Epoch, Exit, Observation};

const OBEDIENT: &str = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.02; done";

/// The scheduler that was taken over from neither starts nor stops anything, and is told so every time.
pub fn an_old_epoch_gives_no_orders(trial: &mut Trial) {
    let replica = trial.start(OBEDIENT);
    trial.wait_for_log(replica, "ready");
    let old = trial.epoch();
    trial.restart();
    let new = trial.epoch();
    trial.adopt(&[replica]);
    trial.wait_for_start(replica);

    let mut late = trial.order("echo ran");
    late.epoch = old;
    trial.backend().start(&late);
    assert_refused(trial, new);
    trial.backend().stop(old, replica, Duration::ZERO);
    assert_refused(trial, new);
    trial.backend().adopt(old, &[]);
    assert_refused(trial, new);
    // An end while nobody but the old scheduler acts would be a kill.
    trial.stop(replica, LONG_GRACE);
    assert_eq!(trial.exit_of(replica), Exit::Code(143));
    trial.backend().forget(old, replica);
    assert_refused(trial, new);
    trial.backend().keep_only(old, &[]);
    assert_refused(trial, new);
    assert!(trial.log(replica).contains("ready") && trial.log(late.replica).is_empty());
    late.epoch = new;
    trial.backend().start(&late);
    assert_eq!(trial.exit_of(late.replica), Exit::Code(0));
}

/// A backend that was made again does not take orders from whoever was refused before.
pub fn an_old_epoch_is_remembered_over_a_restart(trial: &mut Trial) {
    let old = trial.epoch();
    trial.restart();
    let new = trial.epoch();
    trial.adopt(&[]);
    let replica = trial.start("exit 0");
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    trial.restart();
    let mut late = trial.order("echo ran");
    late.epoch = old;
    trial.backend().start(&late);
    assert_refused(trial, new);
    late.epoch = new;
    trial.backend().start(&late);
    assert_eq!(trial.exit_of(late.replica), Exit::Code(0));
}

/// It is told, and then forgotten.
fn assert_refused(trial: &mut Trial, new: Epoch) {
    trial.wait_for(|heard| (heard == &Observation::Superseded { by: new }).then_some(()));
    trial.clear_observations();
}
