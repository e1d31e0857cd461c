use std::fs;
use std::os::unix::fs::PermissionsExt;

use pollux_api::{
    ClusterStatus, Event, EventList, Explanation, HeldBackNode, JobList, LogPiece, Node, NodeJob, NodeList,
    SizeOutlook, TypeOutlook,
};
use pollux_job::Phase;

use crate::binary::run;
use crate::recorded::{detail, failure, job, json, list};
use crate::server::Server;

fn jobs(test: &str) -> Server {
    Server::new(test, |line| match line {
        "GET /v1/jobs?limit=100" | "GET /v1/jobs?limit=1000" => {
            let jobs = [
                job(1, "resnet", Phase::Running),
                job(2, "bert\u{1b}[2J", Phase::Queued),
                job(4, "twin", Phase::Paused),
                job(5, "twin", Phase::Paused),
                job(3, "old", Phase::Failed),
                job(0, "old", Phase::Succeeded),
            ];
            (200, list(&jobs, None))
        }
        "GET /v1/jobs?phase=failed&limit=2" => (200, list(&[job(3, "old", Phase::Failed)], Some(3))),
        "GET /v1/jobs?phase=failed&limit=1&before=3" => (200, list(&[job(0, "older", Phase::Failed)], None)),
        "POST /v1/jobs/1/cancel" | "POST /v1/jobs/2/cancel" => (204, String::new()),
        "POST /v1/jobs/3/cancel" => (409, failure("wrong_phase", "job 3 is failed: it cannot be cancelled")),
        "GET /v1/jobs/1" => (200, detail(&job(1, "resnet", Phase::Running))),
        "GET /v1/jobs/3/logs?replica=17&tail=2" => (200, "\u{1b}[2Jraw\n".to_owned()),
        _ => (404, failure("unknown_route", line)),
    })
}

#[test]
fn ps_lists_live_jobs_and_with_a_all_of_them() {
    let server = jobs("ps");
    let live = server.pollux(&["ps"]);
    let words: Vec<Vec<&str>> = live.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0][..5], ["id", "name", "owner", "phase", "gpus"]);
    assert_eq!(words[1][..11], ["1", "resnet", "ada", "running", "2", "512", "850", "90%", "765", "25%", "1m"]);
    assert_eq!(words[2][..7], ["2", "bert\\u{1b}[2J", "ada", "queued", "0", "-", "-"]);
    assert_eq!(words.len(), 5);
    assert_eq!(server.requests()[0].authorization, "Bearer secret");
    assert_eq!(server.pollux(&["ps", "-a", "-o", "id"]).stdout, "1\n2\n4\n5\n3\n0\n");
    assert_eq!(server.pollux(&["ps", "-o", "json"]).json()["jobs"][0]["name"], "resnet");
}

#[test]
fn gpus_are_counted_where_a_replica_has_several() {
    let wide = || pollux_api::Job { gpus_per_replica: 4, ..job(1, "wide", Phase::Running) };
    let server = Server::new("wide", move |line| match line {
        "GET /v1/jobs?limit=100" => (200, list(&[wide()], None)),
        "GET /v1/jobs/1" => (200, detail(&wide())),
        _ => (404, failure("unknown_route", line)),
    });
    let listed = server.pollux(&["ps"]).stdout;
    assert_eq!(listed.lines().nth(1).unwrap().split_whitespace().nth(4), Some("8"), "{listed}");
    let described = server.pollux(&["describe", "1"]).stdout;
    assert!(described.contains("group           2 replicas of 4 GPUs on 1 node,"), "{described}");
}

#[test]
fn a_listing_takes_as_many_requests_as_it_needs() {
    let server = jobs("ps_pages");
    assert_eq!(server.pollux(&["ps", "--phase", "failed", "--limit", "2", "-o", "id"]).stdout, "3\n0\n");
}

#[test]
fn a_listing_can_be_of_one_owner() {
    let server = Server::new("ps_owner", |line| match line {
        "GET /v1/jobs?owner=ada%20l&limit=100" => (200, list(&[job(1, "resnet", Phase::Running)], None)),
        _ => (404, failure("unknown_route", line)),
    });
    assert_eq!(server.pollux(&["ps", "--owner", "ada l", "-o", "id"]).stdout, "1\n");
}

