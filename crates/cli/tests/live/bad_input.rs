use std::fs;
use std::net::TcpListener;

use crate::binary::{fresh_folder, run};
use crate::recorded::failure;
use crate::server::{Server, client};

/// One line on stderr, nothing on stdout.
fn check(args: &[&str], code: i32, expected: &str) {
    let result = run(&mut client(args), b"");
    assert_eq!((result.code, result.stdout.as_str()), (Some(code), ""), "{args:?}: {}", result.stderr);
    assert_eq!(result.stderr, format!("error: {expected}\n"), "{args:?}");
}

#[test]
fn without_a_server_the_next_step_is_told() {
    let folder = fresh_folder("live", "no_server");
    let state = folder.to_str().unwrap();
    let next = "start one with `pollux up`, or give --server URL";
    check(&["ps", "--state", state], 1, &format!("no server runs with state folder {state}: {next}"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fs::write(folder.join("token"), "secret").unwrap();
    fs::write(folder.join("server.json"), format!(r#"{{"url": "http://{free}"}}"#)).unwrap();
    check(&["ps", "--state", state], 1, &format!("no server at http://{free}: start one with `pollux up`"));
    check(&["top", "--once", "--state", state], 1, &format!("no server at http://{free}: start one with `pollux up`"));
}

#[test]
fn addresses_that_would_show_the_token_are_refused() {
    let accepted = "expected https://HOST:PORT, and http://HOST:PORT or unix:FILE of this machine";
    let unsafe_address = "server \"http://10.0.0.1:7878\": the network would see the token";
    check(&["ps", "--server", "http://10.0.0.1:7878"], 2, &format!("{unsafe_address}; {accepted}"));
    check(&["ps", "--server", "7878"], 2, &format!("server \"7878\": neither http nor https; {accepted}"));
}

#[test]
fn a_token_that_opens_nothing_is_told() {
    let server = Server::new("wrong_token", |_| (401, failure("unauthorised", "no")));
    let result = server.pollux(&["nodes"]);
    let expected =
        format!("error: the server at {} does not know this token: give a valid one in POLLUX_TOKEN\n", server.url());
    assert_eq!((result.code, result.stderr), (Some(1), expected));
}

#[test]
fn answers_of_something_else_are_told_as_such() {
    for (test, status, body) in
        [("garbage", 200, "<html>"), ("garbage_failure", 500, "oops"), ("garbage_moved", 301, "")]
    {
        let server = Server::new(test, move |_| (status, body.to_owned()));
        let result = server.pollux(&["nodes"]);
        assert_eq!((result.code, result.stdout.as_str()), (Some(1), ""));
        assert!(result.stderr.contains(" answers with what no Pollux server would say ("), "{}", result.stderr);
        assert_eq!(result.stderr.lines().count(), 1);
    }
}

#[test]
fn what_the_server_says_reaches_the_user_in_one_harmless_line() {
    let server = Server::new("refusal", |_| (422, failure("invalid", "replicas_min 9\nis above \u{1b}[2J8")));
    let result = server.pollux(&["submit", "--", "train"]);
    assert_eq!(result.code, Some(2));
    assert_eq!(result.stderr, "error: replicas_min 9\\nis above \\u{1b}[2J8\n");
}

#[test]
fn options_that_make_no_sense() {
    let whole = "expected whole numbers from 1 to 4294967295";
    check(&["submit"], 2, "no command; expected `pollux submit -- PROGRAM ARGUMENT...`, or -f FILE with a command");
    check(&["submit", "--replicas", "0", "--", "a"], 2, &format!("--replicas is \"0\"; {whole}"));
    check(&["submit", "--replicas", "-1", "--", "a"], 2, &format!("--replicas is \"-1\"; {whole}"));
    check(&["submit", "--env", "A", "--", "a"], 2, "--env is \"A\"; expected NAME=VALUE");
    let both = "--rigid is given with --non-preemptible; expected one of them";
    check(&["submit", "--rigid", "--non-preemptible", "--", "a"], 2, both);
    let both = "--epochs is given with --baseline-steps; expected one of them";
    check(&["submit", "--epochs", "1", "--baseline-steps", "2", "--", "a"], 2, both);
    let pods = "expected it with kubectl pollux submit alone: here replicas are processes, not pods";
    check(&["submit", "--pods-per", "node", "--", "a"], 2, &format!("--pods-per is \"node\"; {pods}"));
    let phases = "expected queued, starting, running, resizing, paused, succeeded, failed, cancelled";
    check(&["ps", "--phase", "done"], 2, &format!("--phase is \"done\"; {phases}"));
    check(&["ps", "--limit", "0"], 2, "--limit is \"0\"; expected whole numbers from 1 to 1000000");
    let alike = "a new job that trains like nothing; expected --like JOB or --application NAME with it";
    check(&["what-if", "--epochs", "3"], 2, alike);
    let shape =
        "expected nodes by GPUs of each, and their type after a colon, such as 2x4 or 2x8:a100, up to 1024x1024";
    check(&["what-if", "--add-nodes", "2x0"], 2, &format!("--add-nodes is \"2x0\"; {shape}"));
    let named = "expected a type of GPU after the colon, such as 2x8:a100";
    check(&["what-if", "--add-nodes", "2x8:"], 2, &format!("--add-nodes is \"2x8:\"; {named}"));
    let both = "--like is given with --application; expected one of them";
    check(&["what-if", "--like", "1", "--application", "ncf"], 2, both);
    check(&["logs", "--tail", "x", "1"], 2, "--tail is \"x\"; expected whole numbers from 0");
    let dashes = "train.py is unknown to pollux submit; expected -- before the command: pollux submit -- train.py ...";
    check(&["submit", "train.py"], 2, dashes);
    let size = "--memory is \"-1G\"; expected bytes, or a size such as 512M, 16G or 16GiB";
    check(&["submit", "--memory", "-1G", "--", "true"], 2, size);
    let set =
        "--export is \"PATH,NOSUCHVAR\"; NOSUCHVAR is not set here; expected all, none, or variables that are set";
    check(&["submit", "--export", "PATH,NOSUCHVAR", "--", "true"], 2, set);
}

#[test]
fn files_that_describe_no_job() {
    let folder = fresh_folder("live", "job_files");
    let check_file = |name: &str, text: &str, expected: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let result = run(&mut client(&["submit", "-f", path]), b"");
        assert_eq!((result.code, result.stdout.as_str()), (Some(2), ""), "{name}");
        assert!(result.stderr.starts_with(&format!("error: {path}{expected}")), "{}", result.stderr);
        assert_eq!(result.stderr.lines().count(), 1, "{}", result.stderr);
    };
    check_file("a.yaml", "command: [a]\ngpuz: 4\n", ", line 2: unknown field `gpuz`, expected one of ");
    check_file("b.toml", "command = ['a']\nreplicas_min = -1\n", ", line 2: `-1`, expected a whole number from 0");
    check_file("c.json", "{\"command\": [\"a\"],\n", ", line 2: EOF while parsing ");
    check_file("d.yaml", "- a\n- b\n", ", line 1: a list, ");
    check_file("e.ini", "", ": no known ending; expected .yaml, ");
    check_file("f.yaml", "env: [A]\ncommand: [a]\n", ", line 1: env: a list, ");
    let missing = folder.join("missing.yaml");
    let missing = missing.to_str().unwrap();
    let result = run(&mut client(&["submit", "-f", missing]), b"");
    assert!(result.stderr.starts_with(&format!("error: {missing}: No such file")), "{}", result.stderr);
}

#[test]
fn a_live_view_needs_a_terminal() {
    let server = Server::new("top_pipe", |_| (200, String::new()));
    let result = server.pollux(&["top"]);
    let expected = "error: stdout is no terminal; expected `pollux top --once`\n";
    assert_eq!((result.code, result.stderr.as_str()), (Some(2), expected));
}
