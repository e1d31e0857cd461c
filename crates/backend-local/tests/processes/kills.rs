//! The daemon is killed at any instruction, for real.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, thread};

use pollux_backend::{Backend, Epoch, Observation, ReplicaId, ReplicaOrder};
use pollux_backend_local::NodeLayout;
use pollux_policy::JobId;

use crate::{backend, fresh_state, json, settings};

/// How often the daemon dies.
const KILLS: u64 = 40;

/// Where the daemon that is killed keeps its state.
const STATE: &str = "POLLUX_TEST_STATE";

/// Nothing takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// Replicas that each daemon orders.
const ORDERS: u64 = 12;

fn order(state: &Path, replica: u64) -> ReplicaOrder {
    // It tells when it runs, and trains until it is stopped.
    let script = format!("echo ran >> '{}'; sleep 600", state.join(format!("ran-{replica}")).display());
    ReplicaOrder {
        epoch: Epoch(1),
        replica: ReplicaId(replica),
        job: JobId(1),
        node: "local".to_owned(),
        gpus: 1,
        cpus: None,
        memory: None,
        shares_with: None,
        bundle: Vec::new(),
        command: vec!["sh".to_owned(), "-c".to_owned(), script],
        working_dir: PathBuf::from("/"),
        checkpoint_dir: String::new(),
        restores: true,
        environment: BTreeMap::new(),
        secrets: BTreeMap::new(),
    }
}

/// Orders replicas, each after it has written down that it will, until it is killed.
#[test]
#[ignore = "it is the daemon that the other test kills"]
fn daemon() {
    let Some(state) = env::var_os(STATE).map(PathBuf::from) else { return };
    let mut backend = backend(&state, &settings(NodeLayout::Slots(1_000)), Box::new(|_| {}));
    let known = ordered(&state);
    backend.adopt(Epoch(1), &known.iter().copied().map(ReplicaId).collect::<Vec<_>>());
    let first = known.last().copied().unwrap_or(0) + 1;
    for replica in first..first + ORDERS {
        let mut journal = OpenOptions::new().append(true).create(true).open(state.join("journal")).unwrap();
        writeln!(journal, "{replica}").unwrap();
        backend.start(&order(&state, replica));
        if replica % 3 == 0 {
            backend.stop(Epoch(1), ReplicaId(replica - 1), Duration::ZERO);
        }
    }
    thread::sleep(Duration::from_secs(600));
}

fn ordered(state: &Path) -> BTreeSet<u64> {
    let journal = fs::read_to_string(state.join("journal")).unwrap_or_default();
    // The last line may have been cut.
    journal.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
}

/// It is killed, however the test ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The newest replica that somebody has begun to start.
fn newest(state: &Path) -> u64 {
    let Ok(folders) = fs::read_dir(state.join("replicas")) else { return 0 };
    let numbers = folders.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    numbers.max().unwrap_or(0)
}

#[track_caller]
fn wait_for(what: &str, mut has_come: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !has_come() {
        assert!(Instant::now() < deadline, "{what} never came");
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_daemon_killed_at_any_moment_loses_no_replica_and_runs_none_twice() {
    let state = fresh_state("a_daemon_killed_at_any_moment");
    for kill in 0..KILLS {
        let mut daemon = Command::new(env::current_exe().unwrap());
        daemon.args(["--ignored", "--exact", "kills::daemon"]).env(STATE, &state).stdout(Stdio::null());
        let before = ordered(&state).last().copied().unwrap_or(0);
        let daemon = Daemon(daemon.spawn().unwrap());
        // However busy the machine is, some die before their first order, some between any two, and some after all.
        match kill % (ORDERS + 2) {
            0 => thread::sleep(Duration::from_micros(kill * 1_500)),
            orders => wait_for("its orders", || newest(&state) + 1 >= before + orders),
        }
        thread::sleep(Duration::from_micros(kill * 61 % 1_000));
        drop(daemon);
        assert_slots_are_distinct(&state);
    }
    let ordered = ordered(&state);
    assert!(ordered.len() > 20, "{} orders were written down", ordered.len());
    wait_for("a replica that runs", || ordered.iter().any(|id| state.join(format!("ran-{id}")).exists()));

    let (observed, observations) = mpsc::channel();
    let mut backend = backend(
        &state,
        &settings(NodeLayout::Slots(1_000)),
        Box::new(move |observation| drop(observed.send(observation))),
    );
    backend.adopt(Epoch(1), &ordered.iter().copied().map(ReplicaId).collect::<Vec<_>>());
    for &replica in &ordered {
        backend.stop(Epoch(1), ReplicaId(replica), Duration::ZERO);
    }
    let mut waited_for = ordered.clone();
    while !waited_for.is_empty() {
        match observations.recv_timeout(PATIENCE) {
            Ok(Observation::Exited { replica, .. } | Observation::StartFailed { replica, .. }) => {
                waited_for.remove(&replica.0);
            }
            // Whatever else was observed is no end.
            Ok(_) => {}
            Err(_) => panic!("no end of {waited_for:?} was observed"),
        }
    }
    let runs: Vec<_> =
        ordered.iter().filter_map(|id| fs::read_to_string(state.join(format!("ran-{id}"))).ok()).collect();
    // One that was stopped at once may not have come to write it.
    assert!(runs.iter().all(|ran| ran.len() <= "ran\n".len()), "{runs:?}");
    assert_eq!(marked_processes(&state), Vec::<String>::new());
}

/// No two replicas that may run have a slot in common.
fn assert_slots_are_distinct(state: &Path) {
    let mut taken = BTreeMap::new();
    let Ok(folders) = fs::read_dir(state.join("replicas")) else { return };
    for folder in folders.map(|entry| entry.unwrap().path()) {
        let is_open = folder.join("order.json").exists() && !folder.join("exit.json").exists();
        for slot in is_open
            .then(|| json(&folder.join("order.json")))
            .iter()
            .flat_map(|record| record["slots"].as_array())
            .flatten()
        {
            let other = taken.insert(slot.as_u64().unwrap(), folder.clone());
            assert_eq!(other, None, "slot {slot} is also taken by {}", folder.display());
        }
    }
}

/// Processes whose environment names a folder of the state.
fn marked_processes(state: &Path) -> Vec<String> {
    let mark = format!("POLLUX_REPLICA_DIR={}", state.display());
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let marked = processes.filter(|process| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&mark)
    });
    marked
        .map(|process| {
            format!("{} {}", process.display(), fs::read_to_string(process.join("stat")).unwrap_or_default())
        })
        .collect()
}
