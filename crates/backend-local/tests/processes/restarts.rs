//! What a new daemon makes of the folders that it finds.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pollux_backend::conformance::Trial;
use pollux_backend::{Exit, ReplicaId, ReplicaOrder};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{Machine, json, lives};

/// A folder with an order that nobody has carried out; told by the file `ran` if somebody does.
fn order_without_shim(machine: &mut Machine, replica: ReplicaId) {
    let ran = machine.state.join("ran");
    let done = machine.trial.start(&format!("echo ran >> '{}'", ran.display()));
    assert_eq!(machine.trial.exit_of(done), Exit::Code(0));
    fs::remove_file(ran).unwrap();
    fs::create_dir(machine.folder(replica)).unwrap();
    fs::copy(machine.folder(done).join("order.json"), machine.folder(replica).join("order.json")).unwrap();
}

/// A shim in its folder that takes its time.
fn late_shim(machine: &Machine, replica: ReplicaId) -> Child {
    let mut late = Command::new("sh");
    late.args(["-c", r#"read go; exec "$0" shim "$1""#, env!("CARGO_BIN_EXE_pollux-shim")]);
    late.arg(machine.folder(replica)).current_dir(machine.folder(replica)).stdin(Stdio::piped()).spawn().unwrap()
}

fn let_go(mut late: Child) {
    late.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(late.wait().unwrap().success());
}

#[test]
fn an_order_that_no_shim_has_claimed_is_lost_and_never_run() {
    let mut machine = Machine::with_slots("an_order_that_no_shim_has_claimed", 1);
    let replica = ReplicaId(77);
    order_without_shim(&mut machine, replica);
    let late = late_shim(&machine, replica);
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    assert_eq!(machine.trial.exit_of(replica), Exit::Lost);
    let_go(late);
    assert!(!machine.state.join("ran").exists());
}

#[test]
fn an_order_that_no_shim_has_claimed_may_be_given_anew_and_is_run_once() {
    let mut machine = Machine::with_slots("an_order_that_may_be_given_anew", 1);
    let replica = ReplicaId(77);
    order_without_shim(&mut machine, replica);
    let late = late_shim(&machine, replica);
    machine.trial.restart();
    let script = format!("echo ran >> '{}'", machine.state.join("ran").display());
    let order = ReplicaOrder { replica, ..machine.trial.order(&script) };
    machine.trial.backend().start(&order);
    machine.trial.adopt(&[replica]);
    let_go(late);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    assert_eq!(fs::read_to_string(machine.state.join("ran")).unwrap(), "ran\n");
}

#[test]
fn a_shim_that_the_daemon_never_knew_of_is_found() {
    let mut machine = Machine::with_slots("a_shim_that_the_daemon_never_knew_of", 1);
    let replica = ReplicaId(77);
    order_without_shim(&mut machine, replica);
    machine.trial.die();
    let_go(late_shim(&machine, replica));
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    assert_eq!(fs::read_to_string(machine.state.join("ran")).unwrap(), "ran\n");
}

#[test]
fn a_process_that_got_the_number_of_a_shim_is_not_touched() {
    let mut machine = Machine::with_slots("a_process_that_got_the_number", 1);
    let replica = ReplicaId(77);
    order_without_shim(&mut machine, replica);
    let mut claim = json(&machine.folder(ReplicaId(1)).join("shim.pid"));
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    claim["shim"]["pid"] = stranger.id().into();
    // Two processes may well start within one tick of the clock, but not with the same number.
    claim["shim"]["start_ticks"] = 1.into();
    fs::write(machine.folder(replica).join("shim.pid"), claim.to_string()).unwrap();
    machine.trial.restart();
    machine.trial.adopt(&[]);
    machine.trial.stop(replica, Duration::ZERO);
    assert_eq!(machine.trial.exit_of(replica), Exit::Lost);
    assert!(lives(stranger.id().try_into().unwrap()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Puts something in the way of a file that is read, which the system refuses even to root; the file is kept beside it.
/// At no moment is there nothing.
fn hide(file: &Path) {
    fs::create_dir(file.with_extension("aside")).unwrap();
    exchange(file);
}

fn show(file: &Path) {
    exchange(file);
    fs::remove_dir(file.with_extension("aside")).unwrap();
}

fn exchange(file: &Path) {
    renameat_with(CWD, file, CWD, file.with_extension("aside"), RenameFlags::EXCHANGE).unwrap();
}

const OBEDIENT: &str = "trap 'exit 143' TERM; echo ready; while :; do sleep 0.02; done";

#[test]
fn a_replica_whose_order_cannot_be_read_keeps_its_slots() {
    let mut machine = Machine::with_slots("an_order_that_cannot_be_read", 2);
    let replica = machine.trial.start(OBEDIENT);
    machine.trial.wait_for_log(replica, "ready");
    let order = machine.folder(replica).join("order.json");
    hide(&order);
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    machine.trial.wait_for_start(replica);
    let refused = machine.trial.start("exit 0");
    let expected = "replica 1 runs, and its order.json cannot be read: nobody knows which slots are free".to_owned();
    assert_eq!(machine.trial.start_failure_of(refused), (expected, true));
    show(&order);
    let beside = machine.trial.start("echo slot $POLLUX_SLOT");
    assert_eq!(machine.trial.exit_of(beside), Exit::Code(0));
    assert_eq!(machine.trial.log(beside), "slot 1\n");
    hide(&order);
    machine.trial.restart();
    machine.trial.adopt(&[]);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(143), "it is stopped like any other");
    let alone = machine.trial.start("exit 0");
    assert_eq!(machine.trial.exit_of(alone), Exit::Code(0));
}

/// A replica of which a new daemon cannot see at first who watches over it, and what is asked for meanwhile.
fn after_a_time_unseen(test: &str, ask: impl FnOnce(&mut Trial, ReplicaId)) -> (Machine, ReplicaId) {
    let mut machine = Machine::with_slots(test, 1);
    let replica = machine.trial.start(OBEDIENT);
    machine.trial.wait_for_log(replica, "ready");
    let claim = machine.folder(replica).join("shim.pid");
    hide(&claim);
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    ask(&mut machine.trial, replica);
    // Its slot stays taken; and what was asked for before is done by the time that this is refused.
    let refused = machine.trial.start("exit 0");
    assert_eq!(machine.trial.start_failure_of(refused), ("local has 0 free slots of 1".to_owned(), true));
    show(&claim);
    (machine, replica)
}

#[test]
fn a_replica_is_not_lost_because_nobody_can_see_who_watches_over_it() {
    let (mut machine, replica) = after_a_time_unseen("a_shim_that_cannot_be_seen", |_, _| {});
    machine.trial.wait_for_start(replica);
    machine.trial.stop(replica, Duration::from_secs(600));
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(143));
}

#[test]
fn a_stop_reaches_a_replica_once_it_is_seen_who_watches_over_it() {
    let stop = |trial: &mut Trial, replica| trial.stop(replica, Duration::from_secs(600));
    let (mut machine, replica) = after_a_time_unseen("a_stop_of_what_cannot_be_seen", stop);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(143));
}

#[test]
fn an_end_that_cannot_be_read_for_a_while_is_told_as_it_was() {
    let mut machine = Machine::with_slots("an_end_that_cannot_be_read", 1);
    let replica = machine.trial.start("exit 5");
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(5));
    let exit = machine.folder(replica).join("exit.json");
    hide(&exit);
    machine.trial.clear_observations();
    machine.trial.stop(replica, Duration::ZERO);
    let other = machine.trial.start("exit 0");
    assert_eq!(machine.trial.exit_of(other), Exit::Code(0), "it takes no slot");
    show(&exit);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(5));
}