#[test]
fn a_listing_that_is_cut_says_so() {
    let page = |id, next_after_live| {
        let jobs = vec![job(id, "resnet", Phase::Running)];
        (200, json(&JobList { jobs, next_after_live, next_before: None }))
    };
    let server = Server::new("ps_cut", move |line| match line {
        "GET /v1/jobs?limit=2" => page(1, Some(1)),
        "GET /v1/jobs?limit=1&after_live=1" => page(4, Some(4)),
        _ => (404, failure("unknown_route", line)),
    });
    let cut = server.pollux(&["ps", "--limit", "2", "-o", "id"]);
    let note = "note: there are more than 2 jobs: --limit N lists up to N\n";
    assert_eq!((cut.stdout.as_str(), cut.stderr.as_str()), ("1\n4\n", note));
}

#[test]
fn jobs_are_known_by_number_or_by_a_name_that_is_unique() {
    let server = jobs("names");
    assert_eq!(server.pollux(&["cancel", "resnet", "2"]).code, Some(0));
    let orders = || server.lines().into_iter().filter(|line| line.starts_with("POST")).collect::<Vec<_>>();
    assert_eq!(orders(), ["POST /v1/jobs/1/cancel", "POST /v1/jobs/2/cancel"]);
    for (name, expected) in [
        ("twin", "error: \"twin\" is the name of jobs 4, 5; expected one of these numbers\n"),
        ("nobody", "error: no job is called \"nobody\"; `pollux ps -a` lists jobs\n"),
    ] {
        let refused = server.pollux(&["cancel", "1", name]);
        assert_eq!((refused.code, refused.stderr.as_str()), (Some(2), expected));
    }
    assert_eq!(orders().len(), 2, "a name that is none stops all of them");
    let ended = server.pollux(&["logs", "--replica", "17", "--tail", "2", "old"]);
    assert_eq!(ended.stdout, "\u{1b}[2Jraw\n", "of the newest of that name, and byte by byte to a pipe");
}

#[test]
fn a_refusal_stops_only_its_own_order() {
    let server = jobs("refusals");
    let run = server.pollux(&["cancel", "3", "1"]);
    assert_eq!(run.code, Some(2));
    let expected = "note: job 1 is cancelled\nerror: job 3 is failed: it cannot be cancelled\n";
    assert_eq!(run.stderr, expected);
}

#[test]
fn describe_tells_what_was_asked_for_and_what_came_of_it() {
    let text = jobs("describe").pollux(&["describe", "1"]).stdout;
    for line in [
        "job 1 resnet: running for ",
        "  command         python train.py\n",
        "  replicas        1 to 8, 1 to begin with\n",
        "  batch           512 = 2 replicas x 64 x 4\n",
        "  progress        25%, 1m 30s left\n",
        "  submitted       1970-01-01 00:00:01 UTC, ",
        "  logs            of replicas 17, 21\n",
    ] {
        assert!(text.contains(line), "{line:?} is missing:\n{text}");
    }
}

