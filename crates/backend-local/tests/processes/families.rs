//! Nothing of a replica survives it, whatever it has started and however it ends.

use std::time::Duration;

use pollux_backend::{Exit, ReplicaId};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Machine, lives};

/// A child, a grandchild whose parent is gone, one in a session of its own, and one that also hides where it comes from;
/// the worker tells their numbers.
const FAMILY: &str = "sleep 600 & echo pid $!
    (sleep 600 & echo pid $!)
    (setsid sleep 600 & echo pid $!)
    (env -i setsid sleep 600 & echo pid $!)
    echo pid $$; echo complete;";

const WAIT: &str = "while ! [ -e \"$GO\" ]; do sleep 0.02; done; exit 4";

/// Starts a family and waits until it is complete.
fn start(machine: &mut Machine, then: &str) -> (ReplicaId, Vec<i32>) {
    let replica = machine.trial.start(&format!("{FAMILY} {then}"));
    machine.trial.wait_for_log(replica, "complete");
    let log = machine.trial.log(replica);
    let family: Vec<i32> = log.lines().filter_map(|line| line.strip_prefix("pid ")?.parse().ok()).collect();
    assert_eq!(family.len(), 5, "{log}");
    (replica, family)
}

fn assert_gone(family: &[i32]) {
    let survivors: Vec<_> = family.iter().filter(|pid| lives(**pid)).collect();
    assert!(survivors.is_empty(), "{survivors:?} of {family:?} live");
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn a_worker_that_ends_takes_its_family_along() {
    let mut machine = Machine::with_slots("a_worker_that_ends", 1);
    let (replica, family) = start(&mut machine, WAIT);
    assert!(family.iter().all(|pid| lives(*pid)));
    machine.trial.go();
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(4));
    assert_gone(&family);
}

#[test]
fn a_family_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut machine = Machine::with_slots("a_family_that_ignores_sigterm", 1);
    let replica = machine.trial.start(&format!("trap '' TERM; {FAMILY} {WAIT}"));
    machine.trial.wait_for_log(replica, "complete");
    let log = machine.trial.log(replica);
    machine.trial.stop(replica, Duration::from_millis(50));
    assert_eq!(machine.trial.exit_of(replica), Exit::Signal(9));
    assert_gone(&log.lines().filter_map(|line| line.strip_prefix("pid ")?.parse().ok()).collect::<Vec<_>>());
}

#[test]
fn what_a_shell_runs_may_use_the_grace_after_the_shell_is_gone() {
    let mut machine = Machine::with_slots("what_a_shell_runs", 1);
    let saves = "trap 'sleep 0.2; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let replica = machine.trial.start(&format!("sh -c \"{saves}\"; echo not reached"));
    machine.trial.wait_for_log(replica, "ready");
    machine.trial.stop(replica, Duration::from_secs(600));
    assert_eq!(machine.trial.exit_of(replica), Exit::Signal(15));
    assert!(machine.trial.log(replica).ends_with("saved\n"));
}

#[test]
fn a_killed_shim_takes_everything_along() {
    let mut machine = Machine::with_slots("a_killed_shim", 1);
    let (replica, mut family) = start(&mut machine, WAIT);
    // Nobody is left who knows the one that hides.
    let hidden = family.remove(3);
    send(machine.shim(replica), Signal::KILL);
    assert_eq!(machine.trial.exit_of(replica), Exit::Lost);
    assert_gone(&family);
    send(hidden, Signal::KILL);
}

#[test]
fn leftovers_of_a_shim_that_was_killed_while_the_daemon_was_dead_are_ended() {
    let mut machine = Machine::with_slots("leftovers_of_a_shim", 1);
    let (replica, mut family) = start(&mut machine, WAIT);
    let hidden = family.remove(3);
    let worker = family[3];
    machine.trial.die();
    send(machine.shim(replica), Signal::KILL);
    machine.trial.wait_until("the worker has died without a daemon", |_| !lives(worker));
    machine.trial.restart();
    machine.trial.adopt(&[replica]);
    assert_eq!(machine.trial.exit_of(replica), Exit::Lost);
    assert_gone(&family);
    send(hidden, Signal::KILL);
}

#[test]
fn a_shim_that_somebody_else_ends_lets_its_worker_end_in_its_own_way() {
    let mut machine = Machine::with_slots("a_shim_that_somebody_else_ends", 1);
    let replica = machine.trial.start("trap 'exit 143' TERM; echo ready; while :; do sleep 0.02; done");
    machine.trial.wait_for_log(replica, "ready");
    send(machine.shim(replica), Signal::TERM);
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(143));
}

#[test]
fn orphans_that_end_are_not_kept_as_the_dead() {
    let mut machine = Machine::with_slots("orphans_that_end", 1);
    let replica = machine.trial.start("(sleep 0 & echo pid $!); echo complete; sleep 600");
    machine.trial.wait_for_log(replica, "complete");
    let log = machine.trial.log(replica);
    let orphan = log.lines().find_map(|line| line.strip_prefix("pid ")).unwrap();
    let folder = format!("/proc/{orphan}");
    machine.trial.wait_until("the orphan is reaped", |_| !std::path::Path::new(&folder).exists());
}
