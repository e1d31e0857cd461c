//! What every backend must do, as tests that its crate runs against the real thing.
//!
//! ```text
//! fn trial(test: &str) -> Trial {
//!     let folder = fresh_folder(test);
//!     Trial::new(move |observer| Box::new(MyBackend::new(&folder, observer)))
//! }
//!
//! pollux_backend::conformance_tests!(trial);
//! ```
//!
//! Some checks need a fault: nodes that do not answer, starts that wait. A backend's crate offers [`Faults`]
//! (`Trial::with_faults`), or declines those checks with a reason, which the test run shows:
//!
//! ```text
//! pollux_backend::conformance_tests!(trial, without held_starts: "processes start at once", without lost_nodes: "...");
//! ```
//!
//! A function that gives `Option<Trial>` has said why where it gives none: what it needs is not on this machine.
//!
//! Workers are shell scripts. A [`Trial`] keeps one backend, hears what it observes, and can let it die and be made
//! again on the same state.

mod bundles;
mod epochs;
mod faults;
mod kept;
mod resources;
mod trial;

use std::time::Duration;

use crate::{Exit, Observation, ReplicaId};
pub use bundles::{
    a_bundle_is_taken_over_and_stopped, one_of_a_bundle_is_stopped_alone, replicas_of_a_bundle_end_one_by_one,
};
pub use epochs::{an_old_epoch_gives_no_orders, an_old_epoch_is_remembered_over_a_restart};
pub use faults::{
    Faults, a_lost_node_is_gone_with_all_that_ran_there, a_replica_that_waits_never_runs_once_it_is_stopped,
    a_replica_that_waits_says_why_and_starts_later, a_stop_reaches_a_node_once_it_answers,
    an_end_on_an_unreachable_node_is_learned, an_unreachable_node_keeps_its_replicas,
    replicas_that_wait_are_taken_over, unreachable_nodes_are_taken_over,
};
pub use kept::{
    a_log_is_read_in_pieces, a_log_is_read_on_while_it_grows, a_log_tells_what_was_dropped, checkpoints_have_a_place,
    the_last_lines_of_a_log_are_found,
};
pub use resources::{
    a_guest_has_the_gpus_of_its_host, cpus_of_a_node_are_not_exceeded, memory_of_a_node_is_not_exceeded,
    secrets_reach_the_program,
};
use trial::DEADLINE;
pub use trial::Trial;

/// Longer than any test waits.
const LONG_GRACE: Duration = Duration::from_secs(600);

