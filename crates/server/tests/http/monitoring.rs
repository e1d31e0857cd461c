//! What is shipped for Prometheus and Grafana speaks of metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;

use axum::http::StatusCode;
use pollux_api::Job;
use pollux_backend::Exit;
use serde_json::Value;

use crate::calls::Site;

fn shipped(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// Names of ours in an expression.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("pollux_")).map(str::to_owned).collect()
}

/// Names of all samples, those of buckets included.
async fn told() -> BTreeSet<String> {
    let site = Site::new(&[("a", 1)]).await;
    site.submit("job", 1).await;
    let answered = site.get("/metrics").await;
    assert_eq!(answered.status, StatusCode::OK);
    let samples = answered.body.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|sample| sample.split(['{', ' ']).next()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_ends_and_failures_are_counted_by_reason() {
    let site = Site::new(&[("a", 1)]).await;
    let asked = r#"{"name":"broken","command":["train"],"working_dir":"/","retries":0}"#;
    site.post("/v1/jobs", asked).await.json::<Job>(StatusCode::CREATED);
    site.until("the launch", async || site.world.running().first().cloned()).await;
    site.world.exit(1, Exit::Code(3));
    let told = site.until("the end", async || {
        let told = site.get("/metrics").await.body;
        told.contains(r#"pollux_jobs_failed_total{reason="retries"} 1"#).then_some(told)
    });
    let told = told.await;
    for sample in [
        r#"pollux_replicas_ended_total{how="exit_code"} 1"#,
        r#"pollux_replicas_ended_total{how="success"} 0"#,
        r#"pollux_group_stops_total{reason="failed"} 1"#,
        r#"pollux_jobs_failed_total{reason="time_limit"} 0"#,
    ] {
        assert!(told.contains(sample), "{sample}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_are_rules_about_metrics_that_exist() {
    let document: Value = serde_norway::from_str(&shipped("prometheus/alerts.yml")).unwrap();
    let rules = document["groups"][0]["rules"].as_array().unwrap();
    let told = told().await;
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let asked = metrics(expression);
        assert!(asked.is_subset(&told), "{expression}");
        assert!(!asked.is_empty() || expression.starts_with("up{"), "{expression}");
        assert!(rule["annotations"]["summary"].is_string() && rule["labels"]["severity"].is_string(), "{rule}");
    }
    let names: BTreeSet<&str> = rules.iter().map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert!(names.len() == rules.len() && rules.len() > 5, "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_of_grafana_draws_every_metric_and_no_other() {
    let document: Value = serde_json::from_str(&shipped("grafana/pollux.json")).unwrap();
    let panels = document["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let drawn: BTreeSet<String> = targets.flat_map(|target| metrics(target["expr"].as_str().unwrap())).collect();
    let told = told().await;
    assert!(drawn.is_subset(&told), "{:?}", drawn.difference(&told));
    // Of a histogram any part draws it all. How many nodes are up is for alerts; GPUs say more.
    let family = |name: &String| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
    };
    let mut told: BTreeSet<String> = told.iter().map(family).collect();
    told.remove("pollux_nodes");
    assert_eq!(drawn.iter().map(family).collect::<BTreeSet<_>>(), told);
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}
