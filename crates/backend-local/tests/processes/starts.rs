//! What cannot be started is said in one line.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use pollux_backend::Exit;
use pollux_backend_local::{LocalBackend, LocalSettings, NodeLayout};
use pollux_policy::JobId;

use crate::{Machine, fresh_state, settings};

#[test]
fn orders_that_cannot_be_carried_out_say_why() {
    let mut machine = Machine::with_slots("orders_that_cannot_be_carried_out", 1);
    let text = machine.state.join("notes.txt");
    fs::write(&text, "no program").unwrap();
    let text = text.to_str().unwrap().to_owned();
    let link = machine.state.join("link");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let huge = "x".repeat(4_000_000);
    for (command, working_dir, expected) in [
        (vec!["/no/such/program"], "/", "program /no/such/program: not found"),
        (vec![text.as_str()], "/", "notes.txt: permission denied"),
        (vec![link.to_str().unwrap()], "/", "/link: Too many levels of symbolic links"),
        (vec!["true"], "/no/such/folder", "working directory /no/such/folder: not found"),
        (vec!["true"], "/dev/null", "working directory /dev/null: not a folder"),
        (vec![], "/", "the command is empty"),
        (vec!["nul\0byte"], "/", "nul byte"),
        (vec!["true", huge.as_str()], "/", "program true: Argument list too long"),
    ] {
        let mut order = machine.trial.order("");
        order.command = command.into_iter().map(str::to_owned).collect();
        order.working_dir = PathBuf::from(working_dir);
        machine.trial.backend().start(&order);
        let (reason, retryable) = machine.trial.start_failure_of(order.replica);
        assert!(reason.contains(expected), "{reason}; expected is {expected}");
        assert!(!retryable && !reason.contains('\n'), "{reason}");
    }
    // None of them took the slot.
    let replica = machine.trial.start("exit 0");
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
}

#[test]
fn the_program_is_looked_for_on_the_path_of_the_order() {
    let mut machine = Machine::with_slots("the_path_of_the_order", 1);
    let mut order = machine.trial.order("");
    order.command = vec!["sh".to_owned()];
    order.environment.insert("PATH".to_owned(), "/no/such/folder".to_owned());
    machine.trial.backend().start(&order);
    assert_eq!(machine.trial.start_failure_of(order.replica), ("program sh: not found".to_owned(), false));
}

#[test]
fn a_replica_whose_folder_cannot_be_written_fails_and_may_be_tried_again() {
    let mut machine = Machine::with_slots("a_folder_that_cannot_be_written", 1);
    let order = machine.trial.order("exit 0");
    fs::remove_dir_all(machine.state.join("replicas")).unwrap();
    machine.trial.backend().start(&order);
    let (reason, retryable) = machine.trial.start_failure_of(order.replica);
    assert!(retryable && reason.starts_with("its folder cannot be made: "), "{reason}");
}

#[test]
fn a_job_that_has_nowhere_to_save_is_not_started() {
    let mut machine = Machine::with_slots("nowhere_to_save", 1);
    let mut order = machine.trial.order("exit 0");
    fs::write(machine.state.join("file"), "").unwrap();
    order.checkpoint_dir = machine.state.join("file/1").to_string_lossy().into_owned();
    machine.trial.backend().start(&order);
    let (reason, retryable) = machine.trial.start_failure_of(order.replica);
    assert!(retryable && reason.contains("file/1: cannot be made: "), "{reason}");
}

#[test]
fn nothing_is_done_while_nobody_knows_which_scheduler_may_act() {
    let mut machine = Machine::with_slots("nobody_knows_who_may_act", 2);
    let running = machine.trial.start("trap 'exit 143' TERM; echo ready; while :; do sleep 0.02; done");
    machine.trial.wait_for_log(running, "ready");
    let (epoch, aside) = (machine.state.join("epoch"), machine.state.join("aside"));
    fs::rename(&epoch, &aside).unwrap();
    machine.trial.stop(running, Duration::from_secs(600));
    let order = machine.trial.order("echo ran");
    machine.trial.backend().start(&order);
    let reason = machine.trial.pending_reason_of(order.replica);
    assert!(reason.starts_with("whether another scheduler has taken over cannot be checked: "), "{reason}");
    assert!(reason.ends_with("epoch is gone: it held 1") && !machine.folder(order.replica).exists(), "{reason}");
    let job = order.job;
    let checkpoints = machine.trial.backend().checkpoints();
    let (sender, answer) = mpsc::channel();
    checkpoints.delete(order.epoch, job, Box::new(move |deleted| sender.send(deleted).unwrap()));
    assert!(answer.recv_timeout(Duration::from_secs(60)).unwrap().is_err());
    assert!(fs::exists(checkpoints.location(job)).unwrap());
    // All of it is done, in its order, once that is known again.
    fs::rename(aside, epoch).unwrap();
    assert_eq!(machine.trial.exit_of(running), Exit::Code(143));
    machine.trial.wait_for_start(order.replica);
    assert_eq!(machine.trial.exit_of(order.replica), Exit::Code(0));
}

