use std::time::{Duration, SystemTime};

use axum::http::{Method, StatusCode};
use pollux_api::{Assignment, ClusterStatus, Explanation, Job, JobDetail, JobList, NodeList, PruneReport, Role};
use pollux_backend::Exit;
use pollux_job::Phase;
use pollux_policy::JobId;

use crate::calls::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_submitted_listed_described_explained_and_cancelled() {
    let site = Site::new(&[("a", 2)]).await;
    let asked = r#"{"command":["python3","resnet.py"],"working_dir":"/","replicas":2}"#;
    let submitted = site.post("/v1/jobs", asked).await;
    let job: Job = submitted.json(StatusCode::CREATED);
    assert_eq!((job.id, job.name.as_str()), (1, "resnet"));
    assert_eq!(submitted.headers["location"], "/v1/jobs/1");
    site.until("the launch", async || site.world.running().get(1).cloned()).await;

    let detail: JobDetail = site.get("/v1/jobs/1").await.json(StatusCode::OK);
    assert_eq!((detail.generation, detail.job.phase, detail.replicas_logged), (1, Phase::Starting, vec![1, 2]));
    assert_eq!(detail.spec.command, ["python3", "resnet.py"]);
    let explanation: Explanation = site.get("/v1/jobs/1/explanation").await.json(StatusCode::OK);
    assert_eq!((explanation.id, explanation.replicas), (1, 2));
    let nodes: NodeList = site.get("/v1/nodes").await.json(StatusCode::OK);
    assert_eq!((nodes.nodes[0].name.as_str(), nodes.nodes[0].gpus_held), ("a", 2));
    let cluster: ClusterStatus = site.get("/v1/cluster").await.json(StatusCode::OK);
    assert_eq!((cluster.policy.as_str(), cluster.gpus, cluster.jobs[&Phase::Starting]), ("fifo", 2, 1));

    site.post("/v1/jobs/1/cancel", "").await.is_done();
    let ended = site.until("the end", async || {
        let detail: JobDetail = site.get("/v1/jobs/1").await.json(StatusCode::OK);
        Some(detail).filter(|detail| detail.job.ended_ms.is_some())
    });
    let ended = ended.await;
    assert_eq!((ended.job.phase, ended.replicas_logged), (Phase::Cancelled, vec![1, 2]));
    assert_eq!(site.post("/v1/jobs/1/cancel", "").await.failure(409), ("ended".into(), "job 1 has ended".into()));
    let told: Explanation = site.get("/v1/jobs/1/explanation").await.json(StatusCode::OK);
    assert!(told.sentences[0].starts_with("resnet (job 1) was cancelled "), "{:?}", told.sentences);
    assert_eq!(site.get("/v1/jobs/1/assignment").await.failure(409).0, "ended");
    assert_eq!(site.get("/v1/jobs/2").await.failure(404), ("unknown_job".into(), "job 2 is unknown".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_listing_have_every_job_once_live_ones_first() {
    let site = Site::new(&[("a", 1)]).await;
    for number in 1..=6 {
        site.submit(&format!("job-{number}"), 1).await;
    }
    for id in [2, 3, 5] {
        site.post(&format!("/v1/jobs/{id}/cancel"), "").await.is_done();
    }
    let list = async |query: &str| -> (Vec<u64>, Option<u64>) {
        let list: JobList = site.get(&format!("/v1/jobs{query}")).await.json(StatusCode::OK);
        assert_eq!(list.next_after_live, None);
        (list.jobs.iter().map(|job| job.id).collect(), list.next_before)
    };
    let live = async |query: &str| -> (Vec<u64>, Option<u64>) {
        let list: JobList = site.get(&format!("/v1/jobs{query}")).await.json(StatusCode::OK);
        assert_eq!(list.next_before, None);
        (list.jobs.iter().map(|job| job.id).collect(), list.next_after_live)
    };
    site.until("the ends", async || (list("?phase=cancelled").await.0.len() == 3).then_some(())).await;
    assert_eq!(list("").await, (vec![1, 4, 6, 5, 3, 2], None));
    assert_eq!(list("?limit=4").await, (vec![1, 4, 6, 5], Some(4)));
    assert_eq!(list("?limit=4&before=4").await, (vec![3, 2], None));
    assert_eq!(list("?limit=3").await, (vec![1, 4, 6], Some(6)));
    assert_eq!(live("?limit=2").await, (vec![1, 4], Some(4)));
    assert_eq!(list("?limit=2&after_live=4").await, (vec![6, 5], Some(4)));
    assert_eq!(live("?limit=1&phase=queued").await, (vec![4], Some(4)));
    assert_eq!(live("?limit=1&phase=queued&after_live=4").await, (vec![6], None));
    assert_eq!(list("?limit=1&before=6").await, (vec![5], Some(4)));
    assert_eq!(list("?phase=queued").await, (vec![4, 6], None));
    assert_eq!(list("?phase=cancelled&limit=2").await, (vec![5, 3], Some(3)));
    assert_eq!(list("?phase=failed").await, (vec![], None));
    assert_eq!(list("?search=JOB-&limit=4").await, (vec![1, 4, 6, 5], Some(4)));
    assert_eq!(list("?search=ob-3").await, (vec![3], None));
    assert_eq!(list("?search=4").await, (vec![4], None));
    assert_eq!(list("?search=job-&phase=cancelled&limit=1&before=5").await, (vec![3], Some(3)));
    assert_eq!(list("?search=nothing").await, (vec![], None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_its_assignment_says_that_it_trains_and_is_told_to_stop() {
    let site = Site::new(&[("a", 1)]).await;
    site.submit("job", 1).await;
    let told =
        site.until("the launch", async || Some(site.get("/v1/jobs/1/assignment").await).filter(|it| it.status == 200));
    let told: Assignment = told.await.json(StatusCode::OK);
    assert_eq!((told.generation, told.replicas.len()), (1, 1));
    site.post("/v1/jobs/1/ready", r#"{"generation":1}"#).await.is_done();
    assert_eq!(site.post("/v1/jobs/1/ready", r#"{"generation":7}"#).await.failure(409).0, "stale");
    let same: Assignment = site.get("/v1/jobs/1/assignment?after=1&wait_s=0.01").await.json(StatusCode::OK);
    assert_eq!(same, told, "after the wait the same is told again");

    site.world.set_stubborn(1, true);
    let (news, _) = tokio::join!(site.get("/v1/jobs/1/assignment?after=1&wait_s=60"), async {
        site.post("/v1/jobs/1/pause", "").await.is_done();
    });
    assert!(news.body.contains(r#""state":"stop""#), "{}", news.body);
    let (last, ()) = tokio::join!(site.get("/v1/jobs/1/assignment?after=9&wait_s=60"), async { site.state.close() });
    assert_eq!(last.status, StatusCode::OK, "a server that ends lets nobody wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_drained_and_undrained_by_name() {
    let site = Site::new(&[("a", 1), ("b", 1)]).await;
    let draining = async || -> Vec<bool> {
        let list: NodeList = site.get("/v1/nodes").await.json(StatusCode::OK);
        list.nodes.iter().map(|node| node.is_draining).collect()
    };
    site.until("both nodes", async || (draining().await.len() == 2).then_some(())).await;
    site.post("/v1/nodes/b/drain", "").await.is_done();
    assert_eq!(draining().await, [false, true]);
    site.post("/v1/nodes/b/undrain", "").await.is_done();
    assert_eq!(draining().await, [false, false]);
    assert_eq!(site.post("/v1/nodes/c/drain", "").await.failure(404).0, "unknown_node");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_metrics_and_statuses_tell_how_the_cluster_is() {
    let site = Site::new(&[("a", 2)]).await;
    site.submit("job", 2).await;
    site.until("the launch", async || site.world.running().get(1).cloned()).await;
    assert_eq!(site.get("/healthz").await.body, r#"{"status":"ok"}"#);
    let metrics = site.get("/metrics").await;
    assert_eq!(metrics.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    for line in [
        "pollux_jobs{phase=\"starting\"} 1",
        "pollux_jobs_waiting{reason=\"ready\"} 1",
        "pollux_jobs_waiting{reason=\"gpus\"} 0",
        "pollux_gpus 2",
        "pollux_gpus_held 2",
        "pollux_degraded 0",
        "pollux_group_changes_total{kind=\"launch\"} 1",
        "pollux_http_requests_total{status=\"2xx\"} 2",
        "# TYPE pollux_rounds counter",
        "# TYPE pollux_plan_seconds histogram",
        "pollux_http_request_seconds_count{route=\"/v1/jobs\",status=\"2xx\"} 1",
    ] {
        assert!(metrics.body.lines().any(|found| found == line), "{line} is not in\n{}", metrics.body);
    }
    site.server.handle().limit_pages(1);
    // The rest of the pages that the journal has is used up by smaller and smaller jobs.
    for bytes in [100_000, 10_000, 1_000, 10] {
        let filler = format!(r#"{{"command":["train","{}"],"working_dir":"/"}}"#, "x".repeat(bytes));
        let full = site.until("a full disk", async || {
            Some(site.post("/v1/jobs", filler.clone()).await).filter(|answered| answered.status != 201)
        });
        let full = full.await;
        assert_eq!((full.failure(503).0.as_str(), &full.headers["retry-after"]), ("full", &"1".parse().unwrap()));
    }
    site.world.exit(1, Exit::Code(0));
    site.world.exit(2, Exit::Code(0));
    site.until("that it is told", async || (site.get("/healthz").await.status == 503).then_some(())).await;
    assert!(site.get("/metrics").await.body.contains("\npollux_degraded 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_issued_used_listed_and_deleted() {
    let site = Site::new(&[("a", 1)]).await;
    let issued: pollux_api::IssuedToken =
        site.post("/v1/tokens", r#"{"label":"laptop","role":"admin"}"#).await.json(StatusCode::CREATED);
    let with_it = async || {
        let mut request = Site::request(Method::GET, "/v1/tokens", "");
        request.headers_mut().insert("authorization", format!("bearer {}", issued.token).parse().unwrap());
        site.send(request).await
    };
    let list: pollux_api::TokenList = with_it().await.json(StatusCode::OK);
    let listed: Vec<_> = list.tokens.iter().map(|token| (token.label.as_str(), token.role)).collect();
    assert_eq!(listed, [("laptop", Role::Admin), ("test", Role::Admin)]);
    assert!(list.tokens.iter().all(|token| token.last_used_ms >= token.created_ms && token.created_ms.is_some()));
    assert_eq!(site.post("/v1/tokens", r#"{"label":"laptop"}"#).await.failure(409).0, "label_used");
    for label in ["", "a b", "../x", &"x".repeat(65)] {
        assert_eq!(site.post("/v1/tokens", format!(r#"{{"label":"{label}"}}"#)).await.failure(422).0, "bad_label");
    }
    let delete = async |label: &str| site.send(Site::request(Method::DELETE, &format!("/v1/tokens/{label}"), "")).await;
    delete("laptop").await.is_done();
    assert_eq!(with_it().await.failure(401).0, "unauthorized");
    assert_eq!(delete("laptop").await.failure(404).0, "unknown_token");
    assert_eq!(delete("local").await.failure(409).0, "local_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_the_owner_of_the_token_and_its_secrets_are_shown_to_nobody() {
    let site = Site::new(&[("a", 1)]).await;
    let asked = |owner: &str| {
        format!(
            r#"{{"name":"x","command":["train"],"working_dir":"/","owner":"{owner}","env":{{"A":"1"}},
                "secrets":{{"KEY":"hunter2"}}}}"#
        )
    };
    let refused = site.post("/v1/jobs", asked("somebody")).await.failure(403);
    let said = r#"owner "somebody": expected "test", whose token this is, or no owner"#;
    assert_eq!(refused, ("wrong_owner".into(), said.into()));
    let job: Job = site.post("/v1/jobs", asked("")).await.json(StatusCode::CREATED);
    let order = site.until("the launch", async || site.world.running().first().cloned()).await;
    assert_eq!((order.environment["A"].as_str(), order.secrets["KEY"].as_str()), ("1", "hunter2"));
    assert!(!order.environment.contains_key("KEY"));
    for path in ["/v1/jobs/1", "/v1/jobs", "/v1/events", "/v1/jobs/1/explanation"] {
        let shown = site.get(path).await;
        assert!(!shown.body.contains("hunter2"), "{path}: {}", shown.body);
    }
    let detail: JobDetail = site.get(&format!("/v1/jobs/{}", job.id)).await.json(StatusCode::OK);
    assert_eq!((detail.spec.owner.as_str(), detail.spec.secrets["KEY"].reveal()), ("test", "***"));
    site.post("/v1/jobs/1/cancel", "").await.is_done();
    let ended = site.until("the end", async || {
        let shown = site.get("/v1/jobs/1").await;
        Some(shown.body).filter(|body| body.contains("cancelled"))
    });
    assert!(!ended.await.contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_others_and_says_so() {
    let site = Site::new(&[("a", 2)]).await;
    let first = site.submit("first", 1).await;
    let after =
        |which: &str| format!(r#"{{"name":"x","command":["train"],"working_dir":"/","depends_on":["{which}"]}}"#);
    let second: Job = site.post("/v1/jobs", after(&first.to_string())).await.json(StatusCode::CREATED);
    let third: Job = site.post("/v1/jobs", after(&format!("{first}:end"))).await.json(StatusCode::CREATED);
    let told: Explanation = site.get(&format!("/v1/jobs/{}/explanation", second.id)).await.json(StatusCode::OK);
    assert_eq!(told.wait.as_deref(), Some("jobs"));
    assert!(told.sentences.iter().any(|it| it == "It waits for job 1 to succeed."), "{:?}", told.sentences);
    assert_eq!(site.post("/v1/jobs", after("99")).await.failure(404).1, "job 99 is unknown");
    site.post(&format!("/v1/jobs/{first}/cancel"), "").await.is_done();
    let failed = site.until("its end", async || {
        let detail: JobDetail = site.get(&format!("/v1/jobs/{}", second.id)).await.json(StatusCode::OK);
        detail.job.failure
    });
    assert_eq!(failed.await, "depends on job 1, which did not succeed");
    let runs = || site.world.running().iter().any(|order| order.job.0 == third.id);
    site.until("the launch of the third", async || runs().then_some(())).await;
    let refused = site.until("the end to be written", async || {
        let refused = site.post("/v1/jobs", after(&first.to_string())).await;
        Some(refused).filter(|refused| refused.status != StatusCode::CREATED)
    });
    let said = "depends_on 1: it is cancelled; expected a job that is not over or has succeeded, or 1:end";
    assert_eq!(refused.await.failure(422).1, said);
    let met: Job = site.post("/v1/jobs", after("1:end")).await.json(StatusCode::CREATED);
    let detail: JobDetail = site.get(&format!("/v1/jobs/{}", met.id)).await.json(StatusCode::OK);
    let shown: Vec<String> = detail.spec.depends_on.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["1:end"], "it is shown, though it waits for nobody");
    let explained: Explanation = site.get(&format!("/v1/jobs/{}/explanation", met.id)).await.json(StatusCode::OK);
    assert!(!explained.sentences.join(" ").contains("job 1"), "{:?}", explained.sentences);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_says_who_owns_jobs_and_can_be_of_one_owner() {
    let site = Site::new(&[("a", 1)]).await;
    for name in ["first", "second", "third"] {
        site.submit(name, 1).await;
    }
    site.post("/v1/jobs/2/cancel", "").await.is_done();
    let listed = async |query: &str| -> Vec<(u64, String)> {
        let list: JobList = site.get(&format!("/v1/jobs{query}")).await.json(StatusCode::OK);
        list.jobs.into_iter().map(|job| (job.id, job.owner)).collect()
    };
    let all = listed("").await;
    let owner = all[0].1.clone();
    assert!(!owner.is_empty() && all.iter().all(|(_, other)| *other == owner), "{all:?}");
    let ended = async || Some(listed(&format!("?owner={owner}")).await).filter(|found| found.len() == 3);
    site.until("live and ended ones", ended).await;
    assert_eq!(listed("?owner=nobody").await, []);
    assert_eq!(listed("?owner=nobody&phase=cancelled").await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_of_jobs_that_are_over_are_pruned_and_no_others() {
    let site = Site::new(&[("a", 1)]).await;
    let old = SystemTime::now() - Duration::from_secs(1_000_000);
    for name in ["done", "paused", "queued"] {
        site.submit(name, 1).await;
    }
    site.until("the launch", async || site.world.running().pop()).await;
    site.world.exit(1, Exit::Code(0));
    site.until("the next launch", async || site.world.running_for(JobId(2)).pop()).await;
    site.post("/v1/jobs/2/pause", "").await.is_done();
    for job in [1, 2, 3, 99] {
        site.world.save_checkpoint(JobId(job), 10 * job, old);
    }
    let prune =
        async |body: &'static str| site.post("/v1/checkpoints/prune", body).await.json::<PruneReport>(StatusCode::OK);
    let kept = prune("{}").await;
    assert_eq!((kept.deleted.len(), kept.jobs_kept, kept.bytes_kept, kept.bytes_live), (0, 1, 10, 50));
    let dry = prune(r#"{"dry_run": true, "keep_for_s": 0}"#).await;
    assert_eq!((dry.deleted[0].job, dry.deleted[0].bytes, dry.bytes_freed, dry.dry_run), (1, 10, 10, true));
    assert!(dry.deleted[0].age_s < 500_000, "since the job ended, not since it saved");
    assert_eq!(site.world.saved(), [1, 2, 3, 99].map(JobId));
    let wet = prune(r#"{"keep_bytes": 9}"#).await;
    assert_eq!((wet.deleted.len(), wet.bytes_freed, wet.jobs_kept, wet.failures.len()), (1, 10, 0, 0));
    assert_eq!(
        site.world.saved(),
        [2, 3, 99].map(JobId),
        "not of a paused one, a live one, or one that was never ours"
    );
    site.post("/v1/checkpoints/prune", r#"{"dryrun": true}"#).await.failure(422);
}
