use std::fs;
use std::net::TcpListener;

use crate::binary::{fresh_folder, run};
use crate::daemon::{Daemon, plain};

/// One line on stderr, nothing on stdout. FOLDER stands for a fresh one.
fn check(test: &str, args: &[&str], code: i32, expected: &str) {
    let folder = fresh_folder("up", test);
    let folder = folder.to_str().unwrap();
    let args: Vec<String> = args.iter().map(|arg| arg.replace("FOLDER", folder)).collect();
    let result = run(plain("up").args(["--state", folder]).args(&args), b"");
    assert_eq!((result.code, result.stdout.as_str()), (Some(code), ""), "{args:?}: {}", result.stderr);
    assert_eq!(result.stderr, format!("error: {}\n", expected.replace("FOLDER", folder)), "{args:?}");
}

#[test]
fn addresses_that_cannot_be_listened_on() {
    let shown = "expected ADDRESS:PORT, such as 127.0.0.1:7878";
    check("address", &["--listen", "7878"], 2, &format!("--listen is \"7878\"; {shown}"));
    let insecure =
        "listening on 0.0.0.0:0 without TLS is refused: give --tls-cert and --tls-key, or listen on 127.0.0.1";
    check("insecure", &["--listen", "0.0.0.0:0"], 2, insecure);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let next = "`pollux top` shows the scheduler if it is one, another address is given by --listen";
    let expected = format!("cannot listen on {taken}: Address already in use (os error 98); {next}");
    check("taken", &["--listen", &taken], 1, &expected);
}

#[test]
fn certificates_that_are_none() {
    let next = "expected a certificate and its key in PEM files";
    let folder = fresh_folder("up", "certificates");
    let file = folder.join("cert.pem");
    fs::write(&file, "no certificate").unwrap();
    let file = file.to_str().unwrap();
    let result = run(plain("up").args(["--tls-cert", file, "--tls-key", file, "--listen", "127.0.0.1:0"]), b"");
    assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""));
    assert!(result.stderr.contains(file) && result.stderr.ends_with(&format!("; {next}\n")), "{}", result.stderr);
    let missing = "--tls-key is missing; expected ";
    let half = run(plain("up").args(["--tls-cert", file]), b"");
    assert!(half.code == Some(2) && half.stderr.contains(missing), "{}", half.stderr);
}

#[test]
fn policies_that_cannot_schedule_live() {
    let result = run(plain("up").args(["--policy", "magic"]), b"");
    assert!(result.stderr.starts_with("error: --policy: unknown policy \"magic\": expected "), "{}", result.stderr);
    let oracle = "policy optimus-oracle has to know what jobs will do, which only a simulator does: choose another";
    check("oracle", &["--policy", "optimus-oracle", "--listen", "127.0.0.1:0"], 2, oracle);
    let missing = "--policy: FOLDER/none.toml: No such file or directory (os error 2)";
    check("policy_file", &["--policy", "FOLDER/none.toml"], 2, missing);
}

#[test]
fn machines_that_cannot_be() {
    let local = ["--listen", "127.0.0.1:0"];
    let check = |test, args: &[&str], expected| check(test, &[args, &local].concat(), 2, expected);
    check("nodes", &["--nodes", "4y4"], "--nodes is \"4y4\"; expected NODESxSLOTS, such as 4x4");
    check("many", &["--nodes", "999x9"], "999 nodes of 9 slots: expected 1 or more of each, 1024 slots in all");
    check("slots", &["--slots", "1025"], "--slots is \"1025\"; expected whole numbers from 0 to 1024");
    check("both", &["--slots", "1", "--nodes", "1x1"], "--slots is given with --nodes; expected one of them");
    check("interval", &["--round-interval", "-1"], "round_interval_s -1: expected 0.1 to 31536000 seconds");
}

#[test]
fn a_state_folder_has_one_scheduler() {
    let daemon = Daemon::start("busy");
    let result = run(plain("up").args(["--listen", "127.0.0.1:0"]).env("POLLUX_STATE", daemon.state()), b"");
    let in_use = "is in use by another scheduler: stop that one, or give another folder";
    let expected = format!("error: state folder {} {in_use}\n", daemon.state().display());
    assert_eq!((result.code, result.stderr), (Some(1), expected));
    assert_eq!(daemon.pollux(&["nodes"]).code, Some(0), "it is not disturbed");
}
