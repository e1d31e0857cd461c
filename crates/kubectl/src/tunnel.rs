//! A port of this machine that leads to the REST interface of an operator, through the API server and with the rights of
//! the user there.

use std::convert::Infallible;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, IF_NONE_MATCH,
    ORIGIN, TRANSFER_ENCODING,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use kube::Client;
use pollux_api::{FORWARDED_AUTHORIZATION, Failure, FailureDetail};
use serde_json::Value;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;

use crate::session_token::SessionToken;
use crate::{Access, Cluster, KubectlError, OperatorName};

/// As much as an operator takes.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Far above any refusal.
const REFUSAL_BYTES_MAX: usize = 1024 * 1024;
/// Before another attempt when the system has no more sockets.
const RETRY: Duration = Duration::from_millis(100);
/// What a client says that matters to an operator.
const PASSED_ON: [HeaderName; 5] =
    [ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, IF_NONE_MATCH, HeaderName::from_static("last-event-id")];
/// What is about one connection and not about the answer.
const OF_THE_CONNECTION: [HeaderName; 3] = [CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH];

type TunnelBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// The way to an operator, while the cluster it was opened in lives.
#[derive(Clone)]
pub struct Tunnel {
    url: String,
    token: String,
}

// Whatever prints a tunnel must not show the token.
impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Opens it. The user has a token for the operator when this returns.
    pub fn open(cluster: &Cluster, access: &Access) -> Result<Self, KubectlError> {
        let refused = |what| move |reason| KubectlError::System { what, reason };
        let namespace = if access.all_namespaces { &access.operator.namespace } else { cluster.namespace() };
        let audience = access.operator.audience();
        let session = SessionToken::new(cluster.client.clone(), namespace, &access.service_account, audience);
        let mut random = [0_u8; 32];
        getrandom::fill(&mut random)
            .map_err(|error| std::io::Error::other(error.to_string()))
            .map_err(refused("random numbers"))?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (listener, address) = cluster.runtime.block_on(async {
            session.get().await?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(refused("a port"))?;
            let address = listener.local_addr().map_err(refused("a port"))?;
            Ok::<_, KubectlError>((listener, address))
        })?;
        let forwarder = Forwarder {
            client: cluster.client.clone(),
            path: access.operator.proxy_path(),
            operator: access.operator.clone(),
            session,
            address,
            token: token.clone(),
        };
        cluster.runtime.spawn(serve(listener, Arc::new(forwarder)));
        Ok(Self { url: format!("http://{address}"), token })
    }

    /// Where it begins.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What opens it: other users of this machine can reach it, too.
    pub fn token(&self) -> &str {
        &self.token
    }
}

async fn serve(listener: TcpListener, forwarder: Arc<Forwarder>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let forwarder = Arc::clone(&forwarder);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let forwarder = Arc::clone(&forwarder);
                async move { Ok::<_, Infallible>(forwarder.answer(request).await) }
            });
            // A client that hangs up is no fault of ours.
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

struct Forwarder {
    client: Client,
    /// The way to the operator through the API server.
    path: String,
    operator: OperatorName,
    session: SessionToken,
    address: SocketAddr,
    token: String,
}

/// Why a request is not passed on, in the words of the REST interface.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    fn response(self) -> Response<TunnelBody> {
        let error = FailureDetail { code: self.code.to_owned(), message: self.message };
        let body = serde_json::to_vec(&Failure { error }).expect("plain data");
        let mut response = Response::new(whole(body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        response
    }
}

fn whole(bytes: impl Into<Bytes>) -> TunnelBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

