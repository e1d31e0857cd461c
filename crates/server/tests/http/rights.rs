//! Who may do what: every attempt at a job of somebody else.

use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use pollux_api::{EventList, IssuedToken, JobDetail, JobList, Role, TokenList};
use pollux_server::http::{HttpSettings, Need, RIGHTS, Visibility, app};
use serde_json::Value;

use crate::bad_input::report;
use crate::calls::Site;

/// A job of `ada` that runs, with a variable and a secret.
const JOB: &str = r#"{"name":"hers","command":["train"],"working_dir":"/","env":{"COLOUR":"ultramarine"},
    "secrets":{"KEY":"hunter2"}}"#;

struct Users {
    site: Site,
    ada: String,
    bob: String,
    eve: String,
}

impl Users {
    /// An owner, another member, and a viewer.
    async fn new() -> Self {
        let site = Site::new(&[("a", 2)]).await;
        let ada = site.token_of("ada", Role::Member).await;
        let bob = site.token_of("bob", Role::Member).await;
        let eve = site.token_of("eve", Role::Viewer).await;
        let job: Value = site.send_as(&ada, Method::POST, "/v1/jobs", JOB).await.json(StatusCode::CREATED);
        assert_eq!((&job["id"], &job["owner"]), (&1.into(), &"ada".into()));
        site.until("the launch", async || (site.world.running().len() == 1).then_some(())).await;
        Self { site, ada, bob, eve }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_has_every_route_once_and_no_other() {
    let site = Site::new(&[("a", 1)]).await;
    let document: Value = site.get("/openapi.json").await.json(StatusCode::OK);
    let documented: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(|it| (it.to_uppercase(), path.clone())))
        .collect();
    let table: BTreeSet<_> = RIGHTS.iter().map(|(method, path, _)| (method.to_string(), path.to_string())).collect();
    assert_eq!(table, documented);
    assert_eq!(table.len(), RIGHTS.len());
    for (method, path, need) in RIGHTS {
        let is_read = matches!(need, Need::Nothing | Need::Numbers | Need::Look | Need::LookAtJob | Need::ReadJob);
        assert!(method == "GET" || path == "/v1/what-if" || !is_read, "{method} {path} changes something");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_the_owner_and_admins_changes_a_job_or_reads_what_is_its_own() {
    let users = Users::new().await;
    let report = report().to_string();
    let meets = r#"{"generation":1,"address":"10.0.0.1","port":1}"#;
    let attempts = [
        (Method::GET, "/v1/jobs/1/logs", ""),
        (Method::GET, "/v1/jobs/1/logs/stream", ""),
        (Method::GET, "/v1/jobs/1/assignment", ""),
        (Method::POST, "/v1/jobs/1/ready", r#"{"generation":1}"#),
        (Method::POST, "/v1/jobs/1/reports", report.as_str()),
        (Method::POST, "/v1/jobs/1/rendezvous", meets),
        (Method::POST, "/v1/jobs/1/pause", ""),
        (Method::POST, "/v1/jobs/1/resume", ""),
        (Method::POST, "/v1/jobs/1/cancel", ""),
    ];
    for (method, path, body) in &attempts {
        let refused = users.site.send_as(&users.bob, method.clone(), path, body).await.failure(403);
        let said = r#"job 1 belongs to "ada": "bob" may look at it, and only its owner and admins may do this"#;
        assert_eq!(refused, ("not_owner".to_owned(), said.to_owned()), "{method} {path}");
        let refused = users.site.send_as(&users.eve, method.clone(), path, body).await.failure(403);
        let expected = match path.contains("/logs") {
            true => ("not_owner".to_owned(), said.replace("bob", "eve")),
            false => ("wrong_role".to_owned(), "eve is a viewer: this needs a member or an admin".to_owned()),
        };
        assert_eq!(refused, expected, "{method} {path}");
    }
    let detail: JobDetail = users.site.get("/v1/jobs/1").await.json(StatusCode::OK);
    assert!(!detail.job.phase.is_ended() && detail.spec.env["COLOUR"] == "ultramarine", "nothing was done");
    // The owner may do all of it, and so may an admin.
    for (method, path, body) in attempts.iter().filter(|(_, path, _)| !path.ends_with("/stream")) {
        let answered = users.site.send_as(&users.ada, method.clone(), path, body).await;
        assert!(answered.status.is_success(), "{method} {path}: {}", answered.body);
    }
    assert_eq!(users.site.post("/v1/jobs/1/cancel", "").await.failure(409).0, "ended", "an admin gets as far");
    let refused = users.site.send_as(&users.bob, Method::GET, "/v1/jobs/1/logs", "").await.failure(403);
    assert_eq!(refused.0, "not_owner", "also when it is over");
    for (path, status, code) in [("/v1/jobs/9/cancel", 404, "unknown_job"), ("/v1/jobs/x/cancel", 400, "bad_path")] {
        let refused = users.site.send_as(&users.bob, Method::POST, path, "").await.failure(status);
        assert_eq!(refused.0, code, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_look_at_a_job_without_its_variables() {
    let users = Users::new().await;
    for (token, sees) in [(&users.ada, true), (&users.bob, false), (&users.eve, false)] {
        let detail = users.site.send_as(token, Method::GET, "/v1/jobs/1", "").await;
        assert_eq!(detail.status, StatusCode::OK);
        assert_eq!(["COLOUR", "ultramarine", "KEY"].map(|text| detail.body.contains(text)), [sees; 3]);
        for path in ["/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/explanation", "/v1/jobs/1/series", "/v1/events", "/metrics"]
        {
            let shown = users.site.send_as(token, Method::GET, path, "").await;
            assert_eq!(shown.status, StatusCode::OK, "{path}");
            assert!(!shown.body.contains("hunter2"), "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_submit_and_only_admins_change_what_is_everybodys() {
    let users = Users::new().await;
    let refused = users.site.send_as(&users.eve, Method::POST, "/v1/jobs", JOB).await.failure(403);
    assert_eq!(refused.1, "eve is a viewer: this needs a member or an admin");
    let for_ada = JOB.replace("\"name\"", "\"owner\":\"ada\",\"name\"");
    assert_eq!(users.site.send_as(&users.bob, Method::POST, "/v1/jobs", &for_ada).await.failure(403).0, "wrong_owner");
    for (method, path, _) in RIGHTS.iter().filter(|(_, _, need)| *need == Need::Administer) {
        let path = path.replace("{name}", "a").replace("{label}", "ada");
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        for (token, said) in [(&users.bob, "bob is a member"), (&users.eve, "eve is a viewer")] {
            let refused = users.site.send_as(token, method.clone(), &path, r#"{"label":"bob","role":"admin"}"#).await;
            let expected = ("wrong_role".to_owned(), format!("{said}: this needs an admin"));
            assert_eq!(refused.failure(403), expected, "{method} {path}");
        }
    }
    let list: TokenList = users.site.get("/v1/tokens").await.json(StatusCode::OK);
    let listed: Vec<_> = list.tokens.iter().map(|token| (token.label.as_str(), token.role)).collect();
    let expected = [("ada", Role::Member), ("bob", Role::Member), ("eve", Role::Viewer), ("test", Role::Admin)];
    assert_eq!(listed, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_members_see_their_own_jobs_those_of_others_are_not_there() {
    let users = Users::new().await;
    let mut settings = HttpSettings::new("127.0.0.1:7878".parse().unwrap());
    settings.visibility = Visibility::Own;
    let site = Site { app: app(users.site.state.clone().with(&settings)), ..users.site };
    for (token, count) in [(&users.ada, 1), (&users.bob, 0), (&users.eve, 1)] {
        let list: JobList = site.send_as(token, Method::GET, "/v1/jobs", "").await.json(StatusCode::OK);
        assert_eq!(list.jobs.len(), count);
        let events: EventList = site.send_as(token, Method::GET, "/v1/events", "").await.json(StatusCode::OK);
        assert_eq!(events.events.iter().any(|event| event.job.is_some()), count > 0);
    }
    for (method, path) in [(Method::GET, ""), (Method::GET, "/logs"), (Method::POST, "/cancel")] {
        let refused = site.send_as(&users.bob, method, &format!("/v1/jobs/1{path}"), "").await.failure(404);
        assert_eq!(refused.0, "unknown_job", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_at_its_time_and_its_user_may_have_another() {
    let site = Site::new(&[("a", 1)]).await;
    let asked = r#"{"label":"guest","role":"viewer","expires_s":1}"#;
    let issued: IssuedToken = site.post("/v1/tokens", asked).await.json(StatusCode::CREATED);
    assert!(issued.expires_ms.is_some());
    site.until("the end of the token", async || {
        let answered = site.send_as(&issued.token, Method::GET, "/v1/jobs", "").await;
        (answered.status == StatusCode::UNAUTHORIZED).then_some(())
    })
    .await;
    let _: IssuedToken = site.post("/v1/tokens", asked).await.json(StatusCode::CREATED);
    for expires_s in [0, 3_650 * 86_400 + 1, u64::MAX] {
        let asked = format!(r#"{{"label":"other","expires_s":{expires_s}}}"#);
        let refused = site.post("/v1/tokens", asked).await.failure(422);
        let said = format!("expires_s {expires_s}: expected 1 second to 3650 days");
        assert_eq!(refused, ("bad_lifetime".to_owned(), said));
    }
}
