use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use pollux_api::{Failure, IssuedNodeToken, MachineRemoval, NodeAgent, NodeTokenRequest};
use pollux_backend_remote::{NodesError, Removal, protocol};
use tracing::debug;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Json, Name};
use super::failure::HttpError;
use super::gate;
use super::state::AppState;
use crate::{Caller, Refused};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(issue)).routes(routes!(remove))
}

/// A token that lets machines join for some time, and nothing else. It is shown this once.
#[utoipa::path(post, path = "/v1/node-tokens", tag = "cluster", security(("token" = [])), request_body = NodeTokenRequest,
    responses((status = 201, body = IssuedNodeToken), (status = "default", body = Failure)))]
async fn issue(State(state): State<AppState>, Json(request): Json<NodeTokenRequest>) -> Result<Response, HttpError> {
    let nodes = state.nodes.clone().ok_or(HttpError::NoNodes)?;
    let lifetime = Duration::from_secs(request.expires_s);
    let (token, expires_ms) = in_thread(move || nodes.issue_token(lifetime)).await?;
    // Whoever has the token knows by it whom to believe.
    let token = match state.fingerprint() {
        Some(fingerprint) => format!("{token}.{fingerprint}"),
        None => token,
    };
    Ok((StatusCode::CREATED, Json(IssuedNodeToken { token, expires_ms })).into_response())
}

/// Removes a machine that has joined. One that is connected ends what it runs first; of one that is not, it is taken for
/// granted that nothing runs there any more.
#[utoipa::path(delete, path = "/v1/nodes/{name}", tag = "cluster", security(("token" = [])),
    params(("name" = String, Path, description = "The machine")),
    responses((status = 200, body = MachineRemoval), (status = "default", body = Failure)))]
async fn remove(State(state): State<AppState>, Name(name): Name) -> Result<Json<MachineRemoval>, HttpError> {
    let nodes = state.nodes.clone().ok_or(HttpError::NoNodes)?;
    let grace = state.grace;
    let removal = in_thread(move || nodes.remove(&name, grace)).await?;
    Ok(Json(MachineRemoval { is_gone: removal == Removal::Gone }))
}

/// What waits for the disk.
async fn in_thread<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, NodesError> + Send + 'static,
) -> Result<T, HttpError> {
    Ok(tokio::task::spawn_blocking(act).await.map_err(|_| Refused::Broken)??)
}

/// A machine speaks here, in a protocol of its own.
pub(super) async fn connect(State(state): State<AppState>, mut request: Request) -> Result<Response, HttpError> {
    let nodes = state.nodes.clone().ok_or(HttpError::NoNodes)?;
    let Some(Caller::Machine(machine)) = request.extensions().get().cloned() else {
        return Err(request.extensions().get::<Caller>().map_or(HttpError::Unauthorized, |_| HttpError::NoMachine));
    };
    if request.headers().get(UPGRADE).is_none_or(|asked| asked != protocol::UPGRADE) {
        return Err(HttpError::NoMachine);
    }
    let doorway = state.doorway(gate::peer(&request));
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(stream) => tokio::select! {
                () = nodes.serve(TokioIo::new(stream), &machine, &doorway) => {}
                () = state.closed() => {}
            },
            Err(error) => debug!(peer = %doorway.peer, %error, "connection broken"),
        }
    });
    let switching = [(CONNECTION, "upgrade"), (UPGRADE, protocol::UPGRADE)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, switching, Body::empty()).into_response())
}

/// The machines behind nodes, by the names of these.
pub(super) fn agents(state: &AppState) -> BTreeMap<String, NodeAgent> {
    let machines = state.nodes.as_ref().map(pollux_backend_remote::Nodes::machines).unwrap_or_default();
    let mut agents = BTreeMap::new();
    for machine in machines {
        let ms = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        };
        for node in machine.nodes {
            let agent = NodeAgent {
                machine: machine.name.clone(),
                version: machine.version.clone(),
                address: machine.address.clone(),
                is_connected: machine.is_connected,
                last_contact_ms: machine.heard.map(ms),
            };
            agents.insert(node, agent);
        }
    }
    agents
}