impl Forwarder {
    async fn answer(&self, request: Request<Incoming>) -> Response<TunnelBody> {
        match self.forward(request).await {
            Ok(response) => response,
            Err(refusal) => refusal.response(),
        }
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<TunnelBody>, Refusal> {
        let (head, body) = request.into_parts();
        self.check_host(&head.headers)?;
        let asked = head.uri.path_and_query().map_or("/", |path| path.as_str());
        // The API server writes its own path into links of pages.
        let path = asked.strip_prefix(&self.path).unwrap_or(asked);
        let uri: Uri = format!("{}{path}", self.path)
            .parse()
            .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "bad_path", "the path makes no sense"))?;
        let mut passed_on = Request::builder().method(head.method).uri(uri);
        for name in PASSED_ON {
            if let Some(value) = head.headers.get(&name) {
                passed_on = passed_on.header(name, value);
            }
        }
        if !is_open(path) {
            self.check_token(&head.headers)?;
        }
        let token = self.session.get().await.map_err(|error| match &error {
            KubectlError::Away(_) | KubectlError::System { .. } => away(&error),
            _ => Refusal::new(StatusCode::FORBIDDEN, "forbidden", error.to_string()),
        })?;
        passed_on = passed_on.header(FORWARDED_AUTHORIZATION, format!("Bearer {token}"));
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| {
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body did not arrive: {error}"))
        })?;
        let passed_on = passed_on
            .body(body.to_bytes().to_vec().into())
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, "bad_path", error.to_string()))?;
        let answer = self.client.send(passed_on).await.map_err(|error| away(&error))?;
        self.translate(answer).await
    }

    /// No page of another site comes in under a name of its own.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let own = [format!("127.0.0.1:{}", self.address.port()), format!("localhost:{}", self.address.port())];
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let host = text(HOST).unwrap_or_default();
        if !own.iter().any(|own| own == host) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "wrong_host",
                format!("host {host:?}: expected {}", own[0]),
            ));
        }
        match text(ORIGIN) {
            Some(origin) if origin.strip_prefix("http://") != Some(host) => {
                let message = format!("origin {origin:?}: expected http://{host}");
                Err(Refusal::new(StatusCode::FORBIDDEN, "wrong_origin", message))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(self.token.as_bytes()))) {
            true => Ok(()),
            false => {
                let message = "no token, or another than that of this tunnel: `kubectl pollux dashboard` prints it";
                Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
            }
        }
    }

    /// An answer of the operator as it is, and one of the API server in words that our clients know.
    async fn translate(&self, answer: Response<kube::client::Body>) -> Result<Response<TunnelBody>, Refusal> {
        let (mut head, body) = answer.into_parts();
        for name in OF_THE_CONNECTION {
            head.headers.remove(name);
        }
        if !head.status.is_client_error() && !head.status.is_server_error() {
            return Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()));
        }
        let bytes = Limited::new(body, REFUSAL_BYTES_MAX).collect().await.map_err(|error| away(&error))?.to_bytes();
        let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let operator = &self.operator;
        if said["kind"] == "Status" {
            let message = said["message"].as_str().unwrap_or_default();
            return Err(match head.status {
                StatusCode::NOT_FOUND => {
                    let message = format!("no operator {operator}: {message}; expected --operator NAMESPACE/NAME");
                    Refusal::new(StatusCode::NOT_FOUND, "no_operator", message)
                }
                StatusCode::FORBIDDEN => {
                    let message = format!(
                        "{message}; expected the right to get and create services/proxy of the operator {operator}"
                    );
                    Refusal::new(StatusCode::FORBIDDEN, "forbidden", message)
                }
                status => {
                    let message = format!("the operator {operator} does not answer: {message}");
                    Refusal::new(status, "away", message)
                }
            });
        }
        if head.status == StatusCode::UNAUTHORIZED {
            let message = format!("the operator {operator} does not accept this token: is it another operator?");
            return Err(Refusal::new(StatusCode::FORBIDDEN, "wrong_token", message));
        }
        Ok(Response::from_parts(head, whole(bytes)))
    }
}

/// The page itself is open to all who reach it; what it shows is not. A path that somebody on the way could read as another
/// is not open.
fn is_open(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    // Scripts and styles are named with what they hold.
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let is_page = path == "/" || path.starts_with("/assets/");
    is_page && path.bytes().chain(query.bytes()).all(is_plain) && !path.contains("..") && !path.contains("//")
}

fn away(error: &dyn std::fmt::Display) -> Refusal {
    let message = format!("the API server does not answer: {error}");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "away", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_page_is_open() {
        for path in ["/", "/assets/app.js?332a42d138bda1a1"] {
            assert!(is_open(path), "{path}");
        }
        for path in
            ["/v1/jobs", "/metrics", "//v1/jobs", "/assets/../v1/jobs", "/assets/%2e%2e/v1/jobs", "/assets//x", "/?%2f"]
        {
            assert!(!is_open(path), "{path}");
        }
    }
}