#[test]
fn explain_marks_the_size_it_has_and_draws_what_others_are_worth() {
    let size = |replicas, goodput, is_measured| SizeOutlook {
        replicas,
        nodes: 1,
        batch_size: 256 * u64::from(replicas),
        samples_per_s: 2.0 * goodput,
        efficiency: 0.5,
        goodput,
        is_measured,
    };
    let on_type = |name: &str, change: Option<f64>| TypeOutlook {
        gpu_type: name.to_owned(),
        replicas: 2,
        nodes: 1,
        batch_size: 512,
        samples_per_s: 360.0 * (1.0 + change.unwrap_or(0.0)),
        goodput: 180.0 * (1.0 + change.unwrap_or(0.0)),
        change,
        is_estimated: change.is_some(),
    };
    let explanation = Explanation {
        id: 1,
        name: "resnet".to_owned(),
        phase: Phase::Running,
        replicas: 2,
        gpus_per_replica: 1,
        sentences: vec!["It has 2 GPUs.".to_owned(), "A third\nwould help.".to_owned()],
        wait: None,
        binding: Some("fairness".to_owned()),
        one_more: Some(0.2),
        one_fewer: Some(-0.4),
        payer: None,
        fair_share: Some(1.5),
        next_round_ms: None,
        sizes: vec![size(1, 100.0, true), size(2, 180.0, true), size(4, 240.0, false)],
        types: vec![on_type("a100", Some(2.0)), on_type("t4", None)],
    };
    let server = Server::new("explain", move |_| (200, json(&explanation)));
    let expected = "\
job 1 resnet: running on 2 GPUs
  It has 2 GPUs.
  A third\\nwould help.

     gpus  nodes  batch  samples/s  efficiency  goodput  
        1      1    256        200         50%      100  ██████████
now     2      1    512        360         50%      180  ██████████████████
        4      1   1024        480         50%      240  ████████████████████████ not measured

type  gpus  nodes  batch  samples/s  goodput  
a100     2      1    512       1080      540  ████████████████████████ estimated
t4       2      1    512        360      180  ████████
";
    assert_eq!(server.pollux(&["explain", "1"]).stdout, expected);
    assert_eq!(server.pollux(&["explain", "1", "-o", "json"]).json()["one_more"], 0.2);
}

fn status(last_event: u64) -> ClusterStatus {
    ClusterStatus {
        version: "0.1.0".to_owned(),
        policy: "pollux".to_owned(),
        now_ms: 0,
        gpus: 1,
        gpus_held: 0,
        jobs: std::collections::BTreeMap::new(),
        goodput: 0.0,
        last_event,
        last_round_ms: None,
        next_round_ms: None,
        is_degraded: false,
    }
}

#[test]
fn events_are_the_last_ones_unless_a_number_is_given() {
    let server = Server::new("events", |line| {
        let Some((_, query)) = line.split_once('?') else { return (200, json(&status(1_700))) };
        let number = |name: &str| query.split('&').find_map(|term| term.strip_prefix(name)?.parse::<u64>().ok());
        let (after, limit) = (number("after=").unwrap(), number("limit=").unwrap());
        let numbers = (after + 1..=1_700).take(usize::try_from(limit.min(1_000)).unwrap());
        let event = |sequence| Event {
            sequence,
            at_ms: sequence * 1_000,
            job: Some(7),
            kind: "ready".to_owned(),
            text: format!("number {sequence}"),
            detail: serde_json::Value::Null,
        };
        let events: Vec<Event> = numbers.map(event).collect();
        let next_after = events.last().map_or(after, |event| event.sequence);
        (200, json(&EventList { events, next_after }))
    });
    let last = server.pollux(&["events", "--limit", "2"]).stdout;
    let expected = "1970-01-01 00:28:19   1699  job 7     number 1699\n\
        1970-01-01 00:28:20   1700  job 7     number 1700\n";
    assert_eq!(last, expected);
    let all = server.pollux(&["events", "--after", "0", "--limit", "1500", "-o", "json"]).json();
    assert_eq!((all["events"].as_array().unwrap().len(), &all["next_after"]), (1_500, &1_500.into()));
}

