use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Router, middleware};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, Info, License, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;

use super::extract::BODY_BYTES_MAX;
use super::failure::HttpError;
use super::state::AppState;
use super::{
    allocations, assets, checkpoints, cluster, events, gate, jobs, logs, metrics, nodes, plan, series, tokens, what_if,
    workers,
};

/// All routes.
pub fn app(state: AppState) -> Router {
    app_with(state, Router::new())
}

/// All routes, and some more: for tests.
#[doc(hidden)]
pub fn app_with(state: AppState, more: Router<AppState>) -> Router {
    let (router, document) = documented().split_for_parts();
    let document = axum::body::Bytes::from(crate::text(&document));
    router
        .merge(more)
        .merge(assets::routes())
        .route(pollux_backend_remote::protocol::PATH, get(nodes::connect))
        .route("/openapi.json", get(async move || ([(CONTENT_TYPE, "application/json")], document)))
        .fallback(async || HttpError::NoRoute)
        .method_not_allowed_fallback(async || HttpError::NoMethod)
        .layer(RequestBodyLimitLayer::new(BODY_BYTES_MAX))
        // What it was is in the log, by the hook for panics; the gate says which route.
        .layer(CatchPanicLayer::custom(|_| HttpError::Broken.into_response()))
        .layer(middleware::from_fn_with_state(state.clone(), gate::gate))
        .with_state(state)
}

/// What the routes are and say, as an OpenAPI document.
pub fn openapi() -> OpenApi {
    documented().into_openapi()
}

fn documented() -> OpenApiRouter<AppState> {
    let mut info = Info::new("Pollux", env!("CARGO_PKG_VERSION"));
    info.description = Some("Schedules training jobs by goodput.".to_owned());
    info.license = Some(License::new(env!("CARGO_PKG_LICENSE")));
    let mut components = Components::new();
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    let document = OpenApiBuilder::new().info(info).components(Some(components)).build();
    let for_users = OpenApiRouter::new()
        .merge(jobs::changing_routes())
        .merge(cluster::changing_routes())
        .merge(checkpoints::routes())
        .merge(tokens::routes())
        .merge(nodes::routes())
        .merge(allocations::routes())
        .route_layer(middleware::from_fn(gate::users_only));
    let for_viewers = OpenApiRouter::new()
        .merge(jobs::routes())
        .merge(logs::routes())
        .merge(events::routes())
        .merge(cluster::routes())
        .merge(plan::routes())
        .merge(series::routes())
        .merge(what_if::routes())
        .route_layer(middleware::from_fn(gate::users_and_viewers));
    let for_monitors = metrics::routes().route_layer(middleware::from_fn(gate::users_and_monitors));
    let for_workers = workers::routes().route_layer(middleware::from_fn(gate::own_job_only));
    let for_all = OpenApiRouter::new().merge(cluster::open_routes()).merge(jobs::own_routes());
    let routes = [for_all, for_users, for_viewers, for_monitors, for_workers];
    routes.into_iter().fold(OpenApiRouter::with_openapi(document), OpenApiRouter::merge)
}
