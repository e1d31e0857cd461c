//! Requests that are nearly right.

use axum::http::Method;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::bad_input::{busy, labels, report};
use crate::calls::Site;

/// A good body for every route that takes one, with every field that there is.
fn good() -> Vec<(&'static str, Value)> {
    let job = json!({"name": "x", "command": ["train", "--fast"], "working_dir": "/tmp", "env": {"SEED": "1"},
        "replicas": 1, "replicas_min": 1, "replicas_max": 2, "flexibility": "elastic", "batch_size": 8,
        "priority": -1, "work": {"epochs": 3}, "retries": 2});
    let mut report = report();
    let model = json!({"parallelism": "data_parallel", "alpha_compute": 0.1, "beta_compute": 0.01,
        "alpha_internode": 0.1, "beta_internode": 0.01, "alpha_intranode": 0.1, "beta_intranode": 0.01, "gamma": 2.0});
    report["report"]["types"] = json!([{"gpu_type": 0, "model": model, "replicas_profiled": 1}]);
    report["report"]["loss"] = json!({"slope": 0.1, "offset": 1.0, "floor": 0.5});
    vec![
        ("/v1/jobs", job),
        ("/v1/jobs/1/reports", report),
        ("/v1/jobs/1/ready", json!({"generation": 1, "pause_s": 0.5})),
        ("/v1/jobs/1/rendezvous", json!({"generation": 1, "address": "10.0.0.7", "port": 4711})),
        ("/v1/tokens", json!({"label": "ci"})),
    ]
}

/// One thing that is wrong with a document.
#[derive(Clone, Debug)]
enum Mutation {
    Remove,
    Replace(Value),
    Rename(String),
    /// The field once more, which only text can have.
    Repeat,
    /// Something that is no JSON in its place.
    Spell(&'static str),
    Nest(usize),
    Cut(Index),
}

fn texts() -> impl Strategy<Value = String> {
    let tricks = select(vec![
        "../../token",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a\0b",
        "a\nb",
        "\u{1b}[2J",
        "\u{202e}",
        "a\\b",
        "-rf",
        "NaN",
    ]);
    prop_oneof![tricks.prop_map(str::to_owned), "\\PC{0,12}", (1..2_000_usize).prop_map(|length| "x".repeat(length))]
}

fn values() -> impl Strategy<Value = Value> {
    let numbers = select(vec![
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(u32::MAX),
        json!(1e300),
        json!(-1e300),
        json!(5e-324),
        json!(0.5),
        json!(-0.0),
        json!(1e19),
        json!(65_537),
    ]);
    let others = select(vec![json!(null), json!(true), json!([]), json!({}), json!([[1]]), json!({"epochs": 1})]);
    prop_oneof![3 => numbers, 1 => others, 2 => texts().prop_map(Value::from), 1 => any::<f64>().prop_map(Value::from)]
}

fn mutations() -> impl Strategy<Value = Mutation> {
    let spellings = vec![
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e999",
        "+1",
        "01",
        "1.",
        ".5",
        "0x10",
        "'x'",
        "undefined",
        "\"\\ud800\"",
        "\"\u{1}\"",
        "99999999999999999999999999",
        "nan",
        "1 2",
        "// x",
    ];
    prop_oneof![
        2 => Just(Mutation::Remove),
        6 => values().prop_map(Mutation::Replace),
        1 => texts().prop_map(Mutation::Rename),
        1 => Just(Mutation::Repeat),
        2 => select(spellings).prop_map(Mutation::Spell),
        1 => (1..10_000_usize).prop_map(Mutation::Nest),
        1 => any::<Index>().prop_map(Mutation::Cut),
    ]
}

/// Where every value of a document is.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    let fields: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(values) => values.iter().enumerate().map(|(idx, value)| (idx.to_string(), value)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    for (name, value) in fields {
        let place = format!("{at}/{name}");
        places(value, &place, into);
        into.push(place);
    }
}

/// Stands for what is written in its place later.
const HOLE: &str = "\u{fffd}hole";

