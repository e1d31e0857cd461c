use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pollux_api::{ClusterStatus, Failure, NodeList};
use serde::Serialize;
use tracing::{info, warn};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Name};
use super::failure::HttpError;
use super::scope::{Changeable, Scope};
use super::state::AppState;
use crate::{NodeAction, views};

/// A scheduler that does not answer within this is not well.
const HEALTH_WAIT: Duration = Duration::from_secs(5);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(status)).routes(routes!(nodes))
}

pub(super) fn changing_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(drain)).routes(routes!(undrain))
}

pub(super) fn open_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(health))
}

/// Whether new work is taken.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    /// `ok`, or `degraded` while nothing can be written.
    status: &'static str,
}

/// Whether new work is taken.
#[utoipa::path(get, path = "/healthz", tag = "cluster", responses(
    (status = 200, body = Health), (status = 503, body = Health), (status = "default", body = Failure)))]
async fn health(State(state): State<AppState>) -> Response {
    let look = state.handle.look(|cluster| cluster.is_degraded).get();
    let trouble = match tokio::time::timeout(HEALTH_WAIT, look).await {
        Ok(Ok(false)) => None,
        Ok(Ok(true)) => Some("nothing can be written".to_owned()),
        Ok(Err(refused)) => Some(refused.to_string()),
        Err(_) => Some("the scheduler does not answer in time".to_owned()),
    };
    // Whoever asks does so every few seconds: a change is told once.
    let was_healthy = state.is_healthy.swap(trouble.is_none(), Ordering::Relaxed);
    match trouble {
        None => {
            if !was_healthy {
                info!("healthy again");
            }
            Json(Health { status: "ok" }).into_response()
        }
        Some(reason) => {
            if was_healthy {
                warn!(reason, "not healthy");
            }
            (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status: "degraded" })).into_response()
        }
    }
}

/// The cluster as a whole.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", security(("token" = [])),
    responses((status = 200, body = ClusterStatus), (status = "default", body = Failure)))]
async fn status(State(state): State<AppState>) -> Result<Json<ClusterStatus>, HttpError> {
    let policy = state.policy;
    Ok(Json(state.handle.look(move |cluster| views::cluster_status(cluster, policy)).get().await?))
}

/// Nodes, and who is on them.
#[utoipa::path(get, path = "/v1/nodes", tag = "cluster", security(("token" = [])),
    responses((status = 200, body = NodeList), (status = "default", body = Failure)))]
async fn nodes(State(state): State<AppState>, scope: Scope) -> Result<Json<NodeList>, HttpError> {
    let look = state.handle.look(move |cluster| {
        let mut list = views::nodes(cluster);
        for node in &mut list.nodes {
            node.jobs.retain(|job| scope.shows(cluster, job.id));
        }
        list
    });
    let (mut list, mut agents) = (look.get().await?, super::nodes::agents(&state));
    for node in &mut list.nodes {
        node.agent = agents.remove(&node.name);
    }
    Ok(Json(list))
}

/// Empties a node, and uses it no more.
#[utoipa::path(post, path = "/v1/nodes/{name}/drain", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The node")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn drain(_: Changeable, State(state): State<AppState>, Name(name): Name) -> Result<StatusCode, HttpError> {
    state.handle.act_on_node(&name, NodeAction::Drain).get().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Uses a node again.
#[utoipa::path(post, path = "/v1/nodes/{name}/undrain", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The node")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn undrain(_: Changeable, State(state): State<AppState>, Name(name): Name) -> Result<StatusCode, HttpError> {
    state.handle.act_on_node(&name, NodeAction::Undrain).get().await?;
    Ok(StatusCode::NO_CONTENT)
}
