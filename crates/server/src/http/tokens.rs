use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pollux_api::{Failure, IssuedToken, TokenList, TokenRequest};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Name};
use super::failure::HttpError;
use super::state::AppState;
use crate::{Refused, tokens};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, issue)).routes(routes!(delete))
}

/// Labels of users' tokens.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", security(("token" = [])),
    responses((status = 200, body = TokenList), (status = "default", body = Failure)))]
async fn list(State(state): State<AppState>) -> Json<TokenList> {
    Json(TokenList { labels: state.handle.token_labels() })
}

/// A new token that opens everything. It is shown this once.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", security(("token" = [])), request_body = TokenRequest,
    responses((status = 201, body = IssuedToken), (status = "default", body = Failure)))]
async fn issue(State(state): State<AppState>, Json(request): Json<TokenRequest>) -> Result<Response, HttpError> {
    let TokenRequest { label } = request;
    let token = tokens::random().map_err(|_| Refused::NoRandom)?;
    state.handle.grant(&label, &token).get().await?;
    Ok((StatusCode::CREATED, Json(IssuedToken { label, token })).into_response())
}

/// Takes a token back.
#[utoipa::path(delete, path = "/v1/tokens/{label}", tag = "tokens", security(("token" = [])),
    params(("label" = String, Path, description = "Its label")),
    responses((status = 204), (status = "default", body = Failure)))]
async fn delete(State(state): State<AppState>, Name(label): Name) -> Result<StatusCode, HttpError> {
    state.handle.revoke(&label).get().await?;
    Ok(StatusCode::NO_CONTENT)
}