/// Makes a `#[test]` of every check, given a function from the name of a test to a [`Trial`] on fresh state. Checks that are
/// declined are ignored tests with their reason.
#[macro_export]
macro_rules! conformance_tests {
    (
        $trial:path $(, without held_starts: $held:literal)? $(, without lost_nodes: $lost:literal)?
        $(, without shared_gpus: $shared:literal)?
    ) => {
        $crate::conformance_tests! { @checks [] $trial:
            nodes_are_observed,
            the_end_of_a_replica_is_observed,
            a_replica_that_ends_by_itself_leaves_nothing_running,
            a_stop_lets_a_replica_end_in_its_own_way,
            a_replica_that_does_not_listen_is_killed,
            a_later_stop_shortens_the_grace,
            stopping_what_is_gone_tells_its_end_again,
            a_replica_stopped_while_it_starts_ends,
            a_replica_sees_its_order,
            a_missing_program_is_a_permanent_failure,
            starting_twice_runs_once,
            replicas_outlive_the_server,
            an_end_while_the_server_was_away_is_learned,
            unknown_replicas_are_stopped,
            a_replica_that_never_started_is_lost,
            what_is_forgotten_is_gone,
            what_nobody_keeps_is_gone,
            a_replica_has_as_many_gpus_as_it_needs,
            cpus_of_a_node_are_not_exceeded,
            memory_of_a_node_is_not_exceeded,
            secrets_reach_the_program,
            an_old_epoch_gives_no_orders,
            an_old_epoch_is_remembered_over_a_restart,
            a_log_is_read_in_pieces,
            a_log_is_read_on_while_it_grows,
            a_log_tells_what_was_dropped,
            the_last_lines_of_a_log_are_found,
            checkpoints_have_a_place,
            replicas_of_a_bundle_end_one_by_one,
            one_of_a_bundle_is_stopped_alone,
            a_bundle_is_taken_over_and_stopped,
        }
        $crate::conformance_tests! { @checks [$($held)?] $trial:
            a_replica_that_waits_says_why_and_starts_later,
            a_replica_that_waits_never_runs_once_it_is_stopped,
            replicas_that_wait_are_taken_over,
        }
        $crate::conformance_tests! { @checks [$($shared)?] $trial:
            a_guest_has_the_gpus_of_its_host,
        }
        $crate::conformance_tests! { @checks [$($lost)?] $trial:
            an_unreachable_node_keeps_its_replicas,
            a_stop_reaches_a_node_once_it_answers,
            an_end_on_an_unreachable_node_is_learned,
            unreachable_nodes_are_taken_over,
            a_lost_node_is_gone_with_all_that_ran_there,
        }
    };
    (@checks [] $trial:path: $($check:ident),+ $(,)?) => {
        $(#[test]
        fn $check() {
            $crate::conformance::check($trial(stringify!($check)), $crate::conformance::$check);
        })+
    };
    (@checks [$declined:literal] $trial:path: $($check:ident),+ $(,)?) => {
        $(#[test]
        #[ignore = $declined]
        fn $check() {
            $crate::conformance::check($trial(stringify!($check)), $crate::conformance::$check);
        })+
    };
}

/// Runs a check, if there is what it needs.
pub fn check(trial: impl Into<Option<Trial>>, check: impl FnOnce(&mut Trial)) {
    if let Some(mut trial) = trial.into() {
        check(&mut trial);
    }
}

/// At least one, with at least one GPU and an address; the same for every scheduler that takes over.
pub fn nodes_are_observed(trial: &mut Trial) {
    let node = trial.node_info();
    assert!(!node.name.is_empty() && !node.gpu_type.is_empty() && !node.address.is_empty(), "{node:?}");
    assert!(node.cpus != Some(0) && node.memory != Some(0), "{node:?}");
    trial.restart();
    trial.adopt(&[]);
    trial.wait_for(|heard| (heard == &Observation::NodeUp(node.clone())).then_some(()));
}

/// Codes and signals come as they were, after a start was observed.
pub fn the_end_of_a_replica_is_observed(trial: &mut Trial) {
    for (script, accepted) in [
        ("exit 0", &[Exit::Code(0)][..]),
        ("exit 75", &[Exit::Code(75)]),
        // Some containers tell only the code that a shell would give.
        ("kill -KILL $$", &[Exit::Signal(9), Exit::Code(137)]),
    ] {
        let replica = trial.start(script);
        let exit = trial.exit_of(replica);
        assert!(accepted.contains(&exit), "{script}: {exit}, expected {accepted:?}");
        assert!(trial.heard(&Observation::Started { replica }), "{script}: its start was not observed");
    }
}

/// A program in the background ends with the replica: nobody has the pipe open any more that it holds.
pub fn a_replica_that_ends_by_itself_leaves_nothing_running(trial: &mut Trial) {
    let pipe = trial.path("pipe");
    let script = "mkfifo \"$PIPE\"; exec 3> \"$PIPE\"; (while :; do sleep 0.01; done) & exit 3";
    let mut order = trial.order(script);
    order.environment.insert("PIPE".to_owned(), pipe.to_string_lossy().into_owned());
    trial.backend().start(&order);
    trial.wait_until("the pipe is there", |_| pipe.exists());
    let is_closed = trial.wait_for_end_of(&pipe);
    assert_eq!(trial.exit_of(order.replica), Exit::Code(3));
    is_closed.recv_timeout(DEADLINE).expect("something holds the pipe open");
}

