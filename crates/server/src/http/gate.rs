//! Who is let in.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pollux_api::FORWARDED_AUTHORIZATION;
use tracing::{debug, error, info, warn};

use super::assets::NO_PAGE;
use super::extract::BODY_BYTES_MAX;
use super::failure::{HttpError, Reason};
use super::rates::Source;
use super::state::AppState;
use super::unix_socket::LocalUser;
use crate::{Caller, Metrics};

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Everything passes here, also what no route knows.
pub(crate) async fn gate(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let caller = match token(request.headers()) {
        Some(token) => state.caller(token).await,
        None => Ok(request.extensions().get().map(|LocalUser(user): &LocalUser| Caller::User(user.clone()))),
    };
    let admitted = admit(&state, &request, caller);
    let asked = Asked::new(&request, admitted.as_ref().ok().cloned().flatten());
    let mut response = match admitted {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    // The layer that limits bodies speaks for itself, and not in JSON.
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE && response.extensions().get::<Reason>().is_none() {
        response = HttpError::TooLarge { limit: BODY_BYTES_MAX }.into_response();
    }
    asked.conclude(state.handle.metrics(), &response, began.elapsed());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NO_PAGE);
    response
}

/// What is said of a request when it is answered.
struct Asked {
    method: Method,
    route: Option<MatchedPath>,
    path: String,
    peer: IpAddr,
    caller: Option<Caller>,
}

impl Asked {
    fn new(request: &Request, caller: Option<Caller>) -> Self {
        Self {
            method: request.method().clone(),
            route: request.extensions().get().cloned(),
            path: request.uri().path().to_owned(),
            peer: peer(request),
            caller,
        }
    }

    /// Counts and logs it.
    fn conclude(&self, metrics: &Metrics, response: &Response, took: Duration) {
        let Self { method, path, peer, caller, .. } = self;
        let (status, took_s) = (response.status().as_u16(), took.as_secs_f64());
        metrics.count_request(self.route.as_ref().map_or("unknown", MatchedPath::as_str), status, took);
        let caller = caller.as_ref().map(tracing::field::display);
        let Some(Reason { code, message: answer }) = response.extensions().get() else {
            return debug!(%method, path, %peer, caller, status, took_s, "answered");
        };
        metrics.count_refusal(code);
        let is_worker = matches!(self.caller, Some(Caller::Job(_)));
        match status {
            500 => error!(%method, path, %peer, caller, status, reason = code, answer, "request failed"),
            501.. => warn!(%method, path, %peer, caller, status, reason = code, answer, "request refused"),
            401 | 403 | 429 => warn!(%method, path, %peer, caller, status, reason = code, answer, "request refused"),
            // Workers of a group that has changed speak a moment longer.
            404 | 409 if is_worker => {
                debug!(%method, path, %peer, caller, status, reason = code, answer, "request refused");
            }
            _ => info!(%method, path, %peer, caller, status, reason = code, answer, "request refused"),
        }
    }
}

/// The other end of the connection; of one without a socket this machine.
pub(super) fn peer(request: &Request) -> IpAddr {
    request.extensions().get().map_or(Ipv4Addr::LOCALHOST.into(), |&Peer(address)| address)
}

fn admit(
    state: &AppState,
    request: &Request,
    caller: Result<Option<Caller>, HttpError>,
) -> Result<Option<Caller>, HttpError> {
    let known = caller.as_ref().ok().cloned().flatten();
    let source = known.map_or_else(|| Source::Peer(peer(request)), Source::Caller);
    state.rates.count(source).map_err(|wait| {
        let retry_after_s = wait.as_secs_f64().ceil().max(1.0) as u64;
        HttpError::TooFast { retry_after_s }
    })?;
    let caller = caller?;
    // The API server of a cluster forwards requests with its own name. A page of another site has no token.
    if request.headers().contains_key(FORWARDED_AUTHORIZATION) {
        return caller.map(Some).ok_or(HttpError::Unauthorized);
    }
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

/// What is sent through the API server of a cluster is in a header of our own: it keeps the usual one for itself.
fn token(headers: &HeaderMap) -> Option<&str> {
    let forwarded = HeaderName::from_static(FORWARDED_AUTHORIZATION);
    let name = if headers.contains_key(&forwarded) { forwarded } else { AUTHORIZATION };
    let (scheme, token) = only(headers, name)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
