//! Machines that know when they end, and leave by themselves.

use std::time::{SystemTime, UNIX_EPOCH};

use pollux_backend::{Backend, Epoch, Exit, NodeEnd, Observation, ReplicaId};

use crate::site::Site;
use crate::watch::{order, wait_for, watched};

const REPLICA: ReplicaId = ReplicaId(1);

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn is_gone(seen: &Observation) -> bool {
    matches!(seen, Observation::NodeGone { node } if node == "gpu1")
}

/// The end of a node that is up.
fn end_of(seen: &Observation) -> Option<NodeEnd> {
    if let Observation::NodeUp(node) = seen { node.end } else { None }
}

#[test]
fn a_machine_says_when_it_ends_and_one_that_is_told_to_drain_leaves_when_it_is_empty() {
    let site = Site::new("told_to_drain");
    let (mut backend, seen) = watched(&site);
    backend.adopt(Epoch(1), &[]);
    let before = now_ms();
    site.run_agent_with("gpu1", &["--ends-in", "1h", "--drain-before", "10m"]);
    wait_for(&seen, |it| {
        let is_in = |at: u64, minutes: u64| (before + minutes * 60_000..now_ms() + minutes * 60_000).contains(&at);
        end_of(it).is_some_and(|end| is_in(end.drains_at_ms, 50) && end.ends_at_ms.is_some_and(|at| is_in(at, 60)))
    });
    backend.start(&order(1, &["sleep", "600"]));
    wait_for(&seen, |it| matches!(it, Observation::Started { .. }));
    site.signal("gpu1", "USR1");
    wait_for(&seen, |it| end_of(it).is_some_and(|end| end.drains_at_ms <= now_ms() && end.ends_at_ms.is_some()));
    backend.stop(Epoch(1), REPLICA, std::time::Duration::ZERO);
    wait_for(&seen, |it| {
        assert!(!is_gone(it), "it left while something ran");
        matches!(it, Observation::Exited { .. })
    });
    wait_for(&seen, is_gone);
    assert_eq!(site.end_of("gpu1"), Some(0), "{}", site.log("gpu1"));
    assert!(site.nodes().machines().is_empty());
}

#[test]
fn a_machine_on_which_nothing_runs_leaves_and_may_join_again() {
    let site = Site::new("idle");
    let (mut backend, seen) = watched(&site);
    backend.adopt(Epoch(1), &[]);
    // Long enough for an order to come, however busy this machine is.
    site.run_agent_with("gpu1", &["--idle-timeout", "5s"]);
    wait_for(&seen, |it| matches!(it, Observation::NodeUp(node) if node.end.is_none()));
    backend.start(&order(1, &["sleep", "8"]));
    wait_for(&seen, |it| {
        assert!(!is_gone(it), "it left while something ran");
        matches!(it, Observation::Exited { exit: Exit::Code(0), .. })
    });
    wait_for(&seen, is_gone);
    assert_eq!(site.end_of("gpu1"), Some(0), "{}", site.log("gpu1"));
    site.run_agent("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeUp(_)));
}

#[test]
fn what_still_runs_at_the_end_of_a_machine_is_ended_with_it() {
    let site = Site::new("ends");
    let (mut backend, seen) = watched(&site);
    backend.adopt(Epoch(1), &[]);
    site.run_agent_with("gpu1", &["--ends-in", "20s", "--drain-before", "5s"]);
    wait_for(&seen, |it| end_of(it).is_some());
    backend.start(&order(1, &["sleep", "600"]));
    wait_for(&seen, is_gone);
    assert_eq!(site.end_of("gpu1"), Some(0), "{}", site.log("gpu1"));
}

#[test]
fn an_end_that_cannot_be_read_is_refused() {
    let site = Site::new("bad_ends");
    for (options, expected) in [
        (
            ["--ends-in", "soon"],
            "error: --ends-in is \"soon\"; expected seconds, or a duration such as 90s, 30m, 8h, 1h30m or 2d",
        ),
        (
            ["--ends-at", "14:20"],
            "error: --ends-at is \"14:20\"; expected seconds since 1970, or a moment such as 2027-01-31T18:00:00Z or \
             2027-01-31T18:00:00+01:00",
        ),
    ] {
        let output = site.agent("gpu1", &site.path("gpu1"), None).args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.lines().last(), Some(expected));
    }
}