fn mutated(document: &Value, changes: &[(Index, Mutation)]) -> String {
    let (mut document, mut fillings, mut cut) = (document.clone(), Vec::new(), None);
    for (place, mutation) in changes {
        let mut all = Vec::new();
        places(&document, "", &mut all);
        if all.is_empty() {
            break;
        }
        let place = place.get(&all);
        let (parent, name) = place.rsplit_once('/').unwrap();
        let mut hole = |document: &mut Value, filling: String| {
            *document.pointer_mut(place).unwrap() = Value::from(format!("{HOLE}{}", fillings.len()));
            fillings.push(filling);
        };
        match mutation {
            Mutation::Replace(value) => *document.pointer_mut(place).unwrap() = value.clone(),
            Mutation::Spell(text) => hole(&mut document, (*text).to_owned()),
            Mutation::Nest(depth) => hole(&mut document, format!("{}{}", "[".repeat(*depth), "]".repeat(*depth))),
            Mutation::Cut(at) => cut = Some(at),
            Mutation::Repeat => {
                let value = document.pointer(place).unwrap().to_string();
                hole(&mut document, format!("{value},\"{name}\":{value}"));
            }
            Mutation::Remove | Mutation::Rename(_) => {
                let removed = match document.pointer_mut(parent).unwrap() {
                    Value::Array(values) => values.remove(name.parse().unwrap()),
                    other => other.as_object_mut().unwrap().remove(name).unwrap(),
                };
                if let (Mutation::Rename(new), Some(Value::Object(fields))) = (mutation, document.pointer_mut(parent)) {
                    // A slash would read as a way further in.
                    fields.insert(new.replace(['/', '~'], ""), removed);
                }
            }
        }
    }
    let mut text = document.to_string();
    for (idx, filling) in fillings.iter().enumerate() {
        text = text.replace(&format!("\"{HOLE}{idx}\""), filling);
    }
    match cut {
        Some(at) => text.chars().take(at.index(text.len() + 1)).collect(),
        None => text,
    }
}

/// What a request that was refused must not have changed.
async fn kept(site: &Site) -> String {
    let jobs = site.server.handle().look(|cluster| {
        cluster.engine().check_invariants();
        let jobs = cluster.engine().jobs().map(|job| format!("{} {:?}", job.id(), job.report()));
        jobs.collect::<Vec<_>>()
    });
    format!("{:?} {:?}", jobs.get().await.unwrap(), labels(site.server.handle()))
}

/// Sends it; what was taken is taken back. Returns whether it was.
async fn send(site: &Site, path: &str, body: &str) -> Result<bool, TestCaseError> {
    let before = kept(site).await;
    let answered = site.post(path, body.to_owned()).await;
    let status = answered.status.as_u16();
    prop_assert!(status < 500, "{path} {body}: {status} {}", answered.body);
    if !answered.status.is_success() {
        answered.failure(status);
        prop_assert_eq!(kept(site).await, before, "{} {}: {} {}", path, body, status, answered.body);
        return Ok(false);
    }
    let created: Value = serde_json::from_str(&answered.body).unwrap_or_default();
    if let Some(id) = created["id"].as_u64() {
        let name = created["name"].as_str().unwrap();
        prop_assert!(!name.is_empty() && !name.contains(['/', '\\', '\n', '\0']) && !name.starts_with('.'), "{name:?}");
        prop_assert_eq!(site.get(&format!("/v1/jobs/{id}")).await.status.as_u16(), 200);
        prop_assert_eq!(site.get(&format!("/v1/jobs/{id}/explanation")).await.status.as_u16(), 200);
        site.post(&format!("/v1/jobs/{id}/cancel"), "").await.is_done();
    }
    if let Some(label) = created["label"].as_str() {
        let taken_back = Site::request(Method::DELETE, &format!("/v1/tokens/{label}"), "");
        site.send(taken_back).await.is_done();
    }
    prop_assert_eq!(site.get("/v1/jobs/1").await.status.as_u16(), 200);
    prop_assert_eq!(site.get("/v1/jobs/1/explanation").await.status.as_u16(), 200);
    Ok(true)
}

#[test]
fn requests_that_are_nearly_right_are_taken_whole_or_refused_without_a_trace() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let site = runtime.block_on(busy());
    for (path, document) in good() {
        let taken = runtime.block_on(send(&site, path, &document.to_string())).unwrap();
        assert!(taken, "{path}: the document that is mutated is a good one");
        let changes = prop::collection::vec((any::<Index>(), mutations()), 1..4);
        proptest!(ProptestConfig::with_cases(400), |(changes in changes)| {
            runtime.block_on(send(&site, path, &mutated(&document, &changes)))?;
        });
    }
}
