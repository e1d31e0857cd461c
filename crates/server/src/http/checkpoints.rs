use std::time::Duration;

use axum::extract::State;
use pollux_api::{Failure, PruneReport, PruneRequest};
use tokio::time::{MissedTickBehavior, interval};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Json;
use super::failure::HttpError;
use super::state::AppState;
use crate::retention::{self, Retention};

/// How often checkpoints that are not to be kept are looked for.
const LOOKS: Duration = Duration::from_secs(600);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(prune))
}

/// Deletes old checkpoints of jobs that are over; never those of live jobs, paused ones included.
#[utoipa::path(post, path = "/v1/checkpoints/prune", tag = "cluster", security(("token" = [])),
    request_body = PruneRequest,
    responses((status = 200, body = PruneReport), (status = "default", body = Failure)))]
async fn prune(
    State(state): State<AppState>,
    Json(request): Json<PruneRequest>,
) -> Result<Json<PruneReport>, HttpError> {
    let PruneRequest { dry_run, keep_for_s, keep_bytes } = request;
    let retention = Retention {
        keep_for: keep_for_s.map_or(state.retention.keep_for, Duration::from_secs),
        keep_bytes: keep_bytes.unwrap_or(state.retention.keep_bytes),
    };
    Ok(Json(retention::prune(&state.handle, retention, dry_run).await?))
}

/// Deletes what is not to be kept every now and then, until the server ends.
pub(crate) async fn prune_regularly(state: AppState) -> std::io::Result<()> {
    let mut looks = interval(LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = state.closed() => return Ok(()),
        }
        match retention::prune(&state.handle, state.retention, false).await {
            // What was deleted, and what could not be, is logged there; a server that ends says so elsewhere.
            Ok(_) | Err(crate::Refused::Away) => {}
            Err(refused) => tracing::warn!(%refused, "old checkpoints were not looked for"),
        }
    }
}
