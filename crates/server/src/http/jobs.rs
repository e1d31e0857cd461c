use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use pollux_api::{Explanation, Failure, Job, JobDetail, JobList};
use pollux_job::{JobId, JobSpec, Phase};
use pollux_store::{EndedQuery, JobRow, SubmittedJob};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::allocations;
use super::extract::{Id, Json, Query, page};
use super::failure::HttpError;
use super::rights;
use super::scope::{Changeable, Scope, Visible};
use super::state::AppState;
use crate::clock::milliseconds;
use crate::{Action, Caller, Cluster, User, explain, explain_ended, views};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(explanation))
}

pub(super) fn changing_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(submit)).routes(routes!(cancel)).routes(routes!(pause)).routes(routes!(resume))
}

pub(super) fn own_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(detail))
}

/// Submits a job. It is durable when this is answered.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", security(("token" = [])), request_body = JobSpec,
    responses((status = 201, body = Job, headers(("Location" = String))), (status = "default", body = Failure)))]
async fn submit(
    _: Changeable,
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Json(spec): Json<JobSpec>,
) -> Result<Response, HttpError> {
    let spec = JobSpec { owner: owner(&spec, &caller)?, ..spec }.named();
    if let Caller::User(user) = &caller {
        let scope = Scope::of_user(&state, user);
        for dependency in &spec.depends_on {
            scope.check(&state, dependency.job).await?;
        }
    }
    let asked_for = as_asked_for(&spec);
    let id = state.handle.submit(spec).get().await?;
    let live = state.handle.look(move |cluster| cluster.engine().job(id).map(|job| views::job(cluster, job)));
    // It is durable: whatever keeps us from a look at it, whoever asked must not ask again.
    let job = live.get().await.ok().flatten().unwrap_or(Job { id: id.0, ..asked_for });
    let location = format!("/v1/jobs/{}", id.0);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(job)).into_response())
}

/// Who submits, by the label of the token. Nobody submits for others.
fn owner(spec: &JobSpec, caller: &Caller) -> Result<String, HttpError> {
    let Caller::User(User { name, .. }) = caller else { return Ok(String::new()) };
    if spec.owner.is_empty() || spec.owner == *name {
        return Ok(name.clone());
    }
    Err(HttpError::Owner { given: spec.owner.clone(), caller: name.clone() })
}

