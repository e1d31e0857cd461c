//! Who is let in.

use std::process::Output;
use std::time::Duration;

use pollux_backend::{Backend, Epoch, Observation, ReplicaOrder};
use pollux_policy::JobId;

use crate::site::Site;
use crate::watch::{order, wait_for, watched};

const HOUR: Duration = Duration::from_secs(3600);

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

fn is_connected(site: &Site, name: &str) -> bool {
    site.nodes().machines().iter().any(|machine| machine.name == name && machine.is_connected)
}

#[test]
fn a_machine_joins_with_a_token_once_and_comes_back_without() {
    let site = Site::new("joins_once");
    site.run_agent("gpu1");
    site.wait_until("it has joined", || is_connected(&site, "gpu1"));
    site.kill_agent("gpu1");
    site.wait_until("it is missed", || !is_connected(&site, "gpu1"));
    site.run_agent_again("gpu1");
    site.wait_until("it is back", || is_connected(&site, "gpu1"));
}

#[test]
fn a_token_that_is_wrong_or_expired_lets_nobody_in() {
    let site = Site::new("wrong_tokens");
    let token = site.token(Duration::from_secs(1));
    site.wait_until("it has expired", || site.nodes().caller(&std::fs::read_to_string(&token).unwrap()).is_none());
    let unknown = "error: the scheduler refuses this machine: it knows neither this machine nor its token, which may have \
                   expired: `pollux token create --node` makes another";
    let expired = site.agent("gpu1", &site.path("a"), Some(&token)).output().unwrap();
    assert_eq!(refusal(&expired), unknown);
    std::fs::write(&token, "0".repeat(64)).unwrap();
    let wrong = site.agent("gpu1", &site.path("b"), Some(&token)).output().unwrap();
    assert_eq!(refusal(&wrong), unknown);
    std::fs::write(&token, "a word").unwrap();
    let garbled = site.agent("gpu1", &site.path("c"), Some(&token)).output().unwrap();
    assert_eq!(garbled.status.code(), Some(2));
    assert!(site.nodes().machines().is_empty());
}

#[test]
fn a_name_belongs_to_the_machine_that_joined_first() {
    let site = Site::new("two_of_one_name");
    site.run_agent("gpu1");
    site.wait_until("it has joined", || is_connected(&site, "gpu1"));
    let token = site.token(HOUR);
    let second = site.agent("gpu1", &site.path("another"), Some(&token)).output().unwrap();
    assert_eq!(
        refusal(&second),
        "error: the scheduler refuses this machine: gpu1 is the name of another machine: give another by --name, or free \
         it by `pollux nodes remove gpu1`"
    );
    let same_folder = site.agent("gpu1", &site.path("gpu1"), Some(&token)).output().unwrap();
    assert!(refusal(&same_folder).ends_with("another agent uses it: give this one another by --state"));
    assert!(is_connected(&site, "gpu1"));
}

#[test]
fn an_address_belongs_to_one_machine() {
    let site = Site::new("two_of_one_address");
    site.run_agent("gpu1");
    site.wait_until("it has joined", || is_connected(&site, "gpu1"));
    let token = site.token(HOUR);
    let second = site.agent("gpu2", &site.path("gpu2"), Some(&token)).output().unwrap();
    assert_eq!(
        refusal(&second),
        "error: the scheduler refuses this machine: 127.0.0.1 is the address of gpu1: give gpu2 another by --address, or \
         free it by `pollux nodes remove gpu1`"
    );
}

#[test]
fn replicas_of_one_scheduler_are_not_shown_to_another() {
    let [site, other] = ["first_scheduler", "second_scheduler"].map(Site::new);
    site.run_agent("gpu1");
    site.wait_until("it knows that it has joined", || site.log("gpu1").contains("has joined"));
    site.kill_agent("gpu1");
    let token = other.token(HOUR);
    let moved = other.agent("gpu1", &site.path("gpu1"), Some(&token)).output().unwrap();
    assert_eq!(
        refusal(&moved),
        "error: the scheduler refuses this machine: gpu1 has joined another scheduler: remove it there first, or give it \
         an empty folder by --state once nothing runs there any more"
    );
    assert!(other.nodes().machines().is_empty());
}

