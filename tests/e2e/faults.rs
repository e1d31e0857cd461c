//! What goes wrong around a daemon: disks, clocks, versions, and workers that do not behave.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use pollux_api::Event;
use pollux_client::{Client, Connection, EventQuery, JobAction, JobQuery, NodeAction};
use pollux_job::Phase;

use crate::daemon::{Daemon, Site, eventually};
use crate::processes::workers;

const TRAINING: [&str; 9] = ["--epochs", "2", "--samples", "1024", "--pace", "good", "--checkpoint-every", "1", "-q"];

/// Says so past the capture of the tests' output.
pub(crate) fn skipped(why: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "skipped: {why}").unwrap();
}

fn shell(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).into()
}

/// What `pollux up` says where it cannot start.
fn refusal(site: &Site) -> String {
    let Output { status, .. } = site.command().output().unwrap();
    assert_eq!(status.code(), Some(1), "{}", site.talk());
    let talk = site.talk();
    assert_eq!(talk.lines().count(), 1, "one line: {talk}");
    talk
}

fn events(site: &Site, job: u64) -> Vec<Event> {
    site.client().unwrap().events(EventQuery { after: 0, job: Some(job), limit: Some(1_000) }).unwrap().events
}

fn wait_for_end(site: &Site, job: u64) -> pollux_api::JobDetail {
    eventually("the end of a job", || {
        let detail = site.client().unwrap().job(job).unwrap();
        detail.job.ended_ms.is_some().then_some(detail)
    })
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let site = Site::new(&["--slots", "1", "--grace", "1"]);
    let daemon = site.start();
    let client = site.client().unwrap();
    let job =
        client.submit(&site.job("deaf", shell("trap '' TERM; touch deaf; while :; do sleep 0.1; done"))).unwrap().id;
    eventually("its deafness", || site.folder().join("deaf").exists().then_some(()));
    client.act(job, JobAction::Cancel).unwrap();
    assert_eq!(wait_for_end(&site, job).job.phase, Phase::Cancelled);
    eventually("its death", || workers(&site.state()).is_empty().then_some(()));
    eventually("the word of it", || {
        events(&site, job).iter().any(|event| event.text.ends_with("signal 9")).then_some(())
    });
    daemon.end();
}

#[test]
fn nothing_that_a_worker_has_forked_survives_it() {
    let site = Site::new(&["--slots", "1", "--grace", "1"]);
    let daemon = site.start();
    let client = site.client().unwrap();
    let script = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; wait";
    let job = client.submit(&site.job("forks", shell(script))).unwrap().id;
    eventually("its forks", || (workers(&site.state()).len() >= 5).then_some(()));
    client.act(job, JobAction::Cancel).unwrap();
    wait_for_end(&site, job);
    eventually("their end", || workers(&site.state()).is_empty().then_some(()));
    daemon.end();
}

#[test]
fn a_job_that_crashes_again_and_again_is_backed_off_and_its_neighbour_unharmed() {
    let site = Site::new(&["--slots", "2", "--round-interval", "1"]);
    let daemon = site.start();
    let client = site.client().unwrap();
    let neighbour = client.submit(&site.training("neighbour", &TRAINING)).unwrap().id;
    let mut broken = site.job("broken", shell("echo broken >&2; exit 3"));
    broken.retries = 1;
    let broken = client.submit(&broken).unwrap().id;
    let told = eventually("the backoff", || {
        let told = client.explanation(broken).unwrap();
        (told.wait.as_deref() == Some("backoff")).then_some(told)
    });
    assert!(told.sentences[1].starts_with("It failed once; it is tried again in "), "{:?}", told.sentences);
    let ended = wait_for_end(&site, broken).job;
    assert_eq!((ended.phase, ended.retries), (Phase::Failed, 1));
    assert_eq!(ended.failure.as_deref(), Some("a replica failed on local, after 1 retry: exit code 3"));
    let neighbour = wait_for_end(&site, neighbour).job;
    assert_eq!((neighbour.phase, neighbour.retries), (Phase::Succeeded, 0));
    assert_eq!(site.epochs("neighbour"), [(1, 1024), (2, 1024)]);
    daemon.end();
}

