use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use pollux_api::{Change, Failure, TrainsLike, WhatIf, WhatIfChoices, WhatIfRequest};
use pollux_policy::{JobId, PolicySettings};
use pollux_sim::ApplicationName;
use tokio::{task, time};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Json;
use super::failure::HttpError;
use super::scope::Scope;
use super::state::AppState;
use crate::views::job_of_row;
use crate::what_if::{JobTemplate, question};
use crate::{Refused, WhatIfError};

/// For a question whose asker has left, to notice and make room.
const PLACE_WAIT: Duration = Duration::from_secs(2);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(what_if, choices))
}

/// Simulates the cluster as it is, and with changes: when would its jobs be complete? Nothing is changed.
#[utoipa::path(post, path = "/v1/what-if", tag = "cluster", security(("token" = [])), request_body = WhatIfRequest,
    responses((status = 200, body = WhatIf), (status = "default", body = Failure)))]
async fn what_if(
    State(state): State<AppState>,
    scope: Scope,
    Json(mut asked): Json<WhatIfRequest>,
) -> Result<Json<WhatIf>, HttpError> {
    let place = time::timeout(PLACE_WAIT, Arc::clone(&state.what_ifs).acquire_owned()).await;
    let place = place.ok().and_then(Result::ok).ok_or_else(|| Refused::from(WhatIfError::Busy))?;
    for job in asked.changes.iter().flat_map(named) {
        scope.check(&state, job).await?;
    }
    let templates = templates(&state, &asked).await?;
    leave_out_met_dependencies(&state, &mut asked).await?;
    let look = state.handle.look(move |cluster| {
        let hidden: BTreeSet<u64> =
            cluster.live_jobs().map(|job| job.0).filter(|job| !scope.shows(cluster, *job)).collect();
        (question(cluster, &asked.changes, &templates), hidden)
    });
    let (question, hidden) = look.get().await?;
    let question = question?;
    let asker = Asker::default();
    let has_left = Arc::clone(&asker.has_left);
    let answer = task::spawn_blocking(move || {
        let _place = place;
        question.answer(&|| state.is_closing() || has_left.load(Ordering::Relaxed))
    });
    let answer = answer.await.unwrap_or(Err(WhatIfError::Broken));
    let mut answer = answer.map_err(Refused::from)?;
    answer.jobs.retain(|job| job.id.is_none_or(|id| !hidden.contains(&id)));
    Ok(Json(answer))
}

/// Jobs that a change is about.
fn named(change: &Change) -> Vec<JobId> {
    match change {
        Change::Submit(job) => {
            let like = match job.trains_like {
                TrainsLike::Job(id) => Some(JobId(id)),
                TrainsLike::Application(_) => None,
            };
            like.into_iter().chain(job.depends_on.iter().map(|dependency| dependency.job)).collect()
        }
        Change::Cancel { job } | Change::Pause { job } | Change::Resume { job } => vec![JobId(*job)],
        Change::AddNodes { .. } | Change::Drain { .. } | Change::Policy { .. } => Vec::new(),
    }
}

/// Notices that nobody waits for an answer any more: the request is dropped, and this with it.
#[derive(Default)]
struct Asker {
    has_left: Arc<AtomicBool>,
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.has_left.store(true, Ordering::Relaxed);
    }
}

/// What changes of a what-if may name.
#[utoipa::path(get, path = "/v1/what-if", tag = "cluster", security(("token" = [])),
    responses((status = 200, body = WhatIfChoices), (status = "default", body = Failure)))]
async fn choices() -> Json<WhatIfChoices> {
    let policies = PolicySettings::all().into_iter().filter(|policy| !policy.needs_oracle());
    Json(WhatIfChoices {
        policies: policies.map(|policy| policy.name().to_owned()).collect(),
        applications: ApplicationName::ALL.iter().map(|name| name.as_str().to_owned()).collect(),
    })
}

/// What is known of the jobs that others would train like, live or over.
async fn templates(state: &AppState, asked: &WhatIfRequest) -> Result<BTreeMap<u64, JobTemplate>, HttpError> {
    let mut templates = BTreeMap::new();
    for change in &asked.changes {
        let Change::Submit(job) = change else { continue };
        let TrainsLike::Job(id) = job.trains_like else { continue };
        let live = state.handle.look(move |cluster| {
            let job = cluster.engine().job(JobId(id))?;
            Some(JobTemplate::of_live(job, cluster.now()))
        });
        let likeness = match live.get().await? {
            Some(likeness) => likeness,
            None => JobTemplate::of_row(&state.row(JobId(id)).await?),
        };
        templates.extend(likeness.map(|likeness| (id, likeness)));
    }
    Ok(templates)
}

/// As at a submission: of the jobs that another waits for only those count that are not over.
async fn leave_out_met_dependencies(state: &AppState, asked: &mut WhatIfRequest) -> Result<(), HttpError> {
    for change in &mut asked.changes {
        let Change::Submit(job) = change else { continue };
        let mut unmet = Vec::new();
        for dependency in std::mem::take(&mut job.depends_on) {
            let live = state.handle.look(move |cluster| cluster.engine().job(dependency.job).is_some());
            if live.get().await? {
                unmet.push(dependency);
            } else {
                let phase = job_of_row(&state.row(dependency.job).await?).phase;
                Refused::unless_met(dependency, phase.word())?;
            }
        }
        job.depends_on = unmet;
    }
    Ok(())
}
