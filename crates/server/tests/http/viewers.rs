//! Tokens of others: who may see which jobs, who speaks for one, and where jobs are changed.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use pollux_api::{EventList, FORWARDED_AUTHORIZATION, JobList, NodeList, WhatIf};
use pollux_job::JobId;
use pollux_server::http::{Authenticator, HttpSettings, Identity, Unverified, Verification, app};

use crate::calls::{Answered, Site};

/// Says of a token what the token says of itself.
#[derive(Debug)]
struct Believing;

impl Authenticator for Believing {
    fn verify<'a>(&'a self, token: &'a str) -> Verification<'a> {
        Box::pin(async move {
            match token.split('/').collect::<Vec<_>>()[..] {
                ["user", name] => Ok(Some(Identity::User(name.to_owned()))),
                ["viewer", owner] => Ok(Some(Identity::Viewer(owner.to_owned()))),
                ["monitor"] => Ok(Some(Identity::Monitor("prometheus".to_owned()))),
                ["worker", owner, job] => {
                    Ok(Some(Identity::Worker { job: JobId(job.parse().unwrap()), owner: owner.to_owned() }))
                }
                ["later"] => Err(Unverified("nobody answers".to_owned())),
                _ => Ok(None),
            }
        })
    }
}

/// The routes of a site as an operator has them. Its jobs belong to `test`.
struct Cluster {
    site: Site,
    app: Router,
}

impl Cluster {
    async fn new() -> Self {
        let site = Site::new(&[("a", 2)]).await;
        site.submit("one", 1).await;
        site.submit("two", 1).await;
        site.until("the launches", async || (site.world.running().len() == 2).then_some(())).await;
        let mut settings = HttpSettings::new("127.0.0.1:7878".parse().unwrap());
        settings.authenticator = Some(Arc::new(Believing));
        settings.changed_elsewhere = Some("use kubectl");
        let app = app(site.state.clone().with(&settings));
        Self { site, app }
    }

    /// As it comes through the API server, which has another name.
    async fn send(&self, token: &str, method: Method, path: &str, body: &str) -> Answered {
        let request = Request::builder().method(method).uri(path).header("host", "api.example:6443");
        let request = request.header(FORWARDED_AUTHORIZATION, format!("Bearer {token}"));
        let request = request.header("content-type", "application/json").body(Body::from(body.to_owned())).unwrap();
        self.site.send_to(&self.app, request).await
    }

