//! Folders that another version has written.

use std::fs;
use std::path::Path;
use std::process::Command;

use pollux_backend::{Exit, ReplicaId};

use crate::{Machine, json};

/// What the previous version left of a replica that has ended.
const PREVIOUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/replica-of-version-1");

fn copy(machine: &Machine, replica: ReplicaId, files: &[&str]) {
    fs::create_dir(machine.folder(replica)).unwrap();
    for file in files {
        fs::copy(Path::new(PREVIOUS).join(file), machine.folder(replica).join(file)).unwrap();
    }
}

#[test]
fn a_replica_that_ended_under_the_previous_version_is_adopted_with_its_log() {
    let mut machine = Machine::with_slots("ended_under_the_previous_version", 1);
    let replica = ReplicaId(41);
    copy(&machine, replica, &["order.json", "shim.pid", "worker.pid", "log", "exit.json"]);
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    assert_eq!(machine.trial.log(replica), "1\n2\n3\nslot 0\n");
    machine.trial.forget(replica);
    machine.trial.wait_until("its log is gone", |trial| trial.log(replica).is_empty());
}

#[test]
fn a_replica_that_runs_by_an_order_of_the_previous_version_keeps_its_slot() {
    let mut machine = Machine::with_slots("runs_under_the_previous_version", 1);
    let replica = ReplicaId(41);
    machine.trial.die();
    copy(&machine, replica, &["order.json"]);
    let path = machine.folder(replica).join("order.json");
    let mut record = json(&path);
    assert!(record.get("version").is_none() && record["order"].get("epoch").is_none());
    record["order"]["command"][2] = "echo slot $POLLUX_SLOT; trap 'exit 143' TERM; while :; do sleep 0.02; done".into();
    fs::write(&path, record.to_string()).unwrap();
    let mut shim = Command::new(env!("CARGO_BIN_EXE_pollux-shim"));
    let mut shim = shim.arg("shim").arg(machine.folder(replica)).current_dir(machine.folder(replica)).spawn().unwrap();
    machine.trial.wait_for_log(replica, "slot 0");
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    machine.trial.wait_for_start(replica);
    let beside = machine.trial.start("exit 0");
    assert_eq!(machine.trial.start_failure_of(beside), ("local has 0 free slots of 1".to_owned(), true));
    machine.trial.stop(replica, std::time::Duration::from_secs(600));
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(143));
    // Whoever watches over processes may have taken note of its end first.
    drop(shim.wait());
}

#[test]
fn fields_that_a_later_version_writes_are_left_alone() {
    let mut machine = Machine::with_slots("a_later_version", 1);
    let replica = ReplicaId(41);
    copy(&machine, replica, &["order.json"]);
    let path = machine.folder(replica).join("order.json");
    let mut record = json(&path);
    record["version"] = 99.into();
    record["colour"] = "blue".into();
    record["order"]["colour"] = "blue".into();
    record["log"]["colour"] = "blue".into();
    fs::write(&path, record.to_string()).unwrap();
    machine.trial.die();
    let mut shim = Command::new(env!("CARGO_BIN_EXE_pollux-shim"));
    shim.arg("shim").arg(machine.folder(replica)).current_dir(machine.folder(replica));
    assert!(shim.status().unwrap().success());
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    assert_eq!(machine.trial.log(replica), "1\n2\n3\nslot 0\n");
}
