//! A slot has one replica, or a host and its guests.

use pollux_backend::ReplicaId;
use pollux_backend_local::NodeLayout;

use crate::{Machine, settings};

const HOLD: &str = "echo slot $POLLUX_SLOT.; sleep 600";

/// The slots that a replica says it has.
fn slot(machine: &mut Machine, replica: ReplicaId) -> String {
    machine.trial.wait_for_log(replica, ".");
    machine.trial.log(replica)
}

fn start_guest(machine: &mut Machine, host: ReplicaId) -> ReplicaId {
    let mut order = machine.trial.order(HOLD);
    order.shares_with = Some(host);
    machine.trial.backend().start(&order);
    order.replica
}

fn end(machine: &mut Machine, replica: ReplicaId) {
    machine.trial.stop(replica, std::time::Duration::ZERO);
    machine.trial.exit_of(replica);
}

fn assert_refused(machine: &mut Machine) {
    let refused = machine.trial.start(HOLD);
    let failure = machine.trial.start_failure_of(refused);
    assert_eq!(failure, ("local has 0 free slots of 1".to_owned(), true));
}

#[test]
fn a_slot_is_free_again_only_when_its_replica_is_gone() {
    let mut machine = Machine::with_slots("a_slot_is_free_again", 2);
    let (first, second) = (machine.trial.start(HOLD), machine.trial.start(HOLD));
    assert_eq!(slot(&mut machine, first), "slot 0.\n");
    assert_eq!(slot(&mut machine, second), "slot 1.\n");
    assert_refused(&mut machine);
    end(&mut machine, first);
    let third = machine.trial.start(HOLD);
    assert_eq!(slot(&mut machine, third), "slot 0.\n");
}

#[test]
fn a_guest_uses_the_slot_of_its_host_and_keeps_it_taken() {
    let mut machine = Machine::with_slots("a_guest", 1);
    let host = machine.trial.start(HOLD);
    let guest = start_guest(&mut machine, host);
    assert_eq!(slot(&mut machine, guest), "slot 0.\n");
    end(&mut machine, host);
    assert_refused(&mut machine);
    end(&mut machine, guest);
    let late = start_guest(&mut machine, host);
    assert_eq!(
        machine.trial.start_failure_of(late),
        ("replica 1, whose slot it was to share, is gone".to_owned(), true)
    );
    let next = machine.trial.start(HOLD);
    assert_eq!(slot(&mut machine, next), "slot 0.\n");
}

#[test]
fn slots_stay_taken_after_a_restart_even_before_replicas_are_adopted() {
    let mut machine = Machine::with_slots("slots_stay_taken", 2);
    let host = machine.trial.start(HOLD);
    let guest = start_guest(&mut machine, host);
    slot(&mut machine, guest);
    machine.trial.restart();
    let other = machine.trial.start(HOLD);
    assert_eq!(slot(&mut machine, other), "slot 1.\n");
    assert_refused(&mut machine);
    machine.trial.adopt(&[host, guest, other]);
    assert_refused(&mut machine);
}

#[test]
fn pretend_nodes_have_slots_of_their_own() {
    let mut machine = Machine::new("pretend_nodes", settings(NodeLayout::Nodes { nodes: 2, slots: 2 }));
    let mut order = machine.trial.order(HOLD);
    order.node = "local-1".to_owned();
    order.gpus = 2;
    machine.trial.backend().start(&order);
    assert_eq!(slot(&mut machine, order.replica), "slot 2,3.\n");
    let mut elsewhere = machine.trial.order(HOLD);
    elsewhere.node = "local-2".to_owned();
    machine.trial.backend().start(&elsewhere);
    let failure = machine.trial.start_failure_of(elsewhere.replica);
    assert_eq!(failure, ("local-2 is not a node of this machine".to_owned(), true));
}