    async fn get(&self, token: &str, path: &str) -> Answered {
        self.send(token, Method::GET, path, "").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_the_jobs_of_one_owner_and_of_others_not_even_that_there_are_any() {
    let cluster = Cluster::new().await;
    let ids = |list: &JobList| list.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
    for (token, expected) in [("viewer/test", vec![1, 2]), ("viewer/other", vec![]), ("user/admin", vec![1, 2])] {
        assert_eq!(ids(&cluster.get(token, "/v1/jobs").await.json(StatusCode::OK)), expected);
        let nodes: NodeList = cluster.get(token, "/v1/nodes").await.json(StatusCode::OK);
        assert_eq!(nodes.nodes[0].jobs.iter().map(|job| job.id).collect::<Vec<_>>(), expected);
        let what_if: WhatIf = cluster.send(token, Method::POST, "/v1/what-if", "{}").await.json(StatusCode::OK);
        assert_eq!(what_if.jobs.iter().filter_map(|job| job.id).collect::<Vec<_>>(), expected);
        let events: EventList = cluster.get(token, "/v1/events").await.json(StatusCode::OK);
        assert_eq!(events.events.iter().any(|event| event.job.is_some()), !expected.is_empty());
        assert!(events.next_after > 0);
        for path in ["", "/explanation", "/logs", "/series"] {
            let answered = cluster.get(token, &format!("/v1/jobs/1{path}")).await;
            match expected.is_empty() {
                true => assert_eq!(answered.failure(404).0, "unknown_job", "{path}"),
                false => assert_eq!(answered.status, StatusCode::OK, "{path}"),
            }
        }
    }
    let asked_for_others: JobList = cluster.get("viewer/other", "/v1/jobs?owner=test").await.json(StatusCode::OK);
    assert_eq!(ids(&asked_for_others), [0; 0]);
    let probe = r#"{"changes": [{"cancel": {"job": 1}}]}"#;
    let probed = cluster.send("viewer/other", Method::POST, "/v1/what-if", probe).await;
    assert_eq!(probed.failure(404).0, "unknown_job");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_others_do_not_shorten_a_page() {
    let cluster = Cluster::new().await;
    let (all, seen) = ("/v1/events", "/v1/events?limit=1");
    let all: EventList = cluster.get("viewer/test", all).await.json(StatusCode::OK);
    let first: EventList = cluster.get("viewer/test", seen).await.json(StatusCode::OK);
    assert_eq!(first.events, all.events[..1]);
    let last = all.events.last().unwrap();
    let before = format!("/v1/events?limit=2&before={}", last.sequence + 1);
    let page: EventList = cluster.get("viewer/test", &before).await.json(StatusCode::OK);
    assert_eq!(page.events, all.events[all.events.len() - 2..]);
    let none: EventList = cluster.get("viewer/other", &before).await.json(StatusCode::OK);
    assert!(none.events.iter().all(|event| event.job.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_changes_nothing_and_where_jobs_are_changed_elsewhere_a_user_is_told_where() {
    let cluster = Cluster::new().await;
    for path in ["/v1/jobs", "/v1/jobs/1/cancel", "/v1/jobs/1/pause", "/v1/nodes/a/drain"] {
        let job = r#"{"command": ["x"], "working_dir": "/"}"#;
        let refused = cluster.send("viewer/test", Method::POST, path, job).await.failure(403);
        assert_eq!(refused.0, "wrong_token", "{path}");
        let refused = cluster.send("user/admin", Method::POST, path, job).await.failure(409);
        let sentence = "jobs and nodes are not changed here: use kubectl";
        assert_eq!((refused.0.as_str(), refused.1.as_str()), ("elsewhere", sentence), "{path}");
    }
    for path in ["/v1/tokens", "/metrics"] {
        assert_eq!(cluster.get("viewer/test", path).await.failure(403).0, "wrong_token");
    }
    let report = cluster.send("viewer/test", Method::POST, "/v1/jobs/1/ready", r#"{"generation":1}"#).await;
    assert_eq!(report.failure(403).0, "wrong_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_reads_numbers_and_nothing_else() {
    let cluster = Cluster::new().await;
    assert_eq!(cluster.get("monitor", "/metrics").await.status, StatusCode::OK);
    for path in ["/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/assignment", "/v1/tokens", "/v1/nodes", "/v1/cluster"] {
        let refused = cluster.get("monitor", path).await.failure(403);
        let expected = ("wrong_token".to_owned(), "this token is for /metrics only: send a user's token".to_owned());
        assert_eq!(refused, expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workers_token_opens_the_job_of_its_owner_and_nothing_else() {
    let cluster = Cluster::new().await;
    let own = "worker/test/1";
    assert_eq!(cluster.get(own, "/v1/jobs/1/assignment").await.status, StatusCode::OK);
    cluster.send(own, Method::POST, "/v1/jobs/1/ready", r#"{"generation":1}"#).await.is_done();
    for path in ["/v1/jobs/2/assignment", "/v1/jobs", "/v1/jobs/1/logs", "/v1/nodes", "/metrics", "/v1/tokens"] {
        assert_eq!(cluster.get(own, path).await.failure(403).0, "wrong_token", "{path}");
    }
    // Somebody elsewhere whose pod has a name like one of ours, and a job that is not there.
    for token in ["worker/other/1", "worker/test/9", "guess"] {
        assert_eq!(cluster.get(token, "/v1/jobs/1/assignment").await.failure(401).0, "unauthorized", "{token}");
    }
    let unknown = cluster.get("later", "/v1/jobs/1/assignment").await.failure(503);
    assert_eq!(unknown, ("unverified".to_owned(), "whose token this is cannot be checked: nobody answers".to_owned()));
}