#[test]
fn events_and_logs_go_on_where_a_server_that_went_away_left_them() {
    let event = |sequence: u64| {
        let event = Event { sequence, at_ms: 0, job: None, kind: "ready".into(), text: "x".into(), detail: ().into() };
        (200, format!("id: {sequence}\ndata: {}\n\n", json(&event)))
    };
    let piece = |replica: u64, text: &str, position: &str| {
        let piece = LogPiece { replica, text: text.to_owned(), position: position.to_owned(), dropped: 0 };
        format!("data: {}\n\n", json(&piece))
    };
    let begun = || "event: begun\ndata: {}\n\n".to_owned();
    const END: &str = "event: end\ndata: {}\n\n";
    let server = Server::new("away", move |line| match line {
        "GET /v1/events?after=0&limit=50" => (200, json(&EventList { events: Vec::new(), next_after: 0 })),
        "GET /v1/events/stream?after=0" => event(1),
        "GET /v1/events/stream?after=1" => event(2),
        "GET /v1/jobs/1/logs/stream?tail=2" => {
            (200, [piece(7, "", "5.8"), piece(7, "a\nb\nc", "5.13"), begun()].concat())
        }
        "GET /v1/jobs/1/logs/stream?after=7.5.13" => {
            (200, [piece(7, "d\n", "5.15"), begun(), piece(8, "a\n", "6.2"), END.to_owned()].concat())
        }
        "GET /v1/jobs/2/logs/stream?tail=0" => (200, begun()),
        "GET /v1/jobs/2/logs/stream" => (200, [piece(9, "written meanwhile\n", "7.18"), END.to_owned()].concat()),
        _ => (404, failure("unknown_route", line)),
    });
    let events = server.pollux(&["events", "-f", "--after", "0", "-o", "json"]);
    let told: Vec<&str> = events.stdout.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(told, ["{\"sequence\":1", "{\"sequence\":2"]);
    assert!(events.stderr.contains("does not answer; jobs keep running; waiting for it\n"), "{}", events.stderr);
    let logs = server.pollux(&["logs", "-f", "--tail", "2", "1"]);
    assert_eq!((logs.code, logs.stdout.as_str()), (Some(0), "7| a\n7| b\n7| cd\n8| a\n"));
    let logs = server.pollux(&["logs", "-f", "--tail", "0", "2"]);
    assert_eq!(
        (logs.code, logs.stdout.as_str()),
        (Some(0), "9| written meanwhile\n"),
        "after --tail nothing is left out"
    );
}

#[test]
fn nodes_are_listed_with_their_jobs_and_drained_by_name() {
    let node = Node {
        name: "local-0".to_owned(),
        gpus: 4,
        gpu_type: "cpu".to_owned(),
        gpus_held: 2,
        cpus: Some(16),
        cpus_held: 6,
        memory: Some(64 << 30),
        memory_held: 512 << 20,
        is_draining: true,
        drains_at_ms: None,
        ends_at_ms: None,
        is_unreachable: false,
        is_retired: false,
        cooling_until_ms: None,
        jobs: vec![NodeJob { id: 1, name: "resnet".to_owned(), replicas: 1, gpus_per_replica: 2, is_guest: false }],
        agent: None,
    };
    let old = Node { is_retired: true, cpus: None, memory: None, jobs: Vec::new(), ..node.clone() };
    let old = Node { name: "local-1".to_owned(), ..old };
    let new = HeldBackNode {
        name: "local-1".to_owned(),
        gpus: 8,
        gpu_type: "cpu".to_owned(),
        reason: "replica 3 of job 1 must leave local-1 first, which was on the same machine".to_owned(),
    };
    let nodes = json(&NodeList { nodes: vec![node, old], held_back: vec![new] });
    let server = Server::new("nodes", move |line| match line {
        "GET /v1/nodes" => (200, nodes.clone()),
        "POST /v1/nodes/local-0/drain" | "POST /v1/nodes/local-0/undrain" => (204, String::new()),
        _ => (404, failure("unknown_node", "\"../jobs\" is no node that is up")),
    });
    let table = "\
node     gpus  held  kind  cpus              memory  state      agent  heard  jobs
local-0     4     2  cpu   6/16  512.0 MiB/64.0 GiB  draining   -      -      1 resnet x2
local-1     4     2  cpu      -                   -  retired    -      -      
local-1     8     0  cpu      -                   -  held back  -      -      \
waits: replica 3 of job 1 must leave local-1 first, which was on the same machine
";
    assert_eq!(server.pollux(&["nodes"]).stdout, table);
    assert_eq!(server.pollux(&["drain", "local-0"]).code, Some(0));
    assert_eq!(server.pollux(&["undrain", "local-0"]).code, Some(0));
    let unknown = server.pollux(&["drain", "../jobs"]);
    assert_eq!(
        (unknown.code, unknown.stderr.as_str()),
        (Some(2), "error: \"../jobs\" is no node that is up; `pollux nodes` lists nodes\n")
    );
    assert_eq!(server.lines().last().unwrap(), "POST /v1/nodes/%2E%2E%2Fjobs/drain");
}

