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
    allocations, assets, checkpoints, cluster, events, gate, jobs, logs, metrics, nodes, plan, rights, series, tokens,
    what_if, workers,
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
        .route_layer(middleware::from_fn_with_state(state.clone(), rights::check))
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
    let routes = [
        cluster::open_routes(),
        jobs::own_routes(),
        jobs::changing_routes(),
        cluster::changing_routes(),
        checkpoints::routes(),
        tokens::routes(),
        nodes::routes(),
        allocations::routes(),
        jobs::routes(),
        logs::routes(),
        events::routes(),
        cluster::routes(),
        plan::routes(),
        series::routes(),
        what_if::routes(),
        metrics::routes(),
        workers::routes(),
    ];
    routes.into_iter().fold(OpenApiRouter::with_openapi(document), OpenApiRouter::merge)
}
