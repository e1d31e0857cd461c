use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use serde_json::Value;

use crate::calls::Site;

const METHODS: [Method; 7] =
    [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS, Method::TRACE];

/// What the interface is said to have, apart from the document itself.
const ROUTES: [&str; 41] = [
    "DELETE /v1/nodes/{name}",
    "DELETE /v1/tokens/{label}",
    "GET /healthz",
    "GET /metrics",
    "GET /v1/cluster",
    "GET /v1/cluster/series",
    "GET /v1/events",
    "GET /v1/events/stream",
    "GET /v1/jobs",
    "GET /v1/jobs/{id}",
    "GET /v1/jobs/{id}/assignment",
    "GET /v1/jobs/{id}/explanation",
    "GET /v1/jobs/{id}/logs",
    "GET /v1/jobs/{id}/logs/stream",
    "GET /v1/jobs/{id}/series",
    "GET /v1/nodes",
    "GET /v1/plan",
    "DELETE /v1/allocation-queues/{name}",
    "GET /v1/allocation-queues",
    "GET /v1/allocation-queues/{name}",
    "GET /v1/allocation-queues/{name}/output",
    "GET /v1/tokens",
    "GET /v1/what-if",
    "POST /v1/allocation-queues",
    "POST /v1/allocation-queues/{name}/pause",
    "POST /v1/allocation-queues/{name}/resume",
    "POST /v1/allocation-rehearsals",
    "POST /v1/checkpoints/prune",
    "POST /v1/jobs",
    "POST /v1/jobs/{id}/cancel",
    "POST /v1/jobs/{id}/pause",
    "POST /v1/jobs/{id}/ready",
    "POST /v1/jobs/{id}/rendezvous",
    "POST /v1/jobs/{id}/reports",
    "POST /v1/jobs/{id}/resume",
    "POST /v1/node-tokens",
    "POST /v1/nodes/{name}/drain",
    "POST /v1/nodes/{name}/undrain",
    "POST /v1/tokens",
    "POST /v1/what-if",
    // Served, and not part of itself.
    "GET /openapi.json",
];

fn documented(document: &Value) -> BTreeSet<String> {
    let mut routes = BTreeSet::from(["GET /openapi.json".to_owned()]);
    for (path, methods) in document["paths"].as_object().unwrap() {
        routes.extend(methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())));
    }
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_lists_exactly_the_routes_that_are_served() {
    let site = Site::new(&[("a", 1)]).await;
    let document: Value = site.get("/openapi.json").await.json(StatusCode::OK);
    let documented = documented(&document);
    assert_eq!(documented, ROUTES.map(str::to_owned).into());
    let paths: BTreeSet<&str> =
        documented.iter().filter_map(|route| route.split_once(' ')).map(|(_, path)| path).collect();
    for path in paths {
        for method in METHODS {
            let asked = path.replace("{id}", "7").replace("{name}", "x").replace("{label}", "x");
            let response = tower::ServiceExt::oneshot(site.app.clone(), Site::request(method.clone(), &asked, ""));
            let status = response.await.unwrap().status();
            let is_served = status != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(is_served, documented.contains(&format!("{method} {path}")), "{method} {path}: {status}");
        }
    }
    assert_eq!(site.get("/v1/nothing").await.failure(404).0, "unknown_route");
    let wrong = site.send(Site::request(Method::PATCH, "/v1/jobs", "")).await;
    assert_eq!(
        (wrong.failure(405).0.as_str(), &wrong.headers["allow"]),
        ("unknown_method", &"POST,GET,HEAD".parse().unwrap())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_names_its_failures_its_token_and_schemas_that_exist() {
    let site = Site::new(&[("a", 1)]).await;
    let document: Value = site.get("/openapi.json").await.json(StatusCode::OK);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let failure = &operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(failure, "#/components/schemas/Failure", "{method} {path}");
            assert_eq!(operation["security"].is_array(), path != "/healthz", "{method} {path}");
        }
    }
    let text = document.to_string();
    let references: BTreeSet<&str> =
        text.split(r#""$ref":"#).skip(1).filter_map(|rest| rest.split('"').nth(1)).collect();
    assert!(references.len() > 10, "{references:?}");
    for reference in references {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}
