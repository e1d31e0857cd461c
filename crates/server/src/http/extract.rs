//! What requests hold, with refusals in our own words.

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use pollux_policy::JobId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use utoipa::IntoParams;

use super::failure::HttpError;

/// Longest body of a request.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// What a client may take to send a body.
const BODY_WAIT: Duration = Duration::from_secs(30);

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// A body of JSON, in or out.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, _: &S) -> Result<Self, HttpError> {
        check_type(request.headers())?;
        // The layers for timeouts allow each piece so long, and one that sends byte by byte for ever.
        match tokio::time::timeout(BODY_WAIT, read(request.into_body())).await {
            Ok(bytes) => parse(&bytes?).map(Json),
            Err(_) => Err(UNFINISHED),
        }
    }
}

const UNFINISHED: HttpError = HttpError::Unfinished { limit_s: BODY_WAIT.as_secs() };

/// Copies what comes: bodies that are collected keep every piece, and one of single bytes would take many times its
/// length. The layer around all routes limits how much comes.
async fn read(body: Body) -> Result<Vec<u8>, HttpError> {
    let (mut body, mut bytes) = (pin!(body), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Why a body did not come to its end.
fn broken(error: &(dyn Error + 'static)) -> HttpError {
    let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
    match causes.any(<dyn Error>::is::<LengthLimitError>) {
        true => HttpError::TooLarge { limit: BODY_BYTES_MAX },
        false => UNFINISHED,
    }
}

/// Refuses a body before it is read.
fn check_type(headers: &HeaderMap) -> Result<(), HttpError> {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = found.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(HttpError::MediaType { found: found.to_owned() }),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HttpError> {
    // A struct could also be read from its fields in a row, which would tie us to their order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(HttpError::Content { reason: "it is a list, expected an object".to_owned() });
    }
    pollux_api::read_json(bytes).map_err(|(error, reason)| match error.classify() {
        Category::Data => HttpError::Content { reason },
        Category::Syntax | Category::Eof | Category::Io => HttpError::Syntax { reason },
    })
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], crate::text(&self.0)).into_response()
    }
}

/// What follows the question mark.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpError> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let reason = text.rsplit_once("query string: ").map_or(&*text, |(_, reason)| reason);
                Err(HttpError::Query { reason: reason.to_owned() })
            }
        }
    }
}

/// How many of something are asked for.
pub(crate) fn page(limit: Option<usize>) -> Result<usize, HttpError> {
    match limit.unwrap_or(PAGE_DEFAULT) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        limit => Err(HttpError::Query { reason: format!("limit {limit}: expected 1 to {PAGE_MAX}") }),
    }
}

/// The job of a path.
#[derive(Clone, Copy, Debug, IntoParams)]
#[into_params(names("id"), parameter_in = Path)]
pub(crate) struct Id(#[param(value_type = u64, maximum = 18_446_744_073_709_551_615_u64)] pub(crate) JobId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpError> {
        let refused =
            |value: &str| HttpError::Path { name: "job", value: value.to_owned(), accepted: "a number of 64 bits" };
        let value = parameter(parts, state).await.map_err(|_| refused(""))?;
        // A sign would be a number to Rust, and is none to people.
        let digits = Some(&value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|value| value.parse().ok()).map(|id| Self(JobId(id))).ok_or_else(|| refused(&value))
    }
}

/// The node or token of a path.
#[derive(Clone, Debug)]
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpError> {
        let refused = |_| HttpError::Path { name: "name", value: String::new(), accepted: "UTF-8" };
        parameter(parts, state).await.map(Self).map_err(refused)
    }
}

/// No path has more than one.
async fn parameter<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, ()> {
    let parameters = RawPathParams::from_request_parts(parts, state).await.map_err(|_| ())?;
    parameters.iter().next().map(|(_, value)| value.to_owned()).ok_or(())
}
