//! Starts that wait, and nodes that do not answer.

use std::time::Duration;

use super::trial::DEADLINE;
use super::{LONG_GRACE, Trial};
use crate::{Exit, Observation, ReplicaId};

/// Causes what cannot be waited for. Each call may return before it is observed.
pub trait Faults {
    /// Replicas that are ordered from now on are accepted and wait, such as for an image.
    fn hold_starts(&self, reason: &str);

    /// Replicas that wait for that, and those to come, start.
    fn release_starts(&self);

    /// A node does not answer any more. What runs there runs on.
    fn cut(&self, node: &str);

    /// A node that was cut off answers again; of one that was not, or is lost, nothing happens.
    fn mend(&self, node: &str);

    /// A node is lost, with everything that runs there.
    fn lose(&self, node: &str);
}

const OBEDIENT: &str = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.02; done";
const WAITS_FOR_GO: &str = "echo ready; while ! [ -e \"$GO\" ]; do sleep 0.02; done; exit 6";

fn wait_for_unreachable(trial: &mut Trial, node: &str) {
    trial.wait_for(|heard| (heard == &Observation::NodeUnreachable { node: node.to_owned() }).then_some(()));
}

fn wait_for_node(trial: &mut Trial, name: &str) {
    trial.wait_for(|heard| matches!(heard, Observation::NodeUp(node) if node.name == name).then_some(()));
}

/// Starts a replica and cuts its node off.
fn start_and_cut(trial: &mut Trial, script: &str) -> (ReplicaId, String) {
    let (replica, node) = (trial.start(script), trial.node());
    trial.wait_for_log(replica, "ready");
    trial.wait_for_start(replica);
    trial.clear_observations();
    trial.faults().cut(&node);
    wait_for_unreachable(trial, &node);
    (replica, node)
}

fn assert_waits(trial: &mut Trial, replica: ReplicaId) {
    let reason = trial.pending_reason_of(replica);
    assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}");
}

/// In one line; it runs when what it waits for is there.
pub fn a_replica_that_waits_says_why_and_starts_later(trial: &mut Trial) {
    trial.faults().hold_starts("its image is pulled");
    let replica = trial.start("exit 6");
    assert_waits(trial, replica);
    assert!(!trial.heard(&Observation::Started { replica }));
    trial.faults().release_starts();
    assert_eq!(trial.exit_of(replica), Exit::Code(6));
    assert!(trial.heard(&Observation::Started { replica }));
}

/// Its end is observed at once.
pub fn a_replica_that_waits_never_runs_once_it_is_stopped(trial: &mut Trial) {
    trial.faults().hold_starts("its image is pulled");
    let (stopped, kept) = (trial.start("echo ran"), trial.start("echo ran"));
    assert_waits(trial, stopped);
    trial.stop(stopped, LONG_GRACE);
    trial.exit_of(stopped);
    trial.faults().release_starts();
    assert_eq!(trial.exit_of(kept), Exit::Code(0));
    assert!(trial.log(stopped).is_empty() && trial.log(kept).contains("ran"));
}

/// Those that are known wait on, and say so again; the others never run.
pub fn replicas_that_wait_are_taken_over(trial: &mut Trial) {
    trial.faults().hold_starts("its image is pulled");
    let (known, unknown) = (trial.start("echo ran"), trial.start("echo ran"));
    assert_waits(trial, known);
    assert_waits(trial, unknown);
    trial.restart();
    trial.adopt(&[known]);
    assert_waits(trial, known);
    trial.exit_of(unknown);
    trial.faults().release_starts();
    assert_eq!(trial.exit_of(known), Exit::Code(0));
    assert!(trial.log(unknown).is_empty() && trial.log(known).contains("ran"));
}

/// They run on, hold their GPUs, and are observed again when it answers.
pub fn an_unreachable_node_keeps_its_replicas(trial: &mut Trial) {
    let (replica, node) = start_and_cut(trial, OBEDIENT);
    let mut beside = trial.order("exit 0");
    beside.gpus = trial.node_info().gpus;
    trial.backend().start(&beside);
    trial.assert_finds_no_room(beside.replica);
    trial.faults().mend(&node);
    wait_for_node(trial, &node);
    trial.wait_for_start(replica);
    trial.stop(replica, LONG_GRACE);
    // Nobody has told it to end before, and no other end was told.
    assert_eq!(trial.exit_of(replica), Exit::Code(143));
    assert!(!trial.heard(&Observation::NodeGone { node }));
}

/// Whoever stops a replica there need not ask again.
pub fn a_stop_reaches_a_node_once_it_answers(trial: &mut Trial) {
    let (replica, node) = start_and_cut(trial, OBEDIENT);
    trial.stop(replica, LONG_GRACE);
    trial.faults().mend(&node);
    assert_eq!(trial.exit_of(replica), Exit::Code(143));
}

/// As it was.
pub fn an_end_on_an_unreachable_node_is_learned(trial: &mut Trial) {
    let (replica, node) = start_and_cut(trial, WAITS_FOR_GO);
    trial.go();
    trial.faults().mend(&node);
    assert_eq!(trial.exit_of(replica), Exit::Code(6));
}

/// A new scheduler hears that a node does not answer, and of what runs there when it does.
pub fn unreachable_nodes_are_taken_over(trial: &mut Trial) {
    let (replica, node) = start_and_cut(trial, OBEDIENT);
    trial.restart();
    trial.adopt(&[replica]);
    wait_for_unreachable(trial, &node);
    trial.faults().mend(&node);
    wait_for_node(trial, &node);
    trial.wait_for_start(replica);
    trial.stop(replica, LONG_GRACE);
    assert_eq!(trial.exit_of(replica), Exit::Code(143));
}

/// Only then are GPUs free; a replica that is known from before is lost.
pub fn a_lost_node_is_gone_with_all_that_ran_there(trial: &mut Trial) {
    let pipe = trial.path("pipe");
    let script = "mkfifo \"$PIPE\"; exec 3> \"$PIPE\"; trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let mut order = trial.order(script);
    order.environment.insert("PIPE".to_owned(), pipe.to_string_lossy().into_owned());
    trial.backend().start(&order);
    trial.wait_until("the pipe is there", |_| pipe.exists());
    let is_closed = trial.wait_for_end_of(&pipe);
    trial.wait_for_log(order.replica, "ready");
    trial.faults().lose(&order.node);
    trial.wait_for(|heard| (heard == &Observation::NodeGone { node: order.node.clone() }).then_some(()));
    is_closed.recv_timeout(DEADLINE).expect("something holds the pipe open");
    trial.restart();
    trial.adopt(&[order.replica]);
    assert_eq!(trial.exit_of(order.replica), Exit::Lost);
    trial.stop(order.replica, Duration::ZERO);
}