#[test]
fn tokens_are_shown_made_listed_and_revoked() {
    let server = Server::new("tokens", |line| match line {
        "POST /v1/tokens" => (201, r#"{"label": "ci", "role": "viewer", "token": "fresh"}"#.to_owned()),
        "GET /v1/tokens" => {
            let ci = r#"{"label": "ci", "role": "viewer", "expires_ms": 1, "last_used_ms": 86400000}"#;
            (200, format!(r#"{{"tokens": [{ci}, {{"label": "local", "role": "admin"}}]}}"#))
        }
        "DELETE /v1/tokens/ci" => (204, String::new()),
        _ => (404, failure("unknown_token", "no token is called x")),
    });
    assert_eq!(server.pollux(&["token"]).stdout, "secret\n");
    assert_eq!(server.pollux(&["token", "create", "ci", "--role", "viewer", "--expires", "2d"]).stdout, "fresh\n");
    assert_eq!(
        server.pollux(&["token", "list"]).stdout,
        "name   role    expires  last used\n\
         ci     viewer  expired  1970-01-02 00:00:00 UTC\n\
         local  admin   never    never\n"
    );
    assert_eq!(server.pollux(&["token", "revoke", "ci"]).code, Some(0));
    assert_eq!(server.requests()[0].body, r#"{"label":"ci","role":"viewer","expires_s":172800}"#);
    let wrong = server.pollux(&["token", "create", "ci", "--role", "king"]);
    let said = "error: --role is \"king\"; expected admin, member or viewer\n";
    assert_eq!((wrong.code, wrong.stderr.as_str()), (Some(2), said));
}

#[test]
fn a_token_and_an_address_of_the_environment_go_before_the_state_folder() {
    let server = Server::new("environment", |_| (200, r#"{"tokens": []}"#.to_owned()));
    let mut command = crate::server::client(&["token", "list", "--state", "/nowhere", "--server", server.url()]);
    assert_eq!(crate::binary::run(command.env("POLLUX_TOKEN", "mine"), b"").code, Some(0));
    assert_eq!(server.requests()[0].authorization, "Bearer mine");
}

#[test]
fn shells_learn_the_arguments() {
    for shell in ["bash", "zsh", "fish"] {
        let script = crate::binary::run(&mut crate::server::client(&["completions", shell]), b"");
        assert!(script.code == Some(0) && script.stdout.contains("non-preemptible"), "{shell}");
    }
}

#[test]
fn the_link_to_the_dashboard_holds_the_token_where_no_server_reads_it() {
    let server = Server::new("dashboard", |_| (404, String::new()));
    let printed = server.pollux(&["dashboard"]);
    assert_eq!((printed.code, printed.stdout), (Some(0), format!("{}/#token=secret\n", server.url())));
    assert_eq!(printed.stderr, "note: this link gives full access: do not share it\n");
    assert_eq!(server.lines(), [""; 0]);
}

#[test]
fn opening_the_dashboard_shows_the_token_to_a_browser_alone_and_leaves_nothing() {
    let server = jobs("dashboard_open");
    let (state, programs) = (server.state(), server.state().join("bin"));
    fs::create_dir(&programs).unwrap();
    let browser = programs.join("xdg-open");
    let seen = state.join("seen");
    let script = format!("#!/bin/sh\n/bin/ls -l \"$1\" > {0}\n/bin/cat \"$1\" >> {0}\n", seen.display());
    fs::write(&browser, script).unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let page = state.join("dashboard.html");
    fs::write(&page, "left by a run that was cut short").unwrap();
    fs::set_permissions(&page, fs::Permissions::from_mode(0o644)).unwrap();
    let opened = run(server.command(&["dashboard", "--open"]).env("PATH", &programs), b"");
    assert_eq!((opened.code, opened.stdout.as_str()), (Some(0), ""), "{}", opened.stderr);
    let seen = fs::read_to_string(seen).unwrap();
    assert!(seen.starts_with("-rw------- "), "{seen}");
    assert!(seen.contains(&format!("url={}/#token=secret\"", server.url())), "{seen}");
    assert!(!page.exists());

    fs::write(&browser, "#!/bin/sh\nexit 3\n").unwrap();
    let refused = run(server.command(&["dashboard", "--open"]).env("PATH", &programs), b"");
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("`pollux dashboard` prints the link"), "{}", refused.stderr);
    assert!(!page.exists());
}
