use std::sync::Arc;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use pollux_api::{Failure, FailureDetail, Role};
use pollux_backend_remote::NodesError;
use pollux_engine::Refusal;
use pollux_policy::JobId;
use pollux_slurm::QueuesError;
use thiserror::Error;

use super::Unverified;
use super::extract::Json;
use crate::{Caller, Refused, User, WhatIfError};

/// Longest message; ours are far shorter, but they may quote.
const LETTERS_MAX: usize = 1_000;

/// Why a request is not answered with what it asked for.
#[derive(Clone, Debug, Error)]
pub(crate) enum HttpError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(
        "no token, or none that is known: send `Authorization: Bearer TOKEN`, with the file `token` of the state folder"
    )]
    Unauthorized,
    #[error("this token is for the workers of {job} only: send a user's token")]
    Scope { job: JobId },
    #[error("{} is a {}: this needs {needed}", .user.name, .user.role)]
    Role { user: User, needed: &'static str },
    #[error("{job} belongs to {owner:?}: {user:?} may look at it, and only its owner and admins may do this")]
    NotOwner { job: JobId, owner: String, user: String },
    #[error("this token shows the jobs of {owner:?} and changes nothing: send a user's token")]
    ViewerOnly { owner: String },
    #[error("this token is for /metrics only: send a user's token")]
    MonitorOnly,
    #[error("this token is for a machine that joins: `pollux node --join` sends it, all else needs a user's token")]
    MachineOnly,
    #[error("only a machine that joins connects here: `pollux node --join` does")]
    NoMachine,
    #[error("no machine joins this scheduler")]
    NoNodes,
    #[error("{0}")]
    Machine(Arc<NodesError>),
    #[error("this scheduler asks nobody for nodes")]
    NoAllocations,
    #[error("{0}")]
    Allocation(Arc<QueuesError>),
    #[error(transparent)]
    Unverified(#[from] Unverified),
    #[error("jobs and nodes are not changed here: {how}")]
    Elsewhere { how: &'static str },
    #[error("host {host:?} is not this server: expected its own address and the names that it was given")]
    Host { host: String },
    #[error("origin {origin:?} is another site: expected requests of this server's own pages, and of programs")]
    Origin { origin: String },
    #[error("no such route: /openapi.json lists those that there are")]
    NoRoute,
    #[error("no such method here: /openapi.json lists those that there are")]
    NoMethod,
    #[error("{name} {value:?} in the path: expected {accepted}")]
    Path { name: &'static str, value: String, accepted: &'static str },
    #[error("query: {reason}")]
    Query { reason: String },
    #[error("body of type {found:?}: expected application/json")]
    MediaType { found: String },
    #[error("a body of more than {limit} bytes: expected fewer")]
    TooLarge { limit: usize },
    #[error("the body did not arrive: expected a whole one within {limit_s} s")]
    Unfinished { limit_s: u64 },
    #[error("the body is no JSON: {reason}")]
    Syntax { reason: String },
    #[error("the body is not what is asked for here: {reason}")]
    Content { reason: String },
    #[error("owner {given:?}: expected {caller:?}, whose token this is, or no owner")]
    Owner { given: String, caller: String },
    #[error("{job} has no group of replicas at the moment")]
    NoGroup { job: JobId },
    #[error("{job} has no replica {replica} with a log: GET /v1/jobs/{} lists those that there are", .job.0)]
    NoReplica { job: JobId, replica: u64 },
    #[error("too many requests: try again in {retry_after_s} s")]
    TooFast { retry_after_s: u64 },
    #[error("this could not be answered because of an error of the server: its log says more")]
    Broken,
    #[error("{limit} streams are open already: close some, or try again")]
    TooManyStreams { limit: usize },
}

impl HttpError {
    /// For a caller whose token is good, but not for this.
    pub(crate) fn out_of_scope(caller: Option<&Caller>) -> Self {
        match caller {
            Some(Caller::Viewer(owner)) => Self::ViewerOnly { owner: owner.clone() },
            Some(Caller::Monitor(_)) => Self::MonitorOnly,
            Some(Caller::Machine(_)) => Self::MachineOnly,
            Some(&Caller::Job(job)) => Self::Scope { job },
            Some(Caller::User(user)) => Self::role(user, Role::Admin),
            None => Self::Unauthorized,
        }
    }

    /// For a user of a lower role than is needed.
    pub(crate) fn role(user: &User, needed: Role) -> Self {
        let needed = match needed {
            Role::Viewer => "a viewer, a member or an admin",
            Role::Member => "a member or an admin",
            Role::Admin => "an admin",
        };
        Self::Role { user: user.clone(), needed }
    }

    /// What programs know it by.
    pub(crate) fn code(&self) -> &'static str {
        self.status().1
    }

    /// The only place that knows which error is which status.
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Refused(refused) => status_of(refused),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::Scope { .. } | Self::ViewerOnly { .. } | Self::MonitorOnly | Self::MachineOnly | Self::NoMachine => {
                (StatusCode::FORBIDDEN, "wrong_token")
            }
            Self::Role { .. } => (StatusCode::FORBIDDEN, "wrong_role"),
            Self::NotOwner { .. } => (StatusCode::FORBIDDEN, "not_owner"),
            Self::NoNodes => (StatusCode::NOT_FOUND, "no_nodes"),
            Self::Machine(error) => status_of_machine(error),
            Self::NoAllocations => (StatusCode::NOT_FOUND, "no_allocations"),
            Self::Allocation(error) => status_of_queues(error),
            Self::Unverified(_) => (StatusCode::SERVICE_UNAVAILABLE, "unverified"),
            Self::Elsewhere { .. } => (StatusCode::CONFLICT, "elsewhere"),
            Self::Host { .. } => (StatusCode::FORBIDDEN, "wrong_host"),
            Self::Origin { .. } => (StatusCode::FORBIDDEN, "wrong_origin"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "unknown_route"),
            Self::NoMethod => (StatusCode::METHOD_NOT_ALLOWED, "unknown_method"),
            Self::Path { .. } => (StatusCode::BAD_REQUEST, "bad_path"),
            Self::Query { .. } => (StatusCode::BAD_REQUEST, "bad_query"),
            Self::Owner { .. } => (StatusCode::FORBIDDEN, "wrong_owner"),
            Self::MediaType { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_type"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::Unfinished { .. } => (StatusCode::REQUEST_TIMEOUT, "unfinished"),
            Self::Syntax { .. } => (StatusCode::BAD_REQUEST, "bad_json"),
            Self::Content { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad_content"),
            Self::NoGroup { .. } => (StatusCode::NOT_FOUND, "no_group"),
            Self::NoReplica { .. } => (StatusCode::NOT_FOUND, "unknown_replica"),
            Self::TooFast { .. } => (StatusCode::TOO_MANY_REQUESTS, "too_fast"),
            Self::Broken => (StatusCode::INTERNAL_SERVER_ERROR, "broken"),
            Self::TooManyStreams { .. } => (StatusCode::SERVICE_UNAVAILABLE, "too_many_streams"),
        }
    }
}

fn status_of_machine(error: &NodesError) -> (StatusCode, &'static str) {
    match error {
        NodesError::Unknown { .. } => (StatusCode::NOT_FOUND, "unknown_node"),
        NodesError::Lifetime { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad_lifetime"),
        NodesError::State(_) => (StatusCode::SERVICE_UNAVAILABLE, "full"),
        // It is not ready, or ends.
        _ => (StatusCode::SERVICE_UNAVAILABLE, "away"),
    }
}

fn status_of_queues(error: &QueuesError) -> (StatusCode, &'static str) {
    match error {
        QueuesError::Spec(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad_queue"),
        QueuesError::Unknown { .. } => (StatusCode::NOT_FOUND, "unknown_queue"),
        QueuesError::UnknownJob { .. } => (StatusCode::NOT_FOUND, "unknown_slurm_job"),
        QueuesError::Known { .. } | QueuesError::Removed { .. } => (StatusCode::CONFLICT, "queue_used"),
        QueuesError::TooMany => (StatusCode::CONFLICT, "too_many_queues"),
        QueuesError::Refused { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "refused_by_slurm"),
        QueuesError::Command(_) => (StatusCode::BAD_GATEWAY, "slurm"),
        QueuesError::State(_) => (StatusCode::SERVICE_UNAVAILABLE, "full"),
        // It is not ready, or ends.
        _ => (StatusCode::SERVICE_UNAVAILABLE, "away"),
    }
}

fn status_of(refused: &Refused) -> (StatusCode, &'static str) {
    match refused {
        Refused::Engine(refusal) => status_of_refusal(refusal),
        Refused::Request(_) | Refused::Dependency { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad_job"),
        Refused::Stale { .. } => (StatusCode::CONFLICT, "stale"),
        Refused::UnknownNode { .. } => (StatusCode::NOT_FOUND, "unknown_node"),
        Refused::Rendezvous { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad_rendezvous"),
        Refused::Label { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad_label"),
        Refused::LabelUsed { .. } => (StatusCode::CONFLICT, "label_used"),
        Refused::UnknownLabel { .. } => (StatusCode::NOT_FOUND, "unknown_token"),
        Refused::LocalToken { .. } => (StatusCode::CONFLICT, "local_token"),
        Refused::TokenLifetime { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "bad_lifetime"),
        Refused::TooManyTokens { .. } => (StatusCode::CONFLICT, "too_many_tokens"),
        Refused::Broken => (StatusCode::INTERNAL_SERVER_ERROR, "broken"),
        Refused::Unreadable(_) => (StatusCode::INTERNAL_SERVER_ERROR, "unreadable"),
        Refused::Full => (StatusCode::SERVICE_UNAVAILABLE, "full"),
        Refused::NotCopied => (StatusCode::SERVICE_UNAVAILABLE, "not_copied"),
        Refused::Busy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        Refused::WhatIf(WhatIfError::Busy) => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        Refused::WhatIf(WhatIfError::Broken) => (StatusCode::INTERNAL_SERVER_ERROR, "broken"),
        Refused::WhatIf(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad_change"),
        Refused::NoRandom | Refused::Away => (StatusCode::SERVICE_UNAVAILABLE, "away"),
    }
}

fn status_of_refusal(refusal: &Refusal) -> (StatusCode, &'static str) {
    match refusal {
        Refusal::UnknownJob { .. } => (StatusCode::NOT_FOUND, "unknown_job"),
        Refusal::UnknownNode { .. } => (StatusCode::NOT_FOUND, "unknown_node"),
        Refusal::EndedJob { .. } => (StatusCode::CONFLICT, "ended"),
        Refusal::StaleRevision { .. } => (StatusCode::CONFLICT, "stale"),
        Refusal::WrongPhase { .. } => (StatusCode::CONFLICT, "wrong_phase"),
        Refusal::TooManyJobs { .. } => (StatusCode::SERVICE_UNAVAILABLE, "too_many_jobs"),
        // The rest is content that makes no sense, and so is what the engine may come to refuse.
        _ => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
    }
}

impl From<NodesError> for HttpError {
    fn from(error: NodesError) -> Self {
        Self::Machine(Arc::new(error))
    }
}

impl From<QueuesError> for HttpError {
    fn from(error: QueuesError) -> Self {
        Self::Allocation(Arc::new(error))
    }
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Refused::Engine(refusal))
    }
}

/// Why a request was refused, for those who keep the log.
#[derive(Clone, Debug)]
pub(crate) struct Reason {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        HttpError::from(self).into_response()
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let (status, code) = self.status();
        let message = line(&self.to_string());
        let detail = FailureDetail { code: code.to_owned(), message: message.clone() };
        let mut response = (status, Json(Failure { error: detail })).into_response();
        response.extensions_mut().insert(Reason { code, message });
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        match self {
            Self::TooFast { retry_after_s } => drop(headers.insert(RETRY_AFTER, retry_after_s.into())),
            _ if status == StatusCode::SERVICE_UNAVAILABLE => drop(headers.insert(RETRY_AFTER, 1.into())),
            // The same request would be refused again.
            _ => {}
        }
        response
    }
}

/// One line of bounded length, whatever somebody sent that is quoted in it.
fn line(message: &str) -> String {
    let letters = message.chars().take(LETTERS_MAX);
    let escaped =
        letters.map(|letter| if letter.is_control() { letter.escape_default().to_string() } else { letter.into() });
    escaped.collect()
}
