//! Replicas that come and go together.

use super::{LONG_GRACE, Trial};
use crate::{Exit, Observation, ReplicaId};

const WAITS_FOR_GO: &str = "echo \"$NAME is ready\"; while ! [ -e \"$GO\" ]; do sleep 0.02; done; exit 6";
const OBEDIENT: &str = "trap 'exit 143' TERM; echo \"$NAME is ready\"; while :; do sleep 0.02; done";

/// Starts two of a bundle, who know themselves as `first` and `second`.
fn start_both(trial: &mut Trial, script: &str) -> [ReplicaId; 2] {
    let mut orders = [0; 2].map(|_| trial.order(script));
    let bundle = orders.each_ref().map(|order| order.replica);
    for (order, name) in orders.iter_mut().zip(["first", "second"]) {
        order.bundle = bundle.to_vec();
        order.environment.insert("NAME".to_owned(), name.to_owned());
        trial.backend().start(order);
    }
    bundle
}

fn has_ended(trial: &Trial, of: ReplicaId) -> bool {
    [6, 143].iter().any(|&code| trial.heard(&Observation::Exited { replica: of, exit: Exit::Code(code) }))
}

/// The end of one is observed while the other runs, after the starts of both; each has a log of its own.
pub fn replicas_of_a_bundle_end_one_by_one(trial: &mut Trial) {
    let script = format!("if [ $NAME = second ]; then printf 'all\\nis lost'; exit 3; fi; {WAITS_FOR_GO}");
    let [first, second] = start_both(trial, &script);
    assert_eq!(trial.exit_of(second), Exit::Code(3));
    trial.wait_for_log(first, "first is ready\n");
    assert!(!has_ended(trial, first));
    assert_eq!(trial.log(second), "all\nis lost");
    trial.go();
    assert_eq!(trial.exit_of(first), Exit::Code(6));
    assert_eq!((trial.log(first).as_str(), trial.log(second).as_str()), ("first is ready\n", "all\nis lost"));
    assert!([first, second].iter().all(|replica| trial.heard(&Observation::Started { replica: *replica })));
}

/// The other runs on.
pub fn one_of_a_bundle_is_stopped_alone(trial: &mut Trial) {
    let script = format!("if [ $NAME = second ]; then {OBEDIENT}; fi; {WAITS_FOR_GO}");
    let [first, second] = start_both(trial, &script);
    for (replica, text) in [(first, "first is ready"), (second, "second is ready")] {
        trial.wait_for_log(replica, text);
    }
    trial.stop(second, LONG_GRACE);
    assert_eq!(trial.exit_of(second), Exit::Code(143));
    assert!(!has_ended(trial, first));
    trial.go();
    assert_eq!(trial.exit_of(first), Exit::Code(6));
}

/// All of it is known again to another scheduler, and ends when each is told to.
pub fn a_bundle_is_taken_over_and_stopped(trial: &mut Trial) {
    let both = start_both(trial, OBEDIENT);
    for replica in both {
        trial.wait_for_log(replica, "is ready");
    }
    trial.restart();
    trial.adopt(&both);
    for replica in both {
        trial.wait_for_start(replica);
    }
    for replica in both {
        trial.stop(replica, LONG_GRACE);
    }
    for replica in both {
        assert_eq!(trial.exit_of(replica), Exit::Code(143));
        trial.forget(replica);
    }
    for replica in both {
        trial.wait_until("its log is gone", |trial| trial.log(replica).is_empty());
    }
}
