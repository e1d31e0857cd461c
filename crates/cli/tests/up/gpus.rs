//! On a machine with GPUs, as far as a stand-in for its driver goes.

use rustix::process::Signal;

use crate::daemon::Daemon;

/// Submits a program that says which GPUs it sees, and returns what it said.
fn seen(daemon: &Daemon, options: &[&str]) -> String {
    let script = "echo \"sees <$CUDA_VISIBLE_DEVICES>\"";
    let submit = [&["submit", "--watch", "--rigid"], options, &["--", "sh", "-c", script]].concat();
    let watched = daemon.pollux(&submit);
    assert_eq!(watched.code, Some(0), "{}", watched.stderr);
    let line = watched.stdout.lines().find_map(|line| line.split_once("sees <"));
    line.map(|(_, rest)| rest.trim_end_matches('>').to_owned()).unwrap_or_else(|| panic!("{}", watched.stdout))
}

#[test]
fn gpus_of_two_kinds_are_two_nodes_and_a_replica_sees_gpus_of_one_kind() {
    let daemon = Daemon::start_on_gpus("two-kinds", &[]);
    let nodes = daemon.pollux(&["nodes", "-o", "json"]).json();
    let shown = |idx: usize| (nodes["nodes"][idx]["gpus"].clone(), nodes["nodes"][idx]["gpu_type"].clone());
    assert_eq!(shown(0), (2.into(), "NVIDIA A100".into()));
    assert_eq!(shown(1), (2.into(), "Tesla V100".into()));
    let pair = seen(&daemon, &["--gpus", "2"]);
    assert!(pair == "1,2" || pair == "0,3", "{pair}");
    assert_eq!(seen(&daemon, &["--gpus", "2", "--gpu-types", "Tesla V100"]), "0,3");
    let single = seen(&daemon, &[]);
    assert!(["0", "1", "2", "3"].contains(&single.as_str()), "{single}");
}

#[test]
fn slots_without_gpus_see_none_though_the_machine_has_some() {
    for (test, arguments) in [("slots", ["--slots", "8"]), ("pretend-nodes", ["--nodes", "2x4"])] {
        let daemon = Daemon::start_on_gpus(test, &arguments);
        assert_eq!(seen(&daemon, &[]), "", "{arguments:?}");
    }
}

#[test]
fn a_state_folder_that_was_used_without_gpus_is_used_with_them() {
    let mut daemon = Daemon::start("first-without-gpus");
    assert_eq!(seen(&daemon, &[]), "");
    let waiting = daemon.pollux(&["submit", "--rigid", "-o", "id", "--", "sleep", "600"]);
    assert_eq!(waiting.stdout, "2\n", "{}", waiting.stderr);
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    daemon.start_again_on_gpus();
    assert_eq!(daemon.pollux(&["cancel", "2"]).code, Some(0));
    let pair = seen(&daemon, &["--gpus", "2"]);
    assert!(pair == "1,2" || pair == "0,3", "{pair}");
}
