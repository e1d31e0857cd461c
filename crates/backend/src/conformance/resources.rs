//! What a replica gets: its host's GPUs, CPUs, memory, secrets.

use super::{LONG_GRACE, Trial};
use crate::{Exit, NodeInfo, ReplicaId, ReplicaOrder};

const HOLD: &str = "echo ready; sleep 600";

fn hold(trial: &mut Trial, change: impl FnOnce(&mut ReplicaOrder)) -> ReplicaId {
    let mut order = trial.order(HOLD);
    change(&mut order);
    trial.backend().start(&order);
    order.replica
}

fn end(trial: &mut Trial, replica: ReplicaId) {
    trial.stop(replica, LONG_GRACE);
    trial.exit_of(replica);
}

/// A guest runs where no GPU is free, and keeps those of its host taken when that is gone.
pub fn a_guest_has_the_gpus_of_its_host(trial: &mut Trial) {
    let gpus = trial.node_info().gpus;
    let host = hold(trial, |order| order.gpus = gpus);
    trial.wait_for_log(host, "ready");
    let guest = hold(trial, |order| {
        order.gpus = gpus;
        order.shares_with = Some(host);
    });
    trial.wait_for_log(guest, "ready");
    end(trial, host);
    let beside = hold(trial, |_| {});
    trial.assert_finds_no_room(beside);
    end(trial, guest);
    let late = hold(trial, |order| order.shares_with = Some(host));
    trial.start_failure_of(late);
    let after = hold(trial, |order| order.gpus = gpus);
    trial.wait_for_log(after, "ready");
}

/// Replicas that ask for CPUs get no more than the node has, together; where nobody counts them, all of them run.
pub fn cpus_of_a_node_are_not_exceeded(trial: &mut Trial) {
    share_node(trial, |node| node.cpus, |order, cpus| order.cpus = Some(cpus), 1);
}

/// As with CPUs.
pub fn memory_of_a_node_is_not_exceeded(trial: &mut Trial) {
    share_node(trial, |node| node.memory, |order, memory| order.memory = Some(memory), 1 << 20);
}

fn share_node<T: Copy>(
    trial: &mut Trial,
    has: impl Fn(&NodeInfo) -> Option<T>,
    ask: impl Fn(&mut ReplicaOrder, T),
    little: T,
) {
    let node = trial.node_info();
    let Some(all) = has(&node) else {
        let counted_by_nobody = hold(trial, |order| ask(order, little));
        return trial.wait_for_log(counted_by_nobody, "ready");
    };
    assert!(node.gpus > 1, "a node of one GPU shows nothing: {node:?}");
    let whole = hold(trial, |order| ask(order, all));
    trial.wait_for_log(whole, "ready");
    let beside = hold(trial, |order| ask(order, little));
    trial.assert_finds_no_room(beside);
    let modest = hold(trial, |_| {});
    trial.wait_for_log(modest, "ready");
    end(trial, whole);
    let after = hold(trial, |order| ask(order, little));
    trial.wait_for_log(after, "ready");
}

/// As variables, also of a replica that is taken over; its log does not hold them.
pub fn secrets_reach_the_program(trial: &mut Trial) {
    let script = "while ! [ -e \"$GO\" ]; do sleep 0.02; done; [ \"$SECRET\" = sword\"\"fish ]";
    let mut order = trial.order(script);
    order.secrets.insert("SECRET".to_owned(), "swordfish".to_owned());
    trial.backend().start(&order);
    trial.wait_for_start(order.replica);
    trial.restart();
    trial.adopt(&[order.replica]);
    trial.go();
    assert_eq!(trial.exit_of(order.replica), Exit::Code(0));
    assert!(!trial.log(order.replica).contains("swordfish"));
}
