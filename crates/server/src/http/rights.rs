//! Who may do what: one table of all routes.

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use pollux_api::Role;
use pollux_policy::JobId;

use super::extract::Id;
use super::failure::HttpError;
use super::scope::Scope;
use super::state::AppState;
use crate::{Caller, User};

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: whoever can connect may ask.
    Nothing,
    /// To be a user, or to read numbers.
    Numbers,
    /// To be a user. What is shown is what the caller may see.
    Look,
    /// The same, or to speak for the job in the path.
    LookAtJob,
    /// To own the job in the path, or to be an admin.
    ReadJob,
    /// The same, and to be no viewer.
    ChangeJob,
    /// The same, or to speak for the job.
    SpeakForJob,
    /// To be a member or an admin.
    Submit,
    /// To be an admin.
    Administer,
}

/// What each route needs.
pub const RIGHTS: [(&str, &str, Need); 40] = [
    ("GET", "/healthz", Need::Nothing),
    ("GET", "/metrics", Need::Numbers),
    ("GET", "/v1/cluster", Need::Look),
    ("GET", "/v1/cluster/series", Need::Look),
    ("GET", "/v1/nodes", Need::Look),
    ("GET", "/v1/plan", Need::Look),
    ("GET", "/v1/events", Need::Look),
    ("GET", "/v1/events/stream", Need::Look),
    ("GET", "/v1/what-if", Need::Look),
    ("POST", "/v1/what-if", Need::Look),
    ("GET", "/v1/jobs", Need::Look),
    ("GET", "/v1/jobs/{id}", Need::LookAtJob),
    ("GET", "/v1/jobs/{id}/explanation", Need::Look),
    ("GET", "/v1/jobs/{id}/series", Need::Look),
    ("GET", "/v1/jobs/{id}/logs", Need::ReadJob),
    ("GET", "/v1/jobs/{id}/logs/stream", Need::ReadJob),
    ("POST", "/v1/jobs", Need::Submit),
    ("POST", "/v1/jobs/{id}/cancel", Need::ChangeJob),
    ("POST", "/v1/jobs/{id}/pause", Need::ChangeJob),
    ("POST", "/v1/jobs/{id}/resume", Need::ChangeJob),
    ("GET", "/v1/jobs/{id}/assignment", Need::SpeakForJob),
    ("POST", "/v1/jobs/{id}/reports", Need::SpeakForJob),
    ("POST", "/v1/jobs/{id}/ready", Need::SpeakForJob),
    ("POST", "/v1/jobs/{id}/rendezvous", Need::SpeakForJob),
    ("POST", "/v1/checkpoints/prune", Need::Administer),
    ("POST", "/v1/nodes/{name}/drain", Need::Administer),
    ("POST", "/v1/nodes/{name}/undrain", Need::Administer),
    ("DELETE", "/v1/nodes/{name}", Need::Administer),
    ("POST", "/v1/node-tokens", Need::Administer),
    ("GET", "/v1/tokens", Need::Administer),
    ("POST", "/v1/tokens", Need::Administer),
    ("DELETE", "/v1/tokens/{label}", Need::Administer),
    ("GET", "/v1/allocation-queues", Need::Administer),
    ("POST", "/v1/allocation-queues", Need::Administer),
    ("GET", "/v1/allocation-queues/{name}", Need::Administer),
    ("DELETE", "/v1/allocation-queues/{name}", Need::Administer),
    ("GET", "/v1/allocation-queues/{name}/output", Need::Administer),
    ("POST", "/v1/allocation-queues/{name}/pause", Need::Administer),
    ("POST", "/v1/allocation-queues/{name}/resume", Need::Administer),
    ("POST", "/v1/allocation-rehearsals", Need::Administer),
];

impl Need {
    /// What a request needs. A route that is not in the table is for admins.
    fn of(parts: &Parts) -> Self {
        let path = parts.extensions.get().map_or("", MatchedPath::as_str);
        let method = if parts.method == Method::HEAD { "GET" } else { parts.method.as_str() };
        let found = RIGHTS.iter().find(|(of, route, _)| *of == method && *route == path);
        found.map_or(Self::Administer, |(_, _, need)| *need)
    }
}

/// Lets a request through to its route if its caller may ask that.
pub(crate) async fn check(State(state): State<AppState>, request: Request, next: Next) -> Result<Response, HttpError> {
    let (mut parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Caller>().cloned();
    let need = Need::of(&parts);
    match (need, caller) {
        (Need::Nothing, _) => {}
        (_, None) => return Err(HttpError::Unauthorized),
        (need, Some(Caller::User(user))) => check_user(&state, &mut parts, need, &user).await?,
        (Need::LookAtJob | Need::SpeakForJob, Some(Caller::Job(own))) => check_own(&state, &mut parts, own).await?,
        // What viewers are shown is of their own.
        (Need::Look | Need::LookAtJob | Need::ReadJob, Some(Caller::Viewer(_))) => {}
        (Need::Numbers, Some(Caller::Monitor(_))) => {}
        (_, Some(other)) => return Err(HttpError::out_of_scope(Some(&other))),
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// Whether a caller may know what a job was given, and what it writes.
pub(crate) fn may_read(caller: &Caller, owner: &str) -> bool {
    match caller {
        Caller::User(User { name, role }) => *role == Role::Admin || name == owner,
        Caller::Viewer(own) => own == owner,
        // Only of the job that it speaks for anything is shown.
        Caller::Job(_) => true,
        Caller::Monitor(_) | Caller::Machine(_) => false,
    }
}

async fn check_user(state: &AppState, parts: &mut Parts, need: Need, user: &User) -> Result<(), HttpError> {
    let needed = match need {
        Need::Nothing | Need::Numbers | Need::Look | Need::LookAtJob | Need::ReadJob => Role::Viewer,
        Need::ChangeJob | Need::SpeakForJob | Need::Submit => Role::Member,
        Need::Administer => Role::Admin,
    };
    if user.role < needed {
        return Err(HttpError::role(user, needed));
    }
    match need {
        Need::ReadJob | Need::ChangeJob | Need::SpeakForJob => check_owner(state, parts, user).await,
        Need::Nothing | Need::Numbers | Need::Look | Need::LookAtJob | Need::Submit | Need::Administer => Ok(()),
    }
}

async fn check_owner(state: &AppState, parts: &mut Parts, user: &User) -> Result<(), HttpError> {
    if user.role == Role::Admin {
        return Ok(());
    }
    let Id(job) = Id::from_request_parts(parts, state).await?;
    Scope::of_user(state, user).check(state, job).await?;
    let owner = state.owner(job).await?;
    if owner == user.name { Ok(()) } else { Err(HttpError::NotOwner { job, owner, user: user.name.clone() }) }
}

async fn check_own(state: &AppState, parts: &mut Parts, own: JobId) -> Result<(), HttpError> {
    match Id::from_request_parts(parts, state).await {
        Ok(Id(asked)) if asked == own => Ok(()),
        Ok(_) | Err(_) => Err(HttpError::Scope { job: own }),
    }
}
