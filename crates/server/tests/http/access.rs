use axum::body::Body;
use axum::http::{Method, Request, StatusCode};

use crate::calls::{Answered, HOST, Site, TOKEN};

/// A request with exactly these headers.
fn bare(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request =
        headers.iter().fold(Request::builder().method(method).uri(path), |it, (name, value)| it.header(*name, *value));
    request.body(Body::empty()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_good_token_nothing_but_health_and_the_document_is_open() {
    let site = Site::new(&[("a", 1)]).await;
    let document: serde_json::Value = site.get("/openapi.json").await.json(StatusCode::OK);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace("{id}", "1").replace("{name}", "a").replace("{label}", "test");
            for headers in [&[("host", HOST)][..], &[("host", HOST), ("authorization", "Bearer guess")]] {
                let answered = site.send(bare(method.clone(), &path, headers)).await;
                if path == "/healthz" {
                    assert_eq!(answered.status, StatusCode::OK);
                } else {
                    assert_eq!(answered.failure(401).0, "unauthorized", "{method} {path}");
                    assert_eq!(answered.headers["www-authenticate"], "Bearer");
                }
            }
        }
    }
    for scheme in ["Basic", "bearer:", ""] {
        let header = format!("{scheme} {TOKEN}");
        let request = bare(Method::GET, "/v1/nodes", &[("host", HOST), ("authorization", &header)]);
        assert_eq!(site.send(request).await.failure(401).0, "unauthorized", "{header}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_job_opens_that_job_to_its_workers_and_nothing_else() {
    let site = Site::new(&[("a", 2)]).await;
    site.submit("one", 1).await;
    site.submit("two", 1).await;
    let orders =
        site.until("the launches", async || Some(site.world.running()).filter(|orders| orders.len() == 2)).await;
    let token = format!("Bearer {}", orders[0].secrets["POLLUX_TOKEN"]);
    assert_eq!(orders[0].job.0, 1);
    let send = async |method: Method, path: &str, body: &str| {
        let mut request = Site::request(method, path, body.to_owned());
        request.headers_mut().insert("authorization", token.parse().unwrap());
        site.send(request).await
    };
    let ready = r#"{"generation":1}"#;
    assert_eq!(send(Method::GET, "/v1/jobs/1/assignment", "").await.status, StatusCode::OK);
    assert_eq!(send(Method::GET, "/v1/jobs/1", "").await.status, StatusCode::OK);
    send(Method::POST, "/v1/jobs/1/ready", ready).await.is_done();
    for (method, path) in [
        (Method::GET, "/v1/jobs/2/assignment"),
        (Method::POST, "/v1/jobs/2/ready"),
        (Method::POST, "/v1/jobs/2/reports"),
        (Method::GET, "/v1/jobs/2"),
        (Method::GET, "/v1/jobs/99"),
        (Method::GET, "/v1/jobs/x"),
        (Method::GET, "/v1/jobs"),
        (Method::POST, "/v1/jobs"),
        (Method::POST, "/v1/jobs/1/cancel"),
        (Method::GET, "/v1/jobs/1/logs"),
        (Method::GET, "/v1/jobs/1/logs/stream"),
        (Method::POST, "/v1/nodes/a/drain"),
        (Method::POST, "/v1/tokens"),
        (Method::GET, "/metrics"),
        (Method::GET, "/v1/what-if"),
        (Method::POST, "/v1/what-if"),
        (Method::POST, "/v1/checkpoints/prune"),
    ] {
        let (code, message) = send(method.clone(), path, ready).await.failure(403);
        assert_eq!(code, "wrong_token", "{method} {path}");
        assert_eq!(message, "this token is for the workers of job 1 only: send a user's token");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_or_origin_is_refused_on_every_verb_whatever_the_token() {
    let site = Site::new(&[("a", 1)]).await;
    let bearer = format!("Bearer {TOKEN}");
    let methods = [Method::GET, Method::POST, Method::DELETE, Method::PUT, Method::OPTIONS, Method::HEAD];
    for method in methods {
        let refused = |answered: &Answered, code: &str| match method {
            Method::HEAD => assert_eq!(answered.status, StatusCode::FORBIDDEN),
            _ => assert_eq!(answered.failure(403).0, code, "{method}"),
        };
        let send = async |headers: &[(&str, &str)]| {
            let headers = [headers, &[("authorization", bearer.as_str())]].concat();
            site.send(bare(method.clone(), "/v1/nodes", &headers)).await
        };
        for host in ["evil.example:7878", "localhost", "127.0.0.1:1", "[::2]:7878"] {
            refused(&send(&[("host", host)]).await, "wrong_host");
        }
        refused(&send(&[]).await, "wrong_host");
        refused(&send(&[("host", HOST), ("host", HOST)]).await, "wrong_host");
        for origin in ["http://evil.example", "null", "https://localhost:7878", "http://localhost:1"] {
            refused(&send(&[("host", HOST), ("origin", origin)]).await, "wrong_origin");
        }
        let own = send(&[("host", HOST), ("origin", "http://localhost:7878")]).await;
        assert_ne!(own.status, StatusCode::FORBIDDEN, "{method}");
    }
    let absolute = bare(Method::GET, "http://evil.example/v1/nodes", &[("host", HOST), ("authorization", &bearer)]);
    assert_eq!(site.send(absolute).await.failure(403).0, "wrong_host");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_slowed_down_and_users_are_not() {
    let site = Site::new(&[("a", 1)]).await;
    let mut refused = None;
    for _ in 0..1_000 {
        let answered = site.send(bare(Method::GET, "/v1/nodes", &[("host", HOST)])).await;
        if answered.status != StatusCode::UNAUTHORIZED {
            refused = Some(answered);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!((refused.failure(429).0.as_str(), &refused.headers["retry-after"]), ("too_fast", &"1".parse().unwrap()));
    assert_eq!(site.get("/v1/nodes").await.status, StatusCode::OK);
}
