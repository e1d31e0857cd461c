use std::fs;
use std::sync::{Condvar, Mutex};

use pollux_job::{Flexibility, JobSpec, Phase, Work};

use crate::binary::run;
use crate::recorded::{detail, job, json};
use crate::server::Server;

fn accepting(test: &str) -> Server {
    Server::new(test, |_| (201, json(&job(7, "train", Phase::Queued))))
}

fn submitted(server: &Server) -> JobSpec {
    let requests = server.requests();
    // Whoever sets a priority asks what it means afterwards.
    let submitted = requests.iter().rfind(|request| request.line.starts_with("POST")).unwrap();
    serde_json::from_str(&submitted.body).unwrap()
}

#[test]
fn options_override_the_file() {
    let server = accepting("submit_file");
    let text = "name: file\ncommand: [a, b]\nworking_dir: data\nenv: {A: '1', B: '2'}\nreplicas_min: 2\n\
        replicas_max: 8\napplication: bert\nwork: {epochs: 3}\npriority: 5\nretries: 0\nflexibility: rigid\n";
    let file = server.state().join("job.yaml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let plain = server.pollux(&["submit", "-f", file, "--export", "none"]);
    assert_eq!(plain.stdout, "job 7 train is queued\n", "{}", plain.stderr);
    let expected = JobSpec {
        name: "file".to_owned(),
        command: vec!["a".to_owned(), "b".to_owned()],
        working_dir: server.state().join("data"),
        env: [("A", "1"), ("B", "2")].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        replicas: 2,
        replicas_min: 2,
        replicas_max: Some(8),
        flexibility: Flexibility::Rigid,
        application: Some("bert".to_owned()),
        priority: 5,
        work: Some(Work::Epochs(3)),
        retries: 0,
        ..JobSpec::default()
    };
    assert_eq!(submitted(&server), expected);

    let options = "--name option --replicas 3 --replicas-max 4 --non-preemptible --batch-size 64 --priority -1 --application ncf \
        --baseline-steps 9 --retries 2 --export none --env B=3=x --working-dir /elsewhere -o id -- c -d";
    let args: Vec<&str> = ["submit", "-f", file].into_iter().chain(options.split_whitespace()).collect();
    assert_eq!(server.pollux(&args).stdout, "7\n");
    let expected = JobSpec {
        name: "option".to_owned(),
        command: vec!["c".to_owned(), "-d".to_owned()],
        working_dir: "/elsewhere".into(),
        env: [("A", "1"), ("B", "3=x")].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        replicas: 3,
        replicas_max: Some(4),
        flexibility: Flexibility::NonPreemptible,
        batch_size: Some(64),
        application: Some("ncf".to_owned()),
        priority: -1,
        work: Some(Work::BaselineSteps(9)),
        retries: 2,
        ..expected
    };
    assert_eq!(submitted(&server), expected);
}

#[test]
fn a_job_comes_from_stdin_and_starts_where_its_user_is() {
    let server = accepting("submit_stdin");
    let folder = fs::canonicalize(server.state()).unwrap();
    let mut command = server.command(&["submit", "-f", "-", "-o", "json"]);
    let outcome = run(command.current_dir(&folder), br#"{"command": ["train"]}"#);
    assert_eq!(outcome.json()["id"], 7);
    assert_eq!(submitted(&server).working_dir, folder);
}

/// A job that is queued, runs, and ends so; its logs end when it was seen to have ended.
fn watched(test: &str, ending: Phase) -> Server {
    let phases = [Phase::Queued, Phase::Running, ending];
    let looks = (Mutex::new(0), Condvar::new());
    Server::new(test, move |line| match line {
        "POST /v1/jobs" => (201, json(&job(7, "train", Phase::Queued))),
        "GET /v1/nodes" => (404, crate::recorded::failure("unknown_route", line)),
        "GET /v1/jobs/7/logs/stream" => {
            let (number, seen) = &looks;
            drop(seen.wait_while(number.lock().unwrap(), |number| *number < phases.len()).unwrap());
            let piece = r#"{"replica":17,"text":"epoch 1\n","position":"5.8"}"#;
            (200, format!("data: {piece}\n\nevent: end\ndata: {{}}\n\n"))
        }
        _ => {
            let (number, seen) = &looks;
            let mut number = number.lock().unwrap();
            let phase = phases[(*number).min(phases.len() - 1)];
            *number += 1;
            seen.notify_all();
            (200, detail(&job(7, "train", phase)))
        }
    })
}

#[test]
fn watching_shows_phases_and_logs_and_ends_as_the_job_does() {
    let run = watched("watch", Phase::Succeeded).pollux(&["submit", "--watch", "--", "train"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "job 7 train is queued\n17| epoch 1\n"));
    let expected = "note: job 7 is queued\nnote: job 7 is running on 2 GPUs, batch 512\nnote: job 7 is succeeded\n\
        note: job 7 took 1m 01s, 1s of it waiting, and 1m 00s of GPU time\n";
    assert_eq!(run.stderr, expected);
    let run = watched("watch_failed", Phase::Failed).pollux(&["submit", "--watch", "--", "train"]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.stderr.ends_with("error: job 7 failed: exit code 1, 4 times; `pollux logs 7` shows what it wrote\n"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_job_finds_the_virtual_environment_of_whoever_submits_it() {
    let server = accepting("submit_export");
    let submit = |options: &[&str]| {
        let args: Vec<&str> = ["submit"].iter().chain(options).copied().chain(["--", "python", "train.py"]).collect();
        let mut command = server.command(&args);
        command.env("VIRTUAL_ENV", "/venv").env("PATH", "/venv/bin:/usr/bin").env("LC_ALL", "C.UTF-8");
        command.env("HF_TOKEN", "hunter2").env("SEED", "7");
        let outcome = run(&mut command, b"");
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        submitted(&server)
    };
    let usual = submit(&[]);
    assert_eq!(usual.env["PATH"], "/venv/bin:/usr/bin");
    assert_eq!((usual.env["VIRTUAL_ENV"].as_str(), usual.env["LC_ALL"].as_str()), ("/venv", "C.UTF-8"));
    assert!(!usual.env.contains_key("SEED") && usual.secrets.is_empty(), "{usual:?}");

    let all = submit(&["--export", "all"]);
    assert_eq!((all.env["SEED"].as_str(), all.secrets["HF_TOKEN"].reveal()), ("7", "hunter2"));
    assert!(!all.env.contains_key("HF_TOKEN") && !all.env.contains_key("POLLUX_STATE"), "{all:?}");

    let named = submit(&["--export", "SEED", "--env", "SEED=8", "--secrets", "HF_TOKEN", "--secrets", "KEY=1=2"]);
    assert_eq!(named.env, [("SEED".to_owned(), "8".to_owned())].into());
    assert_eq!((named.secrets["HF_TOKEN"].reveal(), named.secrets["KEY"].reveal()), ("hunter2", "1=2"));
    assert_eq!(submit(&["--export", "none"]).env, [].into());
}

#[test]
fn options_say_what_each_replica_needs_and_what_it_waits_for() {
    let server = accepting("submit_resources");
    let options = "--gpus 4 --cpus 8 --memory 16G --gpu-types a100,h100 --time-limit 1h30m --depends-on 3,4:end \
        --flexibility rigid --export none -- torchrun";
    let args: Vec<&str> = ["submit"].into_iter().chain(options.split_whitespace()).collect();
    assert_eq!(server.pollux(&args).code, Some(0));
    let spec = submitted(&server);
    assert_eq!((spec.replicas, spec.gpus_per_replica, spec.cpus, spec.memory), (1, 4, Some(8), Some(16 << 30)));
    assert_eq!((spec.gpu_types, spec.time_limit), (vec!["a100".to_owned(), "h100".to_owned()], Some(5_400)));
    let waits: Vec<String> = spec.depends_on.iter().map(ToString::to_string).collect();
    assert_eq!((waits.join(" "), spec.flexibility), ("3 4:end".to_owned(), Flexibility::Rigid));
    for (option, value, said) in [
        ("--memory", "much", "expected bytes, or a size such as 512M"),
        ("--time-limit", "soon", "expected seconds, or a duration such as 90s"),
        ("--depends-on", "x", "expected a job's number, or NUMBER:end"),
        ("--export", "A=B", "expected all, none, or names of variables"),
        ("--secrets", "NOT_SET_ANYWHERE", "is not set here; expected NAME=VALUE"),
        ("--flexibility", "soft", "expected elastic, non_preemptible or rigid"),
    ] {
        let refused = server.pollux(&["submit", option, value, "--", "train"]);
        assert_eq!(refused.code, Some(2), "{option}");
        assert!(refused.stderr.contains(said) && refused.stderr.lines().count() == 1, "{}", refused.stderr);
    }
}

#[test]
fn a_type_of_gpu_that_no_node_has_is_warned_of_with_those_there_are() {
    let server = Server::new("submit_types", |line| match line {
        "GET /v1/nodes" => {
            let node = |name: &str, gpu_type: &str| {
                serde_json::json!({"name": name, "gpus": 4, "gpu_type": gpu_type, "gpus_held": 0, "is_draining": false,
                    "cooling_until_ms": null, "jobs": []})
            };
            (200, serde_json::json!({"nodes": [node("a", "NVIDIA A100"), node("b", "Tesla T4")]}).to_string())
        }
        _ => (201, json(&job(7, "train", Phase::Queued))),
    });
    let said = |types: &str| server.pollux(&["submit", "--gpu-types", types, "--", "train"]).stderr;
    let warned = said("a100,h100");
    let expected =
        "note: no node has GPUs of type a100, h100, only NVIDIA A100, Tesla T4: it waits until nodes are added\n";
    assert!(warned.starts_with(expected), "{warned}");
    assert!(!said("h100,Tesla T4").contains("no node has"), "one of them is there");
}

#[test]
fn a_what_if_asks_for_all_that_the_file_and_the_options_say() {
    let server = Server::new("what_if_file", |_| (400, crate::recorded::failure("asked", "that was all")));
    let text = "name: new\ncommand: [train]\nenv: {A: '1'}\nreplicas_min: 2\ngpus: 2\ncpus: 4\nmemory: 1G\n\
        gpu_types: [A100]\nflexibility: rigid\nbatch_size: 64\npriority: 3\nwork: {epochs: 2}\nretries: 0\n\
        time_limit: 1h\ndepends_on: [3]\n";
    let file = server.state().join("job.yaml");
    fs::write(&file, text).unwrap();
    let options = ["what-if", "--like", "1", "--cpus", "8", "--time-limit", "2h", "--submit", file.to_str().unwrap()];
    server.pollux(&options);
    let asked: serde_json::Value = serde_json::from_str(&server.requests()[0].body).unwrap();
    let expected = serde_json::json!({"trains_like": {"job": 1}, "name": "new", "replicas_min": 2, "gpus_per_replica": 2,
        "cpus": 8, "memory": 1_u64 << 30, "gpu_types": ["A100"], "flexibility": "rigid", "batch_size": 64, "priority": 3,
        "work": {"epochs": 2}, "time_limit": 7200, "depends_on": [{"job": 3, "after": "success"}]});
    assert_eq!(asked["changes"][0]["submit"], expected);
}