/// SIGTERM first: a worker saves and says that it was told to leave.
pub fn a_stop_lets_a_replica_end_in_its_own_way(trial: &mut Trial) {
    let replica = trial.start("trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.02; done");
    trial.wait_for_log(replica, "ready");
    trial.stop(replica, LONG_GRACE);
    trial.stop(replica, LONG_GRACE);
    assert_eq!(trial.exit_of(replica), Exit::Code(143));
    trial.wait_for_log(replica, "saved");
}

/// The grace has an end.
pub fn a_replica_that_does_not_listen_is_killed(trial: &mut Trial) {
    let replica = trial.start_deaf();
    trial.stop(replica, Duration::from_millis(100));
    trial.assert_killed(replica);
}

/// Impatience counts.
pub fn a_later_stop_shortens_the_grace(trial: &mut Trial) {
    let replica = trial.start_deaf();
    trial.stop(replica, LONG_GRACE);
    trial.stop(replica, Duration::ZERO);
    trial.stop(replica, LONG_GRACE);
    trial.assert_killed(replica);
}

/// Whoever missed an end asks for it by another stop.
pub fn stopping_what_is_gone_tells_its_end_again(trial: &mut Trial) {
    let replica = trial.start("exit 5");
    assert_eq!(trial.exit_of(replica), Exit::Code(5));
    for _ in 0..2 {
        trial.clear_observations();
        trial.stop(replica, LONG_GRACE);
        assert_eq!(trial.exit_of(replica), Exit::Code(5));
    }
    let never = ReplicaId(1_000_000);
    trial.stop(never, LONG_GRACE);
    assert_eq!(trial.exit_of(never), Exit::Lost);
}

/// However far it has come.
pub fn a_replica_stopped_while_it_starts_ends(trial: &mut Trial) {
    for delay_ms in [0, 0, 1, 2, 4, 8, 16] {
        let replica = trial.start("sleep 600");
        std::thread::sleep(Duration::from_millis(delay_ms));
        trial.stop(replica, LONG_GRACE);
        let exit = trial.exit_of(replica);
        assert!(!matches!(exit, Exit::Code(0)), "{exit}");
    }
}

/// Its environment, its folder, its arguments; and what it writes is kept.
pub fn a_replica_sees_its_order(trial: &mut Trial) {
    let mut order = trial.order("echo \"$GREETING from $(pwd), $1\"; echo trouble >&2");
    order.command.extend(["worker".to_owned(), "first argument".to_owned()]);
    order.working_dir = "/".into();
    order.environment.insert("GREETING".to_owned(), "hello = world".to_owned());
    let replica = order.replica;
    trial.backend().start(&order);
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    trial.wait_for_log(replica, "hello = world from /, first argument\n");
    trial.wait_for_log(replica, "trouble\n");
}

/// Another attempt would fail in the same way, and the user can see why.
pub fn a_missing_program_is_a_permanent_failure(trial: &mut Trial) {
    let mut order = trial.order("");
    order.command = vec!["pollux-no-such-program".to_owned()];
    trial.backend().start(&order);
    let (reason, retryable) = trial.start_failure_of(order.replica);
    assert!(reason.contains("pollux-no-such-program") && !reason.contains('\n'), "{reason}");
    assert!(!retryable, "{reason}");
}

/// An order that comes twice is the same order.
pub fn starting_twice_runs_once(trial: &mut Trial) {
    let order = trial.order("echo once; sleep 600");
    let replica = order.replica;
    trial.backend().start(&order);
    trial.backend().start(&order);
    trial.wait_for_log(replica, "once");
    trial.stop(replica, LONG_GRACE);
    let exit = trial.exit_of(replica);
    trial.clear_observations();
    trial.backend().start(&order);
    assert_eq!(trial.exit_of(replica), exit);
    let other = trial.start("exit 0");
    trial.exit_of(other);
    assert_eq!(trial.log(replica).matches("once").count(), 1);
}

