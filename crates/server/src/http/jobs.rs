use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use pollux_api::{Explanation, Failure, Job, JobDetail, JobList, Phase, SubmitRequest};
use pollux_policy::JobId;
use pollux_store::{EndedQuery, JobRow, SubmittedJob};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Id, Json, Query, page};
use super::failure::HttpError;
use super::state::AppState;
use crate::clock::milliseconds;
use crate::{Action, JobRequest, Refused, explain, explain_ended, views};

/// For users.
pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(submit, list))
        .routes(routes!(explanation))
        .routes(routes!(cancel))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// For workers, too.
pub(super) fn own_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(detail))
}

/// Submits a job. It is durable when this is answered.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", security(("token" = [])), request_body = SubmitRequest,
    responses((status = 201, body = Job, headers(("Location" = String))), (status = "default", body = Failure)))]
async fn submit(State(state): State<AppState>, Json(asked): Json<SubmitRequest>) -> Result<Response, HttpError> {
    let request = views::job_request(asked);
    let asked_for = as_asked_for(&request)?;
    let id = state.handle.submit(request).get().await?;
    let live = state.handle.look(move |cluster| cluster.engine().job(id).map(|job| views::job(cluster, job)));
    // It is durable: whatever keeps us from a look at it, whoever asked must not ask again.
    let job = live.get().await.ok().flatten().unwrap_or(Job { id: id.0, ..asked_for });
    let location = format!("/v1/jobs/{}", id.0);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(job)).into_response())
}

/// A job of which nothing is known but the request.
fn as_asked_for(request: &JobRequest) -> Result<Job, HttpError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let submitted = SubmittedJob { id: JobId(0), submitted: milliseconds(now), request: crate::text(request) };
    readable(submitted.id, views::job_of_row(&JobRow { submitted, ended: None }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobsQuery {
    /// Only jobs in this phase.
    phase: Option<Phase>,
    /// Only jobs with this in their names, or as their number. Capitals of ASCII make no difference.
    #[param(max_length = 128)]
    search: Option<String>,
    /// How many, 100 unless told.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only live jobs with numbers above, then ended ones: what `next_after_live` of the page before said.
    after_live: Option<u64>,
    /// Only ended jobs with numbers below: what `next_before` of the page before said.
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    before: Option<u64>,
}

/// Live jobs in order of submission, then ended ones, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", security(("token" = [])), params(JobsQuery),
    responses((status = 200, body = JobList), (status = "default", body = Failure)))]
async fn list(State(state): State<AppState>, Query(query): Query<JobsQuery>) -> Result<Json<JobList>, HttpError> {
    let JobsQuery { phase, search, after_live, before, .. } = query;
    let limit = page(query.limit)?;
    let ended_phase = phase.filter(|phase| matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Cancelled));
    let mut jobs = Vec::new();
    if before.is_none() && ended_phase.is_none() {
        let search = search.clone();
        let look = state.handle.look(move |cluster| {
            let is_asked_for = |job: &&pollux_engine::Job| {
                after_live.is_none_or(|after| job.id().0 > after)
                    && search.as_deref().is_none_or(|search| is_found(job, search))
                    && phase.is_none_or(|phase| views::phase(job.phase()) == phase)
            };
            let live = cluster.engine().jobs().filter(is_asked_for);
            live.take(limit + 1).map(|job| views::job(cluster, job)).collect()
        });
        jobs = look.get().await?;
    }
    let has_more = jobs.len() > limit;
    jobs.truncate(limit);
    if has_more || (phase.is_some() && ended_phase.is_none()) {
        let next_after_live = jobs.last().filter(|_| has_more).map(|job| job.id);
        return Ok(Json(JobList { jobs, next_after_live, next_before: None }));
    }
    let room = limit - jobs.len();
    let (before, phase) = (before.map(JobId), ended_phase.map(Phase::word));
    let read = state
        .handle
        .read(move |reader| reader.ended_jobs(EndedQuery { before, phase, search: search.as_deref() }, room + 1));
    let rows = read.await?;
    let next_before = rows.get(room).map(|row| row.submitted.id.0 + 1);
    // One that has ended since the look is there already.
    let live = jobs.len();
    for row in rows.iter().take(room) {
        let is_new = !jobs[..live].iter().any(|job: &Job| job.id == row.submitted.id.0);
        jobs.extend(Some(row).filter(|_| is_new).and_then(views::job_of_row));
    }
    Ok(Json(JobList { jobs, next_after_live: None, next_before }))
}

/// As the store finds those that are over.
fn is_found(job: &pollux_engine::Job, search: &str) -> bool {
    let name = job.spec().name.to_ascii_lowercase();
    name.contains(&search.to_ascii_lowercase()) || job.id().0.to_string() == search
}

/// Everything that is known of a job.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 200, body = JobDetail), (status = "default", body = Failure)))]
async fn detail(State(state): State<AppState>, Id(id): Id) -> Result<Json<JobDetail>, HttpError> {
    let live = state.handle.look(move |cluster| {
        let job = cluster.engine().job(id)?;
        views::job_detail(cluster, job)
    });
    if let Some(detail) = live.get().await? {
        return Ok(Json(detail));
    }
    let row = state.row(id).await?;
    readable(id, views::detail_of_row(&row, state.handle.checkpoint_dir(id))).map(Json)
}

/// Why a job has what it has, and when that may change.
#[utoipa::path(get, path = "/v1/jobs/{id}/explanation", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 200, body = Explanation), (status = "default", body = Failure)))]
async fn explanation(State(state): State<AppState>, Id(id): Id) -> Result<Json<Explanation>, HttpError> {
    let look = state.handle.look(move |cluster| (explain(cluster, id), cluster.now()));
    let (live, now) = look.get().await?;
    if let Some(explanation) = live {
        return Ok(Json(explanation));
    }
    let row = state.row(id).await?;
    let ended = readable(id, views::job_of_row(&row))?;
    Ok(Json(explain_ended(&ended, now.0)))
}

/// Ends a job.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 204), (status = "default", body = Failure)))]
async fn cancel(State(state): State<AppState>, Id(id): Id) -> Result<StatusCode, HttpError> {
    act(&state, id, Action::Cancel).await
}

/// Sets a job aside.
#[utoipa::path(post, path = "/v1/jobs/{id}/pause", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 204), (status = "default", body = Failure)))]
async fn pause(State(state): State<AppState>, Id(id): Id) -> Result<StatusCode, HttpError> {
    act(&state, id, Action::Pause).await
}

/// Lets a job go on.
#[utoipa::path(post, path = "/v1/jobs/{id}/resume", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 204), (status = "default", body = Failure)))]
async fn resume(State(state): State<AppState>, Id(id): Id) -> Result<StatusCode, HttpError> {
    act(&state, id, Action::Resume).await
}

async fn act(state: &AppState, job: JobId, action: Action) -> Result<StatusCode, HttpError> {
    state.handle.act(job, action).get().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A row of ours that makes no sense is our fault.
fn readable<T>(job: JobId, view: Option<T>) -> Result<T, HttpError> {
    view.ok_or_else(|| Refused::Unreadable(format!("{job} in the state folder cannot be read")).into())
}
