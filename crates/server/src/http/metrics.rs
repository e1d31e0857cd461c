use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use pollux_api::Failure;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::failure::HttpError;
use super::state::AppState;
use crate::explanation::waiting_jobs;
use crate::metrics::Reading;
use crate::views;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "cluster", security(("token" = [])), responses(
    (status = 200, body = String, content_type = "application/openmetrics-text; version=1.0.0"),
    (status = "default", body = Failure)))]
async fn metrics(State(state): State<AppState>) -> Result<Response, HttpError> {
    let policy = state.policy;
    let look = state.handle.look(move |cluster| Reading {
        waiting: waiting_jobs(cluster),
        status: views::cluster_status(cluster, policy),
        nodes: cluster.engine().nodes().len(),
        events: cluster.last_event(),
        journal_records: cluster.journal_records(),
    });
    let text = state.handle.metrics().text(&look.get().await?);
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response())
}