/// A job of which nothing is known but the specification.
fn as_asked_for(spec: &JobSpec) -> Job {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let submitted = SubmittedJob { id: JobId(0), submitted: milliseconds(now), spec: spec.clone() };
    views::job_of_row(&JobRow { submitted, ended: None })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobsQuery {
    /// Only jobs in this phase.
    phase: Option<Phase>,
    /// Only jobs of this owner.
    #[param(max_length = 128)]
    owner: Option<String>,
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
async fn list(
    State(state): State<AppState>,
    scope: Scope,
    Query(query): Query<JobsQuery>,
) -> Result<Json<JobList>, HttpError> {
    let JobsQuery { phase, owner, search, after_live, before, .. } = query;
    let limit = page(query.limit)?;
    let owner = match (scope.0, owner) {
        (Some(own), Some(asked)) if own != asked => {
            return Ok(Json(JobList { jobs: Vec::new(), next_after_live: None, next_before: None }));
        }
        (own, asked) => own.or(asked),
    };
    let ended_phase = phase.filter(|phase| matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Cancelled));
    let mut jobs = Vec::new();
    if before.is_none() && ended_phase.is_none() {
        let (search, owner) = (search.clone(), owner.clone());
        let look = state.handle.look(move |cluster| {
            let is_asked_for = |job: &&pollux_engine::Job| {
                after_live.is_none_or(|after| job.id().0 > after)
                    && search.as_deref().is_none_or(|search| is_found(job, search))
                    && owner.as_deref().is_none_or(|owner| job.spec().owner == owner)
                    && phase.is_none_or(|phase| job.phase() == phase)
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
    let read = state.handle.read(move |reader| {
        let (owner, search) = (owner.as_deref(), search.as_deref());
        reader.ended_jobs(EndedQuery { before, phase, owner, search }, room + 1)
    });
    let rows = read.await?;
    let id = |row: &Result<JobRow, JobId>| row.as_ref().map_or_else(|id| *id, |row| row.submitted.id).0;
    let next_before = rows.get(room).map(|row| id(row) + 1);
    // One that has ended since the look is there already.
    let live = jobs.len();
    for row in rows.iter().take(room).flatten() {
        let is_new = !jobs[..live].iter().any(|job: &Job| job.id == row.submitted.id.0);
        jobs.extend(Some(row).filter(|_| is_new).map(views::job_of_row));
    }
    Ok(Json(JobList { jobs, next_after_live: None, next_before }))
}

/// As the store finds those that are over.
fn is_found(job: &pollux_engine::Job, search: &str) -> bool {
    let name = job.spec().name.to_ascii_lowercase();
    name.contains(&search.to_ascii_lowercase()) || job.id().0.to_string() == search
}

/// Everything that is known of a job. Variables are shown to its owner and admins only.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 200, body = JobDetail), (status = "default", body = Failure)))]
async fn detail(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    Visible(id): Visible,
) -> Result<Json<JobDetail>, HttpError> {
    let live = state.handle.look(move |cluster| {
        let job = cluster.engine().job(id)?;
        views::job_detail(cluster, job)
    });
    let mut detail = match live.get().await? {
        Some(detail) => detail,
        None => views::detail_of_row(&state.row(id).await?, state.handle.checkpoint_dir(id)),
    };
    if !rights::may_read(&caller, &detail.spec.owner) {
        detail.spec.env.clear();
        detail.spec.secrets.clear();
    }
    Ok(Json(detail))
}

/// Why a job has what it has, and when that may change.
#[utoipa::path(get, path = "/v1/jobs/{id}/explanation", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 200, body = Explanation), (status = "default", body = Failure)))]
async fn explanation(
    State(state): State<AppState>,
    Visible(id): Visible,
    scope: Scope,
) -> Result<Json<Explanation>, HttpError> {
    let explained = move |cluster: &Cluster<'_>| explain(cluster, id, &|job| scope.shows(cluster, job.0));
    let look = state.handle.look(move |cluster| (explained(cluster), cluster.now()));
    let (live, now) = look.get().await?;
    if let Some(mut explanation) = live {
        if explanation.phase == Phase::Queued {
            explanation.sentences.extend(allocations::expected(&state, now.0));
        }
        return Ok(Json(explanation));
    }
    let row = state.row(id).await?;
    Ok(Json(explain_ended(&views::job_of_row(&row), now.0)))
}

/// Ends a job.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 204), (status = "default", body = Failure)))]
async fn cancel(_: Changeable, State(state): State<AppState>, Id(id): Id) -> Result<StatusCode, HttpError> {
    act(&state, id, Action::Cancel).await
}

/// Sets a job aside.
#[utoipa::path(post, path = "/v1/jobs/{id}/pause", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 204), (status = "default", body = Failure)))]
async fn pause(_: Changeable, State(state): State<AppState>, Id(id): Id) -> Result<StatusCode, HttpError> {
    act(&state, id, Action::Pause).await
}

/// Lets a job go on.
#[utoipa::path(post, path = "/v1/jobs/{id}/resume", tag = "jobs", security(("token" = [])),
    params(Id),
    responses((status = 204), (status = "default", body = Failure)))]
async fn resume(_: Changeable, State(state): State<AppState>, Id(id): Id) -> Result<StatusCode, HttpError> {
    act(&state, id, Action::Resume).await
}

async fn act(state: &AppState, job: JobId, action: Action) -> Result<StatusCode, HttpError> {
    state.handle.act(job, action).get().await?;
    Ok(StatusCode::NO_CONTENT)
}