#[test]
fn a_machine_that_is_cut_off_while_it_leaves_leaves_when_it_is_back_and_may_join_a_younger_scheduler() {
    let site = Site::new("cut_off_while_it_leaves");
    let (mut backend, seen) = watched(&site);
    backend.adopt(Epoch(7), &[]);
    site.run_agent("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeUp(_)));
    let stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    backend.start(&order(7, &stubborn));
    wait_for(&seen, |it| matches!(it, Observation::Started { .. }));
    assert_eq!(site.nodes().remove("gpu1", Duration::from_secs(5)).unwrap(), pollux_backend_remote::Removal::Leaving);
    site.wait_until("it is told", || site.log("gpu1").contains("this machine leaves"));
    site.kill_agent("gpu1");
    site.wait_until("it is missed", || !is_connected(&site, "gpu1"));
    let back = site.agent("gpu1", &site.path("gpu1"), None).output().unwrap();
    assert_eq!(refusal(&back), "error: gpu1 was removed from the cluster; nothing runs here any more");
    wait_for(&seen, |it| matches!(it, Observation::NodeGone { .. }));

    let younger = Site::new("younger_scheduler");
    let (mut backend, seen) = watched(&younger);
    backend.adopt(Epoch(1), &[]);
    younger.run_moved_agent("gpu1", &site.path("gpu1"));
    wait_for(&seen, |it| {
        assert!(!matches!(it, Observation::Superseded { .. }), "{it:?}");
        matches!(it, Observation::NodeUp(_))
    });
}

#[test]
fn a_machine_that_does_not_see_the_checkpoints_is_given_what_was_saved_and_what_it_saves_is_copied() {
    let site = Site::new("unshared_checkpoints");
    let (mut backend, seen) = watched(&site);
    backend.adopt(Epoch(1), &[]);
    let folder = std::path::PathBuf::from(backend.checkpoints().location(JobId(1)));
    std::fs::create_dir_all(folder.join("inside")).unwrap();
    std::fs::write(folder.join("inside/state"), "precious").unwrap();
    let large = vec![7; 3_000_000];
    std::fs::write(folder.join("large"), &large).unwrap();
    // The same path, and another disk.
    let mark = folder.parent().unwrap().join(".pollux-scheduler");
    std::fs::write(&mark, "\"another\"").unwrap();
    site.run_agent("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeUp(_)));
    let script = "cd $POLLUX_CHECKPOINT_DIR && grep -q precious inside/state && test $(wc -c < large) = 3000000 && echo new > state";
    let checkpoint_dir = folder.display().to_string();
    backend.start(&ReplicaOrder { checkpoint_dir, restores: true, ..order(1, &["sh", "-c", script]) });
    wait_for(&seen, |it| match it {
        Observation::Exited { exit, .. } => {
            assert_eq!(*exit, pollux_backend::Exit::Code(0));
            true
        }
        other => {
            assert!(!matches!(other, Observation::StartFailed { .. }), "{other:?}");
            false
        }
    });
    site.wait_until("the copy is there", || {
        std::fs::read_to_string(folder.join("state")).is_ok_and(|it| it == "new\n")
    });
    assert_eq!(std::fs::read(folder.join("large")).unwrap(), large);
    assert!(!folder.with_extension("incoming").exists());
}

#[test]
fn a_machine_that_was_removed_while_it_was_away_ends_what_it_runs_and_is_not_let_in_again() {
    let site = Site::new("removed_while_away");
    let (mut backend, seen) = watched(&site);
    backend.adopt(Epoch(1), &[]);
    site.run_agent("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeUp(_)));
    backend.start(&order(1, &["sleep", "600"]));
    wait_for(&seen, |it| matches!(it, Observation::Started { .. }));
    site.kill_agent("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeUnreachable { .. }));
    site.remove("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeGone { .. }));
    let back = site.agent("gpu1", &site.path("gpu1"), None).output().unwrap();
    assert_eq!(
        refusal(&back),
        "error: gpu1 was removed from this cluster: it may join anew with another token; nothing runs here any more"
    );
    let exit = std::fs::read_dir(site.path("gpu1")).unwrap().map(|entry| entry.unwrap().path().join("replicas"));
    assert!(
        exit.into_iter().all(|replicas| std::fs::read_dir(replicas).unwrap().next().is_none()),
        "its traces are gone"
    );
    site.run_agent("gpu1");
    wait_for(&seen, |it| matches!(it, Observation::NodeUp(_)));
    assert!(!site.log("gpu1").contains("error"), "{}", site.log("gpu1"));
}
