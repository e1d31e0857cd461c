//! What workers say and hear.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use pollux_api::{Assignment, AssignmentState, Failure, ReadyRequest, Rendezvous, RendezvousRequest, ReportRequest};
use pollux_engine::Refusal;
use pollux_policy::JobId;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Id, Json, Query};
use super::failure::HttpError;
use super::state::AppState;
use crate::{Caller, Metrics};

/// Nobody waits longer for a change.
const WAIT_MAX_S: f64 = 60.0;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(assignment))
        .routes(routes!(report))
        .routes(routes!(ready))
        .routes(routes!(rendezvous))
}

// Workers of a later version may ask for more.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct AssignmentQuery {
    /// The newest generation that is known already.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    after: u64,
    /// Whether to answer, too, once that generation has a rendezvous.
    #[serde(default)]
    rendezvous: bool,
    /// How long to wait for another one, 60 at most.
    #[serde(default)]
    #[param(minimum = 0)]
    wait_s: f64,
}

/// Who belongs to the newest group of a job. Waits for a generation above `after`, for an order to stop,
/// or for the rendezvous.
#[utoipa::path(get, path = "/v1/jobs/{id}/assignment", tag = "workers", security(("token" = [])),
    params(Id, AssignmentQuery),
    responses((status = 200, body = Assignment), (status = "default", body = Failure)))]
async fn assignment(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Id(job): Id,
    Query(query): Query<AssignmentQuery>,
) -> Result<Json<Assignment>, HttpError> {
    if query.wait_s.is_nan() || query.wait_s < 0.0 {
        return Err(HttpError::Query { reason: format!("wait_s {}: expected 0 to {WAIT_MAX_S}", query.wait_s) });
    }
    let Some(mut watch) = state.handle.assignment(job) else { return Err(no_group(&state, job).await) };
    let _waiting = Waiting::new(&state);
    let is_news = |told: &Assignment| {
        let meets = query.rendezvous && matches!(told.rendezvous, Rendezvous::At(_));
        told.generation > query.after || told.state == AssignmentState::Stop || meets
    };
    tokio::select! {
        // Whatever it is that ends the wait, the newest is told.
        _ = watch.wait_for(is_news) => {}
        () = tokio::time::sleep(Duration::from_secs_f64(query.wait_s.min(WAIT_MAX_S))) => {}
        () = state.closed() => {}
    }
    let mut assignment = watch.borrow().clone();
    if matches!(caller, Caller::Job(_)) {
        assignment.key = state.group_key(job);
    }
    Ok(Json(assignment))
}

/// A worker that waits for a change, while it does.
struct Waiting(Arc<Metrics>);

impl Waiting {
    fn new(state: &AppState) -> Self {
        let metrics = Arc::clone(&state.handle.metrics);
        metrics.waiting_workers.inc();
        Self(metrics)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting_workers.dec();
    }
}

async fn no_group(state: &AppState, job: JobId) -> HttpError {
    match state.row(job).await {
        Err(error) => error,
        Ok(row) if row.ended.is_some() => Refusal::EndedJob { job }.into(),
        Ok(_) => HttpError::NoGroup { job },
    }
}

/// What the agent of a job has learned.
#[utoipa::path(post, path = "/v1/jobs/{id}/reports", tag = "workers", security(("token" = [])),
    params(Id), request_body = ReportRequest,
    responses((status = 204), (status = "default", body = Failure)))]
async fn report(
    State(state): State<AppState>,
    Id(job): Id,
    Json(report): Json<ReportRequest>,
) -> Result<StatusCode, HttpError> {
    state.handle.report(job, report).get().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Every rank of a generation trains.
#[utoipa::path(post, path = "/v1/jobs/{id}/ready", tag = "workers", security(("token" = [])),
    params(Id), request_body = ReadyRequest,
    responses((status = 204), (status = "default", body = Failure)))]
async fn ready(
    State(state): State<AppState>,
    Id(job): Id,
    Json(ready): Json<ReadyRequest>,
) -> Result<StatusCode, HttpError> {
    state.handle.ready(job, ready).get().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where rank 0 of a generation waits for the others.
#[utoipa::path(post, path = "/v1/jobs/{id}/rendezvous", tag = "workers", security(("token" = [])),
    params(Id), request_body = RendezvousRequest,
    responses((status = 204), (status = "default", body = Failure)))]
async fn rendezvous(
    State(state): State<AppState>,
    Id(job): Id,
    Json(rendezvous): Json<RendezvousRequest>,
) -> Result<StatusCode, HttpError> {
    state.handle.rendezvous(job, rendezvous).get().await?;
    Ok(StatusCode::NO_CONTENT)
}
