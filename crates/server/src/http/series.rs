use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use pollux_api::{ClusterSeries, Failure, JobSeries};
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::warn;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Id, Json, Query};
use super::failure::HttpError;
use super::scope::Visible;
use super::state::AppState;
use crate::Refused;
use crate::series::{Sample, Series};

const SPAN_DEFAULT_S: u64 = 600;
const LOOKS: Duration = Duration::from_secs(1);
/// A server that is killed forgets what it drew since; nothing else depends on it.
const SAVES: Duration = Duration::from_secs(300);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(cluster)).routes(routes!(job))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SeriesQuery {
    /// So many seconds back, 600 unless told; the further, the larger the steps.
    #[param(minimum = 1, maximum = 18_446_744_073_709_551_615_u64)]
    span_s: Option<u64>,
}

/// The cluster over time, up to two weeks back.
#[utoipa::path(get, path = "/v1/cluster/series", tag = "cluster", security(("token" = [])), params(SeriesQuery),
    responses((status = 200, body = ClusterSeries), (status = "default", body = Failure)))]
async fn cluster(State(state): State<AppState>, Query(query): Query<SeriesQuery>) -> Json<ClusterSeries> {
    Json(state.series.cluster(query.span_s.unwrap_or(SPAN_DEFAULT_S)))
}

/// A job over its life; of those that are over, the last 1,000 are remembered, in fewer points.
#[utoipa::path(get, path = "/v1/jobs/{id}/series", tag = "jobs", security(("token" = [])), params(Id),
    responses((status = 200, body = JobSeries), (status = "default", body = Failure)))]
async fn job(State(state): State<AppState>, Visible(id): Visible) -> Result<Json<JobSeries>, HttpError> {
    // Nothing is known of a curve that a job does not have, but of a job that does not exist there is none.
    state.row(id).await?;
    Ok(Json(state.series.job(id.0)))
}

/// Looks at the cluster every second, until the server ends.
pub(crate) async fn sample(state: AppState) -> std::io::Result<()> {
    let mut looks = interval(LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut saved = Instant::now();
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = state.closed() => break,
        }
        match state.handle.look(Sample::of).get().await {
            Ok(sample) => state.series.record(&sample),
            Err(Refused::Away) => break,
            Err(reason) => warn!(%reason, "a moment is missing from the curves"),
        }
        if saved.elapsed() >= SAVES {
            saved = Instant::now();
            save(&state.series, &state.state_dir).await;
        }
    }
    save(&state.series, &state.state_dir).await;
    Ok(())
}

async fn save(series: &Arc<Series>, state_dir: &Arc<Path>) {
    let (series, state_dir) = (Arc::clone(series), Arc::clone(state_dir));
    match tokio::task::spawn_blocking(move || series.save(&state_dir)).await {
        Ok(Ok(())) => {}
        // Nothing but pictures depends on them.
        Ok(Err(error)) => warn!(%error, "curves are not saved"),
        Err(error) => warn!(%error, "curves are not saved"),
    }
}