/// A worker trains on while nobody watches, and is found again.
pub fn replicas_outlive_the_server(trial: &mut Trial) {
    let replica = trial.start("echo before; while ! [ -e \"$GO\" ]; do sleep 0.02; done; echo after; exit 6");
    trial.wait_for_log(replica, "before");
    trial.restart();
    trial.adopt(&[replica]);
    trial.wait_for_start(replica);
    trial.go();
    assert_eq!(trial.exit_of(replica), Exit::Code(6));
    trial.wait_for_log(replica, "after");
}

/// Its log went on, too.
pub fn an_end_while_the_server_was_away_is_learned(trial: &mut Trial) {
    let replica = trial.start("echo before; while ! [ -e \"$GO\" ]; do sleep 0.02; done; echo after; exit 6");
    trial.wait_for_log(replica, "before");
    trial.die();
    trial.go();
    trial.wait_for_log(replica, "after");
    trial.restart();
    trial.adopt(&[replica]);
    assert_eq!(trial.exit_of(replica), Exit::Code(6));
}

/// What nobody ordered would hold GPUs that are given to others; what is known is left alone.
pub fn unknown_replicas_are_stopped(trial: &mut Trial) {
    let script = "trap 'echo told to leave; exit 143' TERM; echo ready; while :; do sleep 0.02; done";
    let (unknown, known) = (trial.start(script), trial.start(script));
    trial.wait_for_log(unknown, "ready");
    trial.wait_for_log(known, "ready");
    trial.restart();
    trial.adopt(&[known]);
    assert_eq!(trial.exit_of(unknown), Exit::Code(143));
    trial.stop(known, LONG_GRACE);
    assert_eq!(trial.exit_of(known), Exit::Code(143));
}

/// The server died between the decision and the order.
pub fn a_replica_that_never_started_is_lost(trial: &mut Trial) {
    trial.restart();
    trial.adopt(&[ReplicaId(999)]);
    assert_eq!(trial.exit_of(ReplicaId(999)), Exit::Lost);
}

/// But not what runs.
pub fn what_is_forgotten_is_gone(trial: &mut Trial) {
    let replica = trial.start("echo ready; while ! [ -e \"$GO\" ]; do sleep 0.02; done");
    trial.wait_for_log(replica, "ready");
    trial.forget(replica);
    trial.go();
    assert_eq!(trial.exit_of(replica), Exit::Code(0));
    assert!(!trial.log(replica).is_empty());
    trial.forget(replica);
    trial.wait_until("its log is gone", |trial| trial.log(replica).is_empty());
}

/// Traces of replicas that a server forgot to delete, or forgot altogether; but not what runs.
pub fn what_nobody_keeps_is_gone(trial: &mut Trial) {
    let [kept, unkept] = [0; 2].map(|_| trial.start("echo ended"));
    for replica in [kept, unkept] {
        trial.exit_of(replica);
    }
    let running = trial.start("echo ready; sleep 600");
    trial.wait_for_log(running, "ready");
    trial.restart();
    trial.adopt(&[running]);
    trial.keep_only(&[kept]);
    trial.wait_until("its log is gone", |trial| trial.log(unkept).is_empty());
    assert!([kept, running].iter().all(|replica| !trial.log(*replica).is_empty()));
    trial.stop(running, LONG_GRACE);
    assert!(!matches!(trial.exit_of(running), Exit::Lost));
}

/// All of a node at once; whoever comes next does not run beside it.
pub fn a_replica_has_as_many_gpus_as_it_needs(trial: &mut Trial) {
    let gpus = trial.node_info().gpus;
    let mut order = trial.order("echo ready; while ! [ -e \"$GO\" ]; do sleep 0.02; done");
    order.gpus = gpus;
    trial.backend().start(&order);
    trial.wait_for_log(order.replica, "ready");
    let beside = trial.start("exit 0");
    trial.assert_finds_no_room(beside);
    trial.go();
    assert_eq!(trial.exit_of(order.replica), Exit::Code(0));
    let after = trial.start("exit 0");
    assert_eq!(trial.exit_of(after), Exit::Code(0));
}
