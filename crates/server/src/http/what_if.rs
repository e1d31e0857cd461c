use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use pollux_api::{Change, Failure, TrainsLike, WhatIf, WhatIfRequest};
use pollux_policy::JobId;
use tokio::task;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Json;
use super::failure::HttpError;
use super::state::AppState;
use crate::what_if::{Likeness, question};
use crate::{Refused, WhatIfError};

/// For users.
pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(what_if))
}

/// Simulates the cluster as it is, and with changes: when would its jobs be complete? Nothing is changed.
#[utoipa::path(post, path = "/v1/what-if", tag = "cluster", security(("token" = [])), request_body = WhatIfRequest,
    responses((status = 200, body = WhatIf), (status = "default", body = Failure)))]
async fn what_if(State(state): State<AppState>, Json(asked): Json<WhatIfRequest>) -> Result<Json<WhatIf>, HttpError> {
    let place = Arc::clone(&state.what_ifs).try_acquire_owned().map_err(|_| Refused::from(WhatIfError::Busy))?;
    let likenesses = likenesses(&state, &asked).await?;
    let look = state.handle.look(move |cluster| question(cluster, &asked.changes, &likenesses));
    let question = look.get().await??;
    let answer = task::spawn_blocking(move || {
        // Whoever asked may leave; the place is free when the work is done.
        let _place = place;
        question.answer(&|| state.is_closing())
    });
    let answer = answer.await.unwrap_or(Err(WhatIfError::Broken));
    Ok(Json(answer.map_err(Refused::from)?))
}

/// What is known of the jobs that others would train like, live or over.
async fn likenesses(state: &AppState, asked: &WhatIfRequest) -> Result<BTreeMap<u64, Likeness>, HttpError> {
    let mut likenesses = BTreeMap::new();
    for change in &asked.changes {
        let Change::Submit(job) = change else { continue };
        let TrainsLike::Job(id) = job.trains_like else { continue };
        let live = state.handle.look(move |cluster| {
            let job = cluster.engine().job(JobId(id))?;
            Some(Likeness::of_live(job, cluster.now()))
        });
        let likeness = match live.get().await? {
            Some(likeness) => likeness,
            None => Likeness::of_row(&state.row(JobId(id)).await?),
        };
        likenesses.extend(likeness.map(|likeness| (id, likeness)));
    }
    Ok(likenesses)
}
