//! Calls of routes, without a socket.

use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use pollux_api::{Failure, Role};
use pollux_policy::PolicySettings;
use pollux_server::http::{AppState, Hosts, app};
use pollux_server::{Server, User};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;

use crate::world::{World, settings};

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const HOST: &str = "localhost:7878";

/// A cluster and its routes.
pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) server: Server,
    pub(crate) state: AppState,
    pub(crate) app: Router,
    pub(crate) folder: TempDir,
}

/// An answer that is there as a whole.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Site {
    /// Nodes with so many GPUs, a user's token, and jobs that get what they ask for.
    pub(crate) async fn new(nodes: &[(&str, u32)]) -> Self {
        Self::with_policy(nodes, PolicySettings::Fifo).await
    }

    pub(crate) async fn with_policy(nodes: &[(&str, u32)], policy: PolicySettings) -> Self {
        let (folder, world) = (tempfile::tempdir().unwrap(), World::new(nodes));
        let server = world.serve(settings(folder.path(), policy));
        server.handle().grant(User::new("test", Role::Admin), TOKEN, None).get().await.unwrap();
        let address: SocketAddr = "127.0.0.1:7878".parse().unwrap();
        let state = AppState::new(&server, Hosts::new(address, false, &[]));
        Self { app: app(state.clone()), world, server, state, folder }
    }

    /// A request as a user would make it.
    pub(crate) fn request(method: Method, path: &str, body: impl Into<Body>) -> Request<Body> {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", HOST)
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("content-type", "application/json")
            .body(body.into())
            .unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answered {
        self.send_to(&self.app, request).await
    }

    /// To other routes over the same cluster.
    pub(crate) async fn send_to(&self, app: &Router, request: Request<Body>) -> Answered {
        let response = app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().into()).unwrap();
        Answered { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.send(Self::request(Method::GET, path, "")).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answered {
        self.send(Self::request(Method::POST, path, body)).await
    }

    /// Submits a job of so many replicas; returns its number.
    pub(crate) async fn submit(&self, name: &str, replicas: u32) -> u64 {
        let asked = format!(r#"{{"name":"{name}","command":["train"],"working_dir":"/","replicas":{replicas}}}"#);
        self.post("/v1/jobs", asked).await.json::<Value>(StatusCode::CREATED)["id"].as_u64().unwrap()
    }

    /// A token of a user, as an admin makes it.
    pub(crate) async fn token_of(&self, name: &str, role: Role) -> String {
        let asked = serde_json::json!({"label": name, "role": role}).to_string();
        self.post("/v1/tokens", asked).await.json::<Value>(StatusCode::CREATED)["token"].as_str().unwrap().to_owned()
    }

    /// A request with another token.
    pub(crate) async fn send_as(&self, token: &str, method: Method, path: &str, body: &str) -> Answered {
        let mut request = Self::request(method, path, body.to_owned());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        self.send(request).await
    }

    /// Waits for something that is not answered at once.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + crate::world::PATIENCE;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "{what} did not happen");
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}

impl Answered {
    #[track_caller]
    pub(crate) fn json<T: DeserializeOwned>(&self, status: StatusCode) -> T {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/json", "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// The code and the line of a failure.
    #[track_caller]
    pub(crate) fn failure(&self, status: u16) -> (String, String) {
        let failure: Failure = self.json(StatusCode::from_u16(status).unwrap());
        assert!(!failure.error.message.contains('\n'), "{}", failure.error.message);
        (failure.error.code, failure.error.message)
    }

    #[track_caller]
    pub(crate) fn is_done(&self) {
        assert_eq!((self.status, self.body.as_str()), (StatusCode::NO_CONTENT, ""));
    }
}
