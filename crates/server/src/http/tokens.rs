use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pollux_api::{Failure, IssuedToken, TokenList, TokenRequest};
use pollux_policy::Timestamp;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Name};
use super::failure::HttpError;
use super::state::AppState;
use crate::clock::wall;
use crate::{Refused, User, tokens};

/// A token that is to be good for longer is one without an end.
const LIFETIME_MAX_S: u64 = 3_650 * 86_400;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, issue)).routes(routes!(delete))
}

/// Tokens of users.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", security(("token" = [])),
    responses((status = 200, body = TokenList), (status = "default", body = Failure)))]
async fn list(State(state): State<AppState>) -> Json<TokenList> {
    Json(TokenList { tokens: state.handle.tokens() })
}

/// A new token for a user who has none. It is shown this once.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", security(("token" = [])), request_body = TokenRequest,
    responses((status = 201, body = IssuedToken), (status = "default", body = Failure)))]
async fn issue(State(state): State<AppState>, Json(request): Json<TokenRequest>) -> Result<Response, HttpError> {
    let TokenRequest { label, role, expires_s } = request;
    let expires = expires_s.map(|expires_s| match expires_s {
        1..=LIFETIME_MAX_S => Ok(Timestamp(wall().0 + expires_s * 1_000)),
        _ => Err(Refused::TokenLifetime { expires_s }),
    });
    let expires = expires.transpose()?;
    let token = tokens::random().map_err(|_| Refused::NoRandom)?;
    state.handle.grant(User::new(&label, role), &token, expires).get().await?;
    let issued = IssuedToken { label, role, expires_ms: expires.map(|at| at.0), token };
    Ok((StatusCode::CREATED, Json(issued)).into_response())
}

/// Takes a token back.
#[utoipa::path(delete, path = "/v1/tokens/{label}", tag = "tokens", security(("token" = [])),
    params(("label" = String, Path, description = "Its label")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn delete(State(state): State<AppState>, Name(label): Name) -> Result<StatusCode, HttpError> {
    state.handle.revoke(&label).get().await?;
    Ok(StatusCode::NO_CONTENT)
}
