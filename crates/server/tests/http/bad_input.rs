use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use pollux_server::Handle;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::calls::Site;

/// Everything that a request could have changed.
async fn everything(handle: &Handle) -> String {
    let cluster = handle.look(|cluster| {
        let jobs = cluster.engine().jobs().map(|job| format!("{} {:?} {:?}", job.id(), job.phase(), job.report()));
        let nodes = cluster.engine().nodes().map(|node| format!("{:?} {}", node.id(), node.is_draining()));
        format!("{:?} {:?} {}", jobs.collect::<Vec<_>>(), nodes.collect::<Vec<_>>(), cluster.last_event())
    });
    format!("{} {:?}", cluster.get().await.unwrap(), labels(handle))
}

/// Who has a token.
pub(crate) fn labels(handle: &Handle) -> Vec<String> {
    handle.tokens().into_iter().map(|token| token.label).collect()
}

/// A cluster with a job that runs and one that waits.
pub(crate) async fn busy() -> Site {
    let site = Site::new(&[("a", 1)]).await;
    site.submit("runs", 1).await;
    site.submit("waits", 1).await;
    site.until("the launch", async || site.world.running().first().cloned()).await;
    site.post("/v1/jobs/1/ready", r#"{"generation":1}"#).await.is_done();
    site
}

pub(crate) fn report() -> Value {
    json!({"generation": 1, "report": {
        "limits": {"batch_size_baseline": 64, "batch_size_max": 1024, "local_batch_min": 1, "local_batch_max": 128},
        "types": [], "noise": {"sqr": 0.4, "var": 3.1},
        "progress": {"steps": 120, "samples": 9600, "epochs": 1, "baseline_steps": 141.5},
        "epoch_samples": 8192, "samples_per_s": 850.0, "loss": null,
        "tuning": {"local_batch": 40, "accumulation_steps": 0}, "learning_rate_factor": 1.21}})
}

fn with(mut value: Value, pointer: &str, new: Value) -> String {
    match value.pointer_mut(pointer) {
        Some(old) => *old = new,
        // What is left out may be said, too.
        None => value[pointer.trim_start_matches('/')] = new,
    }
    value.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_reports_are_refused_and_change_nothing() {
    let site = busy().await;
    let before = everything(site.server.handle()).await;
    let nan = report().to_string().replace("0.4", "NaN");
    let huge = report().to_string().replace("850.0", "1e400");
    for (body, status, said) in [
        (nan, 400, "the body is no JSON"),
        (huge, 400, "number out of range"),
        (with(report(), "/report/samples_per_s", json!(1e300)), 422, "samples per second: expected"),
        (with(report(), "/report/samples_per_s", json!(-1.0)), 422, "samples per second: expected"),
        (with(report(), "/report/progress/baseline_steps", json!(-1.0)), 422, "baseline steps: expected"),
        (with(report(), "/report/progress/baseline_steps", json!(1e300)), 422, "baseline steps: expected"),
        (
            with(report(), "/report/progress/steps", json!(-1)),
            422,
            "report.progress.steps: `-1`, expected a whole number",
        ),
        (with(report(), "/report/noise/sqr", json!(null)), 422, "report.noise.sqr: null, expected a number"),
        (with(report(), "/report/noise/sqr", json!(-0.1)), 422, "-0.1"),
        (with(report(), "/report/limits/batch_size_max", json!(1)), 422, "batch_size_max"),
        (with(report(), "/report/learning_rate_factor", json!(-1)), 422, "learning-rate factor -1: expected"),
        (with(report(), "/report", json!({"surprise": 1})), 422, "missing field `limits`"),
        (with(report(), "/generation", json!(0)), 409, "generation 0 of job 1 is not listened to"),
        (with(report(), "/generation", json!("1")), 422, "generation: the text \"1\", expected"),
    ] {
        let (_, message) = site.post("/v1/jobs/1/reports", body.clone()).await.failure(status);
        assert!(message.contains(said), "{body}: {message}");
    }
    for body in [r#"{"generation":1,"pause_s":-1}"#, r#"{"generation":1,"pause_s":1e300}"#] {
        // A group that trains already has nothing more to say.
        site.post("/v1/jobs/1/ready", body).await.is_done();
    }
    assert_eq!(everything(site.server.handle()).await, before);
    site.post("/v1/jobs/1/reports", report().to_string()).await.is_done();
    assert_ne!(everything(site.server.handle()).await, before, "a good one does change something");
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_jobs_are_refused_and_change_nothing() {
    let site = busy().await;
    let before = everything(site.server.handle()).await;
    let job = json!({"name": "x", "command": ["train"], "working_dir": "/", "replicas": 1, "replicas_min": 1,
        "replicas_max": 1, "retries": 1, "env": {}, "batch_size": 1, "work": {"epochs": 1}});
    for (pointer, value, said) in [
        ("/name", json!("../../etc/passwd"), "a name of 16 bytes: expected"),
        ("/name", json!(".hidden"), "no leading full stop"),
        ("/name", json!("a\u{0}b"), "no control characters"),
        ("/name", json!("x".repeat(1000)), "a name of 1000 bytes"),
        ("/command", json!([]), "the command is empty"),
        ("/command", json!(["a\u{0}b"]), "a NUL byte"),
        ("/command", json!(["x".repeat(200_000)]), "expected 131072 or fewer"),
        ("/working_dir", json!("here"), "expected an absolute path"),
        ("/env", json!({"POLLUX_TOKEN": "x"}), "is set by Pollux for each replica"),
        ("/env", json!({"RANK": "9"}), "is set by Pollux for each replica"),
        ("/env", json!({"A=B": "x"}), "a name without ="),
        ("/replicas", json!(0), "expected 1 <= min <= replicas <= max"),
        ("/replicas_min", json!(2), "expected 1 <= min <= replicas <= max"),
        ("/replicas_max", json!(4_000_000_000_u32), "<= 65536"),
        ("/replicas_max", json!(5_000_000_000_u64), "replicas_max: `5000000000`, expected"),
        ("/replicas_max", json!(-1), "replicas_max: `-1`, expected"),
        ("/replicas_max", json!(1.5), "replicas_max: `1.5`, expected"),
        ("/retries", json!(4_000_000_000_u32), "expected 0 to 1000"),
        ("/batch_size", json!(0), "batch_size 0: expected"),
        ("/gpus_per_replica", json!(0), "gpus_per_replica 0: expected 1 to 1024"),
        ("/time_limit", json!("soon"), "expected seconds, or a duration such as 90s"),
        ("/memory", json!("much"), "expected bytes, or a size such as 512M"),
        ("/depends_on", json!(["x"]), "expected a job's number"),
        ("/work", json!({"epochs": 0}), "declared work of 0"),
        ("/work", json!({"years": 1}), "unknown field `years`, expected `epochs` or `baseline_steps`"),
        ("/work", json!({"epochs": 1, "baseline_steps": 1}), "expected either epochs or baseline_steps"),
    ] {
        let (_, message) = site.post("/v1/jobs", with(job.clone(), pointer, value.clone())).await.failure(422);
        assert!(message.contains(said), "{pointer} {value}: {message}");
    }
    for (body, status, said) in [
        ("", 400, "EOF while parsing"),
        ("{", 400, "EOF while parsing"),
        ("not json", 400, "the body is no JSON: expected"),
        (r#"{"command":["x"],"working_dir":"/","gpuz":4}"#, 422, "unknown field `gpuz`"),
        (r#"{"command":["x"]}"#, 422, "expected an absolute path"),
        (r#"{"command":["x"],"working_dir":"/"}{}"#, 400, "trailing characters"),
        ("[]", 422, "a list, expected an object"),
        (r#" ["x",["train"],"/",{},1,1,null,"elastic",null,0,null,3]"#, 422, "a list, expected an object"),
        ("null", 422, "null, expected"),
        ("{\"a\\nb\":1}", 422, "unknown field `a\\nb`"),
    ] {
        let (_, message) = site.post("/v1/jobs", body).await.failure(status);
        assert!(message.contains(said), "{body}: {message}");
    }
    let long = format!(r#"{{"{}":1}}"#, "x".repeat(500_000));
    assert_eq!(site.post("/v1/jobs", long).await.failure(422).1.len(), 1_000);
    let deep = "[".repeat(500_000);
    assert!(site.post("/v1/jobs", deep).await.failure(422).1.contains("a list, expected"));
    let deep = format!(r#"{{"env":{}"#, "[".repeat(500_000));
    assert!(site.post("/v1/jobs", deep).await.failure(422).1.contains("env: "));
    assert_eq!(everything(site.server.handle()).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_queries_paths_types_and_sizes_are_refused_in_a_line() {
    let site = busy().await;
    let before = everything(site.server.handle()).await;
    for (path, status, said) in [
        ("/v1/jobs?limit=0", 400, "query: limit 0: expected 1 to 1000"),
        ("/v1/jobs?limit=1001", 400, "query: limit 1001: expected 1 to 1000"),
        ("/v1/jobs?limit=x", 400, "query: limit: invalid digit found in string"),
        ("/v1/jobs?phase=asleep", 400, "unknown variant `asleep`"),
        ("/v1/jobs?phase=unknown", 400, "unknown variant `unknown`"),
        ("/v1/jobs?color=red", 400, "unknown field `color`"),
        ("/v1/events?after=-1", 400, "query: after: invalid digit found in string"),
        ("/v1/events?limit=5000", 400, "expected 1 to 1000"),
        ("/v1/jobs/1/assignment?wait_s=-1", 400, "wait_s -1: expected 0 to 60"),
        ("/v1/jobs/1/assignment?wait_s=NaN", 400, "wait_s NaN: expected 0 to 60"),
        ("/v1/jobs/1/logs/stream?after=1.2.3", 400, "query: after \"1.2.3\": expected REPLICA.POSITION of a piece"),
        ("/v1/jobs/1/logs?follow=true", 400, "unknown field `follow`"),
        ("/v1/jobs/one", 400, "job \"one\" in the path: expected a number of 64 bits"),
        ("/v1/jobs/+1", 400, "job \"+1\" in the path: expected a number of 64 bits"),
        ("/v1/jobs/99999999999999999999", 400, "expected a number"),
        ("/v1/jobs/18446744073709551615", 404, "is unknown"),
        ("/v1/jobs/%2e%2e%2ftoken", 400, "job \"../token\" in the path"),
        ("/v1/jobs/%ff", 400, "expected a number"),
        ("/v1/../token", 404, "no such route"),
        ("//v1/jobs", 404, "no such route"),
    ] {
        let (_, message) = site.get(path).await.failure(status);
        assert!(message.contains(said), "{path}: {message}");
    }
    let mut untyped = Site::request(Method::POST, "/v1/jobs", "{}");
    untyped.headers_mut().insert("content-type", "text/plain".parse().unwrap());
    assert_eq!(site.send(untyped).await.failure(415).0, "unsupported_type");
    let mut declared = Site::request(Method::POST, "/v1/jobs", "");
    declared.headers_mut().insert("content-length", "1073741824".parse().unwrap());
    assert_eq!(site.send(declared).await.failure(413).0, "too_large");
    assert_eq!(site.post("/v1/jobs", vec![b' '; 1024 * 1024 + 1]).await.failure(413).0, "too_large");
    assert_eq!(everything(site.server.handle()).await, before);
}

/// Values that are nearly right, and anything else that is JSON.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z/.\\PC]{0,8}".prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("generation"),
        Just("report"),
        Just("pause_s"),
        Just("label"),
        Just("command"),
        Just("name"),
        Just("x")
    ];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..4).prop_map(
                |fields: BTreeMap<String, Value>| fields.into_iter().collect::<serde_json::Map<_, _>>().into()
            ),
        ]
    })
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![prop::collection::vec(any::<u8>(), 0..64), any_json().prop_map(|json| json.to_string().into_bytes())]
}

/// Routes that would do something, with words that no good request has.
fn any_route() -> impl Strategy<Value = (Method, String)> {
    let word = "[a-z0-9%.~+-]{1,6}";
    let number = prop_oneof![Just("1".to_owned()), Just("2".to_owned()), Just("9".to_owned()), word.prop_map(|it| it)];
    let routes = prop_oneof![
        Just((Method::POST, "/v1/jobs")),
        Just((Method::POST, "/v1/tokens")),
        Just((Method::POST, "/v1/jobs/{}/reports")),
        Just((Method::POST, "/v1/jobs/{}/ready")),
        Just((Method::GET, "/v1/jobs/{}")),
        Just((Method::GET, "/v1/jobs/{}/explanation")),
        Just((Method::GET, "/v1/jobs/{}/logs")),
        Just((Method::GET, "/v1/jobs/{}/assignment")),
        Just((Method::POST, "/v1/nodes/x{}/drain")),
        Just((Method::DELETE, "/v1/tokens/x{}")),
        Just((Method::GET, "/v1/jobs?limit={}")),
        Just((Method::GET, "/v1/jobs?before={}&phase=failed")),
        Just((Method::GET, "/v1/events?after={}")),
        Just((Method::PUT, "/v1/jobs/{}")),
        Just((Method::GET, "/{}")),
    ];
    (routes, number).prop_map(|((method, path), number)| (method, path.replace("{}", &number)))
}

#[test]
fn whatever_is_sent_is_answered_below_500_and_changes_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let site = runtime.block_on(busy());
    let before = runtime.block_on(everything(site.server.handle()));
    proptest!(ProptestConfig::with_cases(1_000), |((method, path) in any_route(), body in any_body())| {
        let request = Site::request(method.clone(), &path, Body::from(body));
        let answered = runtime.block_on(site.send(request));
        prop_assert!(answered.status.as_u16() < 500, "{method} {path}: {} {}", answered.status, answered.body);
        if !answered.status.is_success() {
            answered.failure(answered.status.as_u16());
        }
        prop_assert!(answered.status != StatusCode::CREATED, "{method} {path}: {}", answered.body);
    });
    assert_eq!(runtime.block_on(everything(site.server.handle())), before);
}
