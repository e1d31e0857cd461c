//! What a caller may see.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use pollux_api::Role;
use pollux_engine::Refusal;
use pollux_policy::JobId;

use super::Visibility;
use super::extract::Id;
use super::failure::HttpError;
use super::state::AppState;
use crate::{Caller, Cluster, User};

fn caller(parts: &Parts) -> Result<&Caller, HttpError> {
    parts.extensions.get().ok_or(HttpError::Unauthorized)
}

/// Whose jobs a caller sees: those of one owner, or all.
#[derive(Clone, Debug)]
pub(crate) struct Scope(pub(crate) Option<String>);

impl FromRequestParts<AppState> for Scope {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, HttpError> {
        match caller(parts)? {
            Caller::User(user) => Ok(Self::of_user(state, user)),
            Caller::Viewer(owner) => Ok(Self(Some(owner.clone()))),
            other => Err(HttpError::out_of_scope(Some(other))),
        }
    }
}

impl Scope {
    /// What a user sees.
    pub(crate) fn of_user(state: &AppState, user: &User) -> Self {
        match (state.visibility, user.role) {
            (Visibility::Own, Role::Member) => Self(Some(user.name.clone())),
            (Visibility::Own, Role::Viewer | Role::Admin) | (Visibility::All, _) => Self(None),
        }
    }

    /// Whether a job that is not over is among them.
    pub(crate) fn shows(&self, cluster: &Cluster<'_>, job: u64) -> bool {
        let is_own = |owner: &String| cluster.spec(JobId(job)).is_some_and(|spec| spec.owner == *owner);
        self.0.as_ref().is_none_or(is_own)
    }

    /// Refuses a job that is not among them, as if there were none.
    pub(crate) async fn check(&self, state: &AppState, job: JobId) -> Result<(), HttpError> {
        match &self.0 {
            Some(owner) if state.owner(job).await? != *owner => Err(Refusal::UnknownJob { job }.into()),
            Some(_) | None => Ok(()),
        }
    }
}

/// The job of a path, which the caller may see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible(pub(crate) JobId);

impl FromRequestParts<AppState> for Visible {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, HttpError> {
        let asked = Id::from_request_parts(parts, state).await;
        if let &Caller::Job(own) = caller(parts)? {
            return match asked {
                Ok(Id(job)) if job == own => Ok(Self(job)),
                Ok(_) | Err(_) => Err(HttpError::Scope { job: own }),
            };
        }
        let (Id(job), scope) = (asked?, Scope::from_request_parts(parts, state).await?);
        scope.check(state, job).await?;
        Ok(Self(job))
    }
}

/// That jobs and nodes can be changed here, and not elsewhere only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changeable;

impl FromRequestParts<AppState> for Changeable {
    type Rejection = HttpError;

    async fn from_request_parts(_: &mut Parts, state: &AppState) -> Result<Self, HttpError> {
        state.changed_elsewhere.map_or(Ok(Self), |how| Err(HttpError::Elsewhere { how }))
    }
}