#[test]
#[expect(clippy::zombie_processes, reason = "the backend waits for the shim, which is a child of this process")]
fn a_start_that_cannot_be_written_down_is_told_later() {
    let mut machine = Machine::with_slots("a_start_that_cannot_be_written_down", 1);
    let replica = ReplicaId(77);
    let order = machine.trial.order("while ! [ -e \"$GO\" ]; do sleep 0.02; done");
    machine.trial.backend().start(&order);
    machine.trial.wait_for_start(order.replica);
    machine.trial.die();
    fs::create_dir(machine.folder(replica)).unwrap();
    fs::copy(machine.folder(order.replica).join("order.json"), machine.folder(replica).join("order.json")).unwrap();
    let mut late = late_shim(&machine, replica);
    let in_the_way = machine.folder(replica).join(format!("worker.pid.{}", late.id()));
    fs::create_dir(&in_the_way).unwrap();
    late.stdin.take().unwrap().write_all(b"go\n").unwrap();
    machine.trial.wait_for_log(replica, "[that the worker runs cannot be written down yet: ");
    machine.trial.restart();
    machine.trial.adopt(&[replica, order.replica]);
    fs::remove_dir(in_the_way).unwrap();
    machine.trial.wait_for_start(replica);
    machine.trial.go();
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
}

#[test]
fn folders_that_make_no_sense_are_lost_and_harm_nobody() {
    let mut machine = Machine::with_slots("folders_that_make_no_sense", 1);
    machine.trial.die();
    for (replica, file, text) in [
        (71, "order.json", ""),
        (72, "order.json", "{\"order\":"),
        (73, "shim.pid", "garbage"),
        (74, "shim.pid", "{\"shim\":{\"pid\":-1,\"start_ticks\":0,\"boot\":\"\"}}"),
        (75, "exit.json", "garbage"),
    ] {
        fs::create_dir(machine.folder(ReplicaId(replica))).unwrap();
        fs::write(machine.folder(ReplicaId(replica)).join(file), text).unwrap();
    }
    fs::create_dir(machine.state.join("replicas/not-a-replica")).unwrap();
    machine.trial.restart();
    let odd: Vec<_> = (70..76).map(ReplicaId).collect();
    machine.trial.adopt(&odd);
    for replica in odd {
        assert_eq!(machine.trial.exit_of(replica), Exit::Lost);
    }
    let replica = machine.trial.start("exit 0");
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
}