#[test]
fn orders_are_for_nobody_else_to_read() {
    use std::os::unix::fs::MetadataExt;
    let mut machine = Machine::with_slots("orders_are_for_nobody_else", 1);
    let replica = machine.trial.start("echo secret");
    machine.trial.exit_of(replica);
    let folder = machine.folder(replica);
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    for file in fs::read_dir(&folder).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let state = fresh_state("settings_that_cannot_work");
    let refusal = |state: PathBuf, settings| match LocalBackend::new(&state, settings, Box::new(|_| {})) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let mut missing = settings(NodeLayout::Slots(1));
    missing.program = "/no/such/pollux".into();
    assert!(refusal(state.clone(), missing).starts_with("/no/such/pollux: cannot start replicas with it: "));
    let folder = refusal("/dev/null".into(), settings(NodeLayout::Slots(1)));
    assert!(folder.starts_with("/dev/null/replicas: cannot keep replicas there: "), "{folder}");
    for layout in
        [NodeLayout::Slots(0), NodeLayout::Slots(2_000), "0x4".parse().unwrap(), "99999x99999".parse().unwrap()]
    {
        assert!(refusal(state.clone(), settings(layout)).ends_with("slots in all"));
    }
    assert_eq!("4x2".parse::<NodeLayout>().unwrap(), NodeLayout::Nodes { nodes: 4, slots: 2 });
    for text in ["4", "x", "4x", "+4x4", "4x4x4", "99999999999x1"] {
        let error = text.parse::<NodeLayout>().unwrap_err().to_string();
        assert_eq!(error, format!("{text:?}: expected NODESxSLOTS, such as 4x4"));
    }
}

#[test]
fn secrets_reach_the_program_and_no_file() {
    let mut machine = Machine::with_slots("secrets_reach_the_program", 1);
    let mut order = machine.trial.order("test \"$SECRET\" = swordfish");
    order.secrets.insert("SECRET".to_owned(), "swordfish".to_owned());
    machine.trial.backend().start(&order);
    assert_eq!(machine.trial.exit_of(order.replica), Exit::Code(0));
    let written = fs::read_to_string(machine.folder(order.replica).join("order.json")).unwrap();
    assert_eq!(written.matches("swordfish").count(), 1, "only in the command that looks for it: {written}");
}

#[test]
fn a_worker_may_have_as_many_files_open_as_before_the_daemon_raised_its_limit() {
    let limit = |process: &str| {
        let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        files.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = limit(&std::os::unix::process::parent_id().to_string());
    let mut machine = Machine::with_slots("as_many_files_open", 1);
    let replica = machine.trial.start("ulimit -Sn; exit 0");
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    assert_eq!(machine.trial.log(replica).trim(), before[0]);
    assert_eq!(limit("self"), [before[1].clone(), before[1].clone()], "the daemon's own");
}

#[test]
fn jobs_save_in_an_absolute_folder_that_is_the_users_alone() {
    use std::os::unix::fs::MetadataExt;
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let state = fresh_state("jobs_save_in_an_absolute_folder");
    let relative = up.join(state.join("elsewhere").strip_prefix("/").unwrap());
    let settings = LocalSettings { checkpoint_dir: Some(relative), ..settings(NodeLayout::Slots(1)) };
    let mut machine = Machine::new("jobs_save_in_an_absolute_folder", settings);
    let replica = machine.trial.start("exit 0");
    assert_eq!(machine.trial.exit_of(replica), Exit::Code(0));
    let folder = machine.trial.backend().checkpoints().location(JobId(1));
    assert_eq!(PathBuf::from(&folder), machine.state.join("elsewhere/1"));
    for folder in [PathBuf::from(folder), machine.state.join("elsewhere")] {
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
    }
}
