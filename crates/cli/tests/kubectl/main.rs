//! `kubectl pollux` against a real API server, with users who may do different things.

// Clippy knows unwrap in tests only by their attribute, which what they share does not have.
#![allow(clippy::unwrap_used)]

mod bed;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use bed::Bed;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// One test, for a control plane takes a while to start.
#[test]
#[ignore = "starts a control plane: make test-kube"]
fn users_of_a_cluster_see_and_change_what_their_rights_there_allow() {
    let Some(bed) = Bed::start() else { return };
    jobs_are_made_as_resources(&bed);
    a_user_sees_the_jobs_of_a_namespace_with_rights_there(&bed);
    others_see_nothing(&bed);
    the_dashboard_is_behind_the_same(&bed);
    jobs_are_changed_as_resources(&bed);
    numbers_are_for_those_who_may_get_them(&bed);
}

fn jobs_are_made_as_resources(bed: &Bed) {
    let submit =
        ["submit", "-n", "team", "--image=trainer", "--name=first", "--replicas-max=4", "--", "train", "--lr=1"];
    assert_eq!(bed.told("alice", &submit), "job first in namespace team is created\n");
    let resource = bed.cluster.get(&["get", "polluxjob", "first", "--namespace=team"]).unwrap();
    assert_eq!(
        resource["spec"]["template"]["spec"]["containers"][0]["command"],
        serde_json::json!(["train", "--lr=1"])
    );
    // With the user's own rights, and the words of the API server.
    let (code, told) = bed.refused("bob", &submit);
    assert_eq!(code, Some(2));
    assert!(told.contains("polluxjobs.pollux.dev is forbidden: User \"bob\" cannot create"), "{told}");
    let (_, told) = bed.refused("alice", &submit);
    assert!(told.contains("already exists"), "{told}");
}

fn a_user_sees_the_jobs_of_a_namespace_with_rights_there(bed: &Bed) {
    let listed = |bed: &Bed| json(&bed.told("alice", &["ps", "-n", "team", "-o", "json"]))["jobs"].clone();
    bed.wait("the operator has the job", |bed| listed(bed)[0]["name"] == "first");
    assert_eq!(listed(bed)[0]["owner"], "team");
    let explained = bed.told("alice", &["explain", "first", "-n", "team"]);
    assert!(explained.contains("first"), "{explained}");
    for arguments in
        [&["describe", "first"][..], &["logs", "first"], &["events", "first"], &["nodes"], &["top", "--once"]]
    {
        bed.told("alice", &[arguments, &["--namespace=team"]].concat());
    }
    let (_, told) = bed.refused("alice", &["what-if", "-n", "team"]);
    assert!(told.contains("no node is up"), "{told}");
    assert_eq!(json(&bed.told("admin", &["ps", "-A", "-o", "json"]))["jobs"][0]["name"], "first");
}

fn others_see_nothing(bed: &Bed) {
    assert_eq!(json(&bed.told("bob", &["ps", "-n", "other", "-a", "-o", "json"]))["jobs"], serde_json::json!([]));
    let (_, told) = bed.refused("bob", &["explain", "1", "-n", "other"]);
    assert!(told.contains("job 1 is unknown"), "{told}");
    for (user, arguments) in [
        ("bob", &["ps", "-n", "team"][..]),
        ("carol", &["ps", "-n", "team"]),
        ("alice", &["ps", "-A"]),
        ("alice", &["ps", "-n", "other"]),
    ] {
        let (code, told) = bed.refused(user, arguments);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("no token of the service account default in namespace"), "{told}");
    }
    let (code, told) = bed.refused("admin", &["ps", "--operator=pollux/missing"]);
    assert!(code == Some(2) && told.contains("no operator pollux/missing"), "{told}");
}

/// Ends a dashboard that is served.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn the_dashboard_is_behind_the_same(bed: &Bed) {
    let mut serving = bed.command("alice", &["dashboard", "-n", "team"]);
    let mut serving = Served(serving.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut link = String::new();
    BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut link).unwrap();
    let (address, token) = link.trim().strip_prefix("http://").unwrap().split_once("/#token=").unwrap();
    let ask = |path: &str, headers: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n").unwrap();
        // Scripts are compressed.
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let page = ask("/", "");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let script = page.split("src=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(ask(script, "").starts_with("HTTP/1.1 200"), "{script}");
    let authorized = format!("authorization: Bearer {token}\r\n");
    assert!(ask("/v1/jobs", &authorized).contains("\"name\":\"first\""));
    for (headers, status) in
        [("", "401"), ("authorization: Bearer guess\r\n", "401"), ("origin: http://evil.example\r\n", "403")]
    {
        let answer = ask("/v1/jobs", headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    // What would change something is for resources.
    let mut submit = Command::new(env!("CARGO_BIN_EXE_pollux"));
    submit.args(["submit", "--", "train"]).env("POLLUX_URL", format!("http://{address}")).env("POLLUX_TOKEN", token);
    let told = String::from_utf8(submit.output().unwrap().stderr).unwrap();
    assert!(told.contains("this token shows the jobs of \"team\" and changes nothing"), "{told}");
}

fn jobs_are_changed_as_resources(bed: &Bed) {
    let phase = |bed: &Bed| {
        let job = bed.cluster.get(&["get", "polluxjob", "first", "--namespace=team"]);
        job.map(|job| job["status"]["phase"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    };
    let (_, told) = bed.refused("bob", &["pause", "first", "-n", "team"]);
    assert!(told.contains("cannot patch resource"), "{told}");
    bed.told("alice", &["pause", "first", "-n", "team"]);
    bed.wait("it is suspended", |bed| phase(bed) == "Suspended");
    bed.told("alice", &["resume", "first", "-n", "team"]);
    bed.wait("it goes on", |bed| phase(bed) == "Queued");
    bed.told("alice", &["cancel", "first", "-n", "team"]);
    bed.wait("it is gone", |bed| phase(bed).is_empty());
    let (code, told) = bed.refused("alice", &["cancel", "first", "-n", "team"]);
    assert!(code == Some(2) && told.contains("not found"), "{told}");
}

/// Prometheus has a token for the API server, and a role for the path.
fn numbers_are_for_those_who_may_get_them(bed: &Bed) {
    let kubectl = |arguments: &[&str]| bed.cluster.kubectl(arguments).unwrap();
    for account in ["prometheus", "stranger"] {
        kubectl(&["create", "serviceaccount", account, "--namespace=other"]);
    }
    kubectl(&["create", "clusterrole", "scraper", "--verb=get", "--non-resource-url=/metrics"]);
    let subject = "--serviceaccount=other:prometheus";
    kubectl(&["create", "clusterrolebinding", "scraper", "--clusterrole=scraper", subject]);
    let ask = |account: &str, path: &str| {
        let token = kubectl(&["create", "token", account, "--namespace=other"]);
        bed.ask_operator(token.trim(), path)
    };
    let told = ask("prometheus", "/metrics");
    assert!(told.contains("pollux_gpus_held"), "{told}");
    assert!(ask("prometheus", "/v1/jobs").contains("this token is for /metrics only"));
    assert!(ask("stranger", "/metrics").contains("unauthorized"));
}
