use axum::extract::State;
use pollux_api::{Failure, PlanStatus};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Json;
use super::failure::HttpError;
use super::scope::Scope;
use super::state::AppState;
use crate::explanation::plan_status;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(plan))
}

/// The last plan, and why it is as it is.
#[utoipa::path(get, path = "/v1/plan", tag = "cluster", security(("token" = [])),
    responses((status = 200, body = PlanStatus), (status = "default", body = Failure)))]
async fn plan(State(state): State<AppState>, scope: Scope) -> Result<Json<PlanStatus>, HttpError> {
    let policy = state.policy;
    let look = state.handle.look(move |cluster| {
        let mut plan = plan_status(cluster, policy);
        plan.changes.retain(|change| scope.shows(cluster, change.id));
        plan.kept.retain(|kept| scope.shows(cluster, kept.id));
        plan
    });
    Ok(Json(look.get().await?))
}
