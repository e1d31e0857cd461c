use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::Daemon;

#[test]
fn a_job_is_submitted_watched_and_known_afterwards() {
    let daemon = Daemon::start("watched");
    let script = "printf 'rank %s of %s\\n' $RANK $WORLD_SIZE";
    let watched = daemon.pollux(&["submit", "--watch", "--name", "hello", "--rigid", "--", "sh", "-c", script]);
    assert_eq!(watched.code, Some(0), "{}", watched.stderr);
    assert!(watched.stdout.contains("| rank 0 of 1\n"), "{}", watched.stdout);
    assert!(watched.stderr.contains("note: job 1 is succeeded\n"), "{}", watched.stderr);
    assert_eq!(daemon.pollux(&["ps", "--phase", "succeeded", "-o", "id"]).stdout, "1\n");
    assert_eq!(daemon.pollux(&["logs", "--replica", "1", "hello"]).stdout, "rank 0 of 1\n");
    assert_eq!(daemon.pollux(&["describe", "hello", "-o", "json"]).json()["phase"], "succeeded");
    let events = daemon.pollux(&["events", "hello"]).stdout;
    assert!(events.contains("hello was submitted") && events.trim_end().ends_with("succeeded"), "{events}");
    let frame = daemon.pollux(&["top", "--once"]).stdout;
    assert!(frame.contains("0 of 2 GPUs held") && frame.contains("hello"), "{frame}");
}

#[test]
fn a_watched_job_that_fails_fails_the_command() {
    let daemon = Daemon::start("failing");
    let failed = daemon.pollux(&["submit", "--watch", "--retries", "0", "--rigid", "--", "sh", "-c", "exit 3"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    let last = failed.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: job 1 failed"), "{last}");
}

#[test]
fn whoever_stops_watching_leaves_the_job_running() {
    let daemon = Daemon::start("interrupted");
    let mut command = daemon.command(&["submit", "--watch", "--rigid", "--", "sh", "-c", "echo begun; sleep 120"]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("| begun")));
    kill_process(Pid::from_child(&watching), Signal::INT).unwrap();
    let output = watching.wait_with_output().unwrap();
    let talk = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(130) && talk.contains("job 1 runs on: `pollux logs -f 1`"), "{talk}");
    assert_eq!(daemon.pollux(&["ps", "-o", "id"]).stdout, "1\n");
    assert_eq!(daemon.pollux(&["cancel", "1"]).code, Some(0));
    assert_eq!(daemon.pollux(&["logs", "-f", "1"]).code, Some(0));
}

#[test]
fn a_signal_ends_the_scheduler_and_the_next_one_finds_the_job() {
    let mut daemon = Daemon::start("signal");
    assert!(daemon.said("stdout").contains("\n  cluster  2 slots without GPUs\n"), "{}", daemon.said("stdout"));
    assert_eq!(daemon.pollux(&["submit", "--name", "long", "--rigid", "-o", "id", "--", "sleep", "120"]).stdout, "1\n");
    assert!(daemon.state().join("server.json").exists());
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    assert!(!daemon.state().join("server.json").exists());
    let away = daemon.pollux(&["ps"]);
    assert!(away.code == Some(1) && away.stderr.contains("start one with `pollux up`"), "{}", away.stderr);
    daemon.start_again();
    assert_eq!(daemon.pollux(&["ps", "-o", "id"]).stdout, "1\n");
    assert_eq!(daemon.pollux(&["cancel", "long"]).code, Some(0));
    assert_eq!(daemon.pollux(&["logs", "-f", "1"]).code, Some(0), "they end when nothing of it runs any more");
}
