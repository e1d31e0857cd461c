use std::collections::BTreeMap;

use axum::http::{Method, Request, StatusCode};
use pollux_api::{ClusterSeries, JobSeries, PlanStatus};
use pollux_server::Sample;
use tower::ServiceExt;

use crate::calls::{HOST, Site};
use crate::world::elastic;

async fn page(site: &Site, path: &str, tag: Option<&str>) -> axum::http::Response<axum::body::Body> {
    let request = Request::builder().method(Method::GET).uri(path).header("host", HOST);
    let request = tag.into_iter().fold(request, |request, tag| request.header("if-none-match", tag));
    site.app.clone().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_token_runs_only_its_own_script_and_is_sent_once() {
    let site = Site::new(&[("a", 1)]).await;
    for (path, content_type, caching) in [
        ("/", "text/html; charset=utf-8", "no-cache"),
        ("/?x", "text/html; charset=utf-8", "no-cache"),
        ("/assets/app.js?0123", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"),
        ("/assets/app.css?0123", "text/css; charset=utf-8", "public, max-age=31536000, immutable"),
    ] {
        let response = page(&site, path, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers().clone();
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!((text("content-type").as_str(), text("cache-control").as_str()), (content_type, caching));
        assert_eq!((text("content-encoding").as_str(), text("referrer-policy").as_str()), ("gzip", "no-referrer"));
        let policy = text("content-security-policy");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let again = page(&site, path, Some(&text("etag"))).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        assert_eq!(page(&site, path, Some("\"other\"")).await.status(), StatusCode::OK);
    }
    assert_eq!(page(&site, "/assets/other.js", None).await.status(), StatusCode::NOT_FOUND);
    let data = page(&site, "/healthz", None).await;
    assert_eq!(data.headers()["content-security-policy"], "default-src 'none'; frame-ancestors 'none'");
    assert_eq!(data.headers()["cache-control"], "no-store");
}

#[tokio::test(flavor = "multi_thread")]
async fn curves_tell_when_a_job_came_grew_and_went() {
    let site = Site::new(&[("a", 2)]).await;
    let id = site.submit("resnet", 2).await;
    site.until("the launch", async || (site.world.running().len() == 2).then_some(())).await;
    let look = async || site.state.series().record(&site.server.handle().look(Sample::of).get().await.unwrap());
    look().await;
    let cluster: ClusterSeries = site.get("/v1/cluster/series").await.json(StatusCode::OK);
    assert_eq!(
        (cluster.step_s, &cluster.gpus[..], &cluster.gpus_held[..], &cluster.running[..]),
        (1, &[2][..], &[2][..], &[1][..])
    );
    let job: JobSeries = site.get(&format!("/v1/jobs/{id}/series")).await.json(StatusCode::OK);
    assert_eq!((job.replicas, job.goodput), (vec![2], vec![None]));
    assert_eq!(site.get("/v1/jobs/99/series").await.failure(404).0, "unknown_job");
    let wrong = site.get("/v1/cluster/series?span_s=-1").await;
    assert_eq!(wrong.failure(400).0, "bad_query");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_says_what_it_changed_and_why_it_left_the_rest() {
    let site = Site::with_policy(&[("a", 1)], elastic()).await;
    let before: PlanStatus = site.get("/v1/plan").await.json(StatusCode::OK);
    assert_eq!((before.changed_ms, before.changes.len(), before.kept.len()), (None, 0, 0));
    site.submit("first", 1).await;
    let plan = async |site: &Site| site.get("/v1/plan").await.json::<PlanStatus>(StatusCode::OK);
    let launched =
        site.until("a plan", async || Some(plan(&site).await).filter(|plan| plan.changed_ms.is_some())).await;
    let [change] = &launched.changes[..] else { panic!("{launched:?}") };
    assert_eq!((change.name.as_str(), change.from, change.to, change.text.as_str()), ("first", 0, 1, "starts"));
    site.until("the launch", async || (site.world.running().len() == 1).then_some(())).await;
    tokio::task::block_in_place(|| site.world.speak(site.server.handle(), &mut BTreeMap::new()));
    site.submit("second", 1).await;
    let waiting = site
        .until("another plan", async || {
            Some(plan(&site).await).filter(|plan| plan.kept.iter().any(|kept| kept.id == 2))
        })
        .await;
    let kept = waiting.kept.iter().find(|kept| kept.id == 2).unwrap();
    assert_eq!((kept.gpus, kept.binding.as_str()), (0, "contention"));
    assert_eq!(kept.text, "needs 1 GPU at once; no GPU that it may use is free, and pollux puts other jobs first");
}
