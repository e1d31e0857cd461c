//! A defect in what only looks ends one answer and nothing else.

use axum::Router;
use axum::routing::get;
use pollux_server::http::app_with;

use crate::calls::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_view_or_a_handler_that_panics_answers_500_and_the_scheduler_goes_on() {
    let mut site = Site::new(&[("a", 1)]).await;
    let handle = site.server.handle().clone();
    let look = async move || handle.look(|_| -> String { panic!("a broken view") }).get().await;
    let broken = Router::new()
        .route("/broken-view", get(look))
        .route("/broken-handler", get(async || -> String { panic!("a broken handler") }));
    site.app = app_with(site.state.clone(), broken);
    let (code, message) = site.get("/broken-view").await.failure(500);
    assert_eq!((code.as_str(), message.contains("which runs on")), ("broken", true), "{message}");
    let (code, message) = site.get("/broken-handler").await.failure(500);
    assert_eq!((code.as_str(), message.contains("panic")), ("broken", false), "{message}");
    assert_eq!(site.submit("job", 1).await, 1, "the scheduler takes work");
    site.until("the launch", async || site.world.running().first().cloned()).await;
    let metrics = site.get("/metrics").await.body;
    assert!(metrics.contains("pollux_http_refusals_total{reason=\"broken\"} 2"), "{metrics}");
}
