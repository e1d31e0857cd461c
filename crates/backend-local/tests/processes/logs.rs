//! What a worker writes is kept, within limits.

use std::fs;

use pollux_backend::{Exit, LogStart, ReplicaId};
use pollux_backend_local::{LocalSettings, LogLimits, NodeLayout};

use crate::{Machine, settings};

/// Of all files of a log.
fn log_sizes(machine: &Machine, replica: ReplicaId) -> Vec<u64> {
    let entries = fs::read_dir(machine.folder(replica)).unwrap().map(Result::unwrap);
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("log-"));
    logs.map(|log| log.metadata().unwrap().len()).collect()
}

#[test]
fn logs_are_rotated_between_lines_and_the_oldest_is_dropped() {
    let log = LogLimits { bytes_max: 100_000, old_files: 2 };
    let mut machine = Machine::new("logs_are_rotated", LocalSettings { log, ..settings(NodeLayout::Slots(1)) });
    let replica = machine.trial.start("seq 100000 199999");
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    let sizes = log_sizes(&machine, replica);
    assert!(sizes.len() == 3 && sizes.iter().all(|size| (1..=100_000).contains(size)), "{sizes:?}");
    let kept: Vec<u32> = machine.trial.log(replica).lines().map(|line| line.parse().unwrap()).collect();
    assert!(kept.len() > 10_000, "{}", kept.len());
    assert_eq!(kept, (200_000 - u32::try_from(kept.len()).unwrap()..200_000).collect::<Vec<_>>());
}

#[test]
fn a_line_without_an_end_takes_no_memory() {
    let mut machine = Machine::with_slots("a_line_without_an_end", 1);
    let replica = machine.trial.start("head -c 300000000 /dev/zero; echo written; sleep 600");
    machine.trial.wait_until("all is written", |trial| {
        trial.read_log(replica, LogStart::At(300_000_000), 1_000).bytes == b"written\n"
    });
    let status = fs::read_to_string(format!("/proc/{}/status", machine.shim(replica))).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kb < 50_000, "{peak_kb} kB");
    assert!(log_sizes(&machine, replica).iter().sum::<u64>() <= 40_000_000);
}

#[test]
fn a_line_that_pauses_is_shown() {
    let mut machine = Machine::with_slots("a_line_that_pauses", 1);
    let replica = machine.trial.start("printf 'epoch 1: 50%%'; sleep 600");
    machine.trial.wait_for_log(replica, "epoch 1: 50%");
}

#[test]
fn a_worker_whose_log_cannot_be_written_trains_on() {
    let log = LogLimits { bytes_max: 1_000, old_files: 1 };
    let mut machine =
        Machine::new("a_log_that_cannot_be_written", LocalSettings { log, ..settings(NodeLayout::Slots(1)) });
    let script = "printf '%0600d\\n' 0; while ! [ -e \"$GO\" ]; do sleep 0.02; done; seq 100000; exit 3";
    let replica = machine.trial.start(script);
    machine.trial.wait_for_log(replica, "0\n");
    // Something is in the way of the file that comes next.
    fs::create_dir(machine.folder(replica).join("log-601")).unwrap();
    machine.trial.go();
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(3));
    assert_eq!(fs::metadata(machine.folder(replica).join("log-0")).unwrap().len(), 601);
}