#[test]
fn a_state_folder_of_a_newer_version_is_refused_and_left_alone() {
    let site = Site::new(&["--slots", "1"]);
    site.start().end();
    let file = site.state().join("pollux.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    database.pragma_update(None, "journal_mode", "DELETE").unwrap();
    drop(database);
    fs::remove_file(site.folder().join("daemon.log")).unwrap();
    let before = fs::read(&file).unwrap();
    let talk = refusal(&site);
    assert!(talk.contains("schema version 99: expected versions up to "), "{talk}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn a_damaged_last_record_of_the_journal_loses_no_job() {
    let site = Site::new(&["--slots", "1", "--round-interval", "1"]);
    let daemon = site.start();
    let client = site.client().unwrap();
    let first = client.submit(&site.training("first", &TRAINING)).unwrap().id;
    let second = client.submit(&site.training("second", &TRAINING)).unwrap().id;
    daemon.kill();
    let database = rusqlite::Connection::open(site.state().join("pollux.db")).unwrap();
    let last = "UPDATE journal SET record = substr(record, 1, 25) WHERE sequence = (SELECT max(sequence) FROM journal)";
    assert_eq!(database.execute(last, []).unwrap(), 1);
    drop(database);
    let daemon = site.start();
    for job in [first, second] {
        assert_eq!(wait_for_end(&site, job).job.phase, Phase::Succeeded);
    }
    assert_eq!(site.epochs("second"), [(1, 1024), (2, 1024)]);
    daemon.end();
}

#[test]
fn a_state_folder_that_cannot_be_written_is_refused_in_one_line() {
    let site = Site::new(&["--slots", "1"]);
    fs::create_dir(site.state()).unwrap();
    fs::set_permissions(site.state(), fs::Permissions::from_mode(0o500)).unwrap();
    let talk = if rustix::process::geteuid().is_root() {
        // Nothing is forbidden to root but what cannot be written at all.
        let read_only = format!("mount -t tmpfs -o ro none {} && exec \"$@\"", site.state().display());
        let Some(talk) = in_namespace(&site, &read_only) else { return };
        talk
    } else {
        refusal(&site)
    };
    assert!(talk.starts_with("error: ") && talk.contains("state"), "{talk}");
}

/// What `pollux up` says in a mount namespace of its own, after a script. Skipped where there can be none.
fn in_namespace(site: &Site, script: &str) -> Option<String> {
    let possible = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !possible {
        skipped("no mount namespaces here");
        return None;
    }
    let up = site.command();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(up.get_program()).args(up.get_args());
    let Output { stderr, .. } = command.output().unwrap();
    let talk = String::from_utf8(stderr).unwrap();
    assert_eq!(talk.lines().count(), 1, "one line: {talk}");
    Some(talk)
}

#[test]
fn on_a_full_disk_submissions_are_refused_and_what_runs_goes_on() {
    let possible = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !possible {
        skipped("no mount namespaces here");
        return;
    }
    let site = Site::new(&["--slots", "1", "--round-interval", "1"]);
    fs::create_dir(site.state()).unwrap();
    let up = site.command();
    let small = format!("mount -t tmpfs -o size=4m none {0} && exec \"$@\"", site.state().display());
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &small, "sh"]);
    command.arg(up.get_program()).args(up.get_args());
    let daemon = Daemon { child: command.spawn().unwrap() };
    // Only those in the namespace see the folder at its own place.
    let seen = format!("/proc/{}/root{}", daemon.child.id(), site.state().display());
    let client = eventually("a server", || {
        let client = Client::new(&Connection::find(None, None, Path::new(&seen)).ok()?).ok()?;
        client.cluster().is_ok().then_some(client)
    });
    let first = client.submit(&site.training("first", &TRAINING)).unwrap().id;
    let mut large = site.job("large", shell("true"));
    large.env.insert("LARGE".to_owned(), "x".repeat(100_000));
    let refused = eventually("a full disk", || client.submit(&large).err());
    assert!(refused.to_string().contains("the disk of the state folder is full"), "{refused}");
    assert!(client.jobs_up_to(1_000, JobQuery::default()).is_ok(), "reads still work");
    eventually("the epochs of the first", || (site.epochs("first").len() == 2).then_some(()));
    assert!(client.job(first).is_ok());
    drop(daemon);
}

#[test]
fn a_clock_that_is_set_back_an_hour_changes_nothing() {
    let Ok(told) = Command::new("faketime").args(["-f", "+3600s", "env"]).output() else {
        return skipped("faketime is not installed; `make setup` installs it for root");
    };
    let site = Site::new(&["--slots", "1", "--round-interval", "1"]);
    let mut later = site.command();
    // The wrapper stays between us and the daemon, and would be killed in its place: only what it sets is used.
    for (name, value) in String::from_utf8(told.stdout).unwrap().lines().filter_map(|line| line.split_once('=')) {
        if ["LD_PRELOAD", "FAKETIME"].contains(&name) {
            later.env(name, value);
        }
    }
    let daemon = site.start_by(later);
    let client = site.client().unwrap();
    let ended = client.submit(&site.training("ended", &TRAINING)).unwrap();
    wait_for_end(&site, ended.id);
    // Nothing may run when the daemon is killed: processes under faketime share a lock, which the killed one may hold.
    client.act_on_node("local", NodeAction::Drain).unwrap();
    let first = client.submit(&site.training("first", &TRAINING)).unwrap();
    let pid = daemon.child.id();
    daemon.kill();
    for left_behind in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        fs::remove_file(Path::new("/dev/shm").join(left_behind)).unwrap();
    }
    let daemon = site.start();
    client.act_on_node("local", NodeAction::Undrain).unwrap();
    let second = client.submit(&site.training("second", &TRAINING)).unwrap();
    assert!(second.submitted_ms >= first.submitted_ms, "time does not go back");
    let machine = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    assert!(u128::from(first.submitted_ms) > machine + 1_800_000, "the first daemon was ahead of the machine");
    for job in [ended.id, first.id, second.id] {
        let ended = wait_for_end(&site, job).job;
        assert_eq!(ended.phase, Phase::Succeeded);
        let moments = [Some(ended.submitted_ms), ended.started_ms, ended.ended_ms];
        assert!(moments.is_sorted(), "{moments:?}");
    }
    daemon.end();
}
