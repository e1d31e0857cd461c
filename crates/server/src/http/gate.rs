//! Who is let in, and how far.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::assets::NO_PAGE;
use super::extract::Id;
use super::failure::HttpError;
use super::rates::Source;
use super::state::AppState;
use crate::Caller;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Everything passes here, also what no route knows.
pub(crate) async fn gate(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let mut response = match admit(&state, &request) {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    state.count_answer(response.status());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NO_PAGE);
    response
}

/// Routes for users only.
pub(crate) async fn users_only(request: Request, next: Next) -> Result<Response, HttpError> {
    match request.extensions().get::<Caller>() {
        Some(Caller::User(_)) => Ok(next.run(request).await),
        Some(&Caller::Job(job)) => Err(HttpError::Scope { job }),
        None => Err(HttpError::Unauthorized),
    }
}

/// Routes below a job, for users and for the workers of that job.
pub(crate) async fn own_job_only(request: Request, next: Next) -> Result<Response, HttpError> {
    let (mut parts, body) = request.into_parts();
    match parts.extensions.get::<Caller>().cloned() {
        Some(Caller::User(_)) => {}
        Some(Caller::Job(job)) => match Id::from_request_parts(&mut parts, &()).await {
            Ok(Id(asked)) if asked == job => {}
            Ok(_) | Err(_) => return Err(HttpError::Scope { job }),
        },
        None => return Err(HttpError::Unauthorized),
    }
    Ok(next.run(Request::from_parts(parts, body)).await)
}

fn admit(state: &AppState, request: &Request) -> Result<Option<Caller>, HttpError> {
    let headers = request.headers();
    let caller = token(headers).and_then(|token| state.handle.caller(token));
    let peer = || request.extensions().get().map_or(Ipv4Addr::LOCALHOST.into(), |&Peer(address)| address);
    let source = caller.clone().map_or_else(|| Source::Peer(peer()), Source::Caller);
    state.rates.count(source, Instant::now()).map_err(|wait| {
        let retry_after_s = wait.as_secs_f64().ceil().max(1.0) as u64;
        HttpError::TooFast { retry_after_s }
    })?;
    check_host(state, request)?;
    Ok(caller)
}

fn check_host(state: &AppState, request: &Request) -> Result<(), HttpError> {
    let headers = request.headers();
    let host = only(headers, HOST).unwrap_or_default();
    let named = request.uri().authority().map_or(host, |authority| authority.as_str());
    if let Some(wrong) = [host, named].into_iter().find(|host| !state.hosts.accepts(host)) {
        return Err(HttpError::Host { host: wrong.to_owned() });
    }
    if headers.contains_key(ORIGIN) {
        let origin = only(headers, ORIGIN).unwrap_or_default();
        if !state.hosts.is_own_origin(origin, host) {
            return Err(HttpError::Origin { origin: origin.to_owned() });
        }
    }
    Ok(())
}

/// A header that may be there once.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
