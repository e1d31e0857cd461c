use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::gate::Peer;
use super::listeners::Listener;
use super::patience::Patient;
use super::{AppState, app};

/// Connections of one listener at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1_000;
/// What a client may take to say who it is, and to ask the next thing.
const HEADER_WAIT: Duration = Duration::from_secs(30);
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// What requests under way may take when the server ends.
const GRACE: Duration = Duration::from_secs(2);
/// Before another attempt when the system has no more sockets.
const RETRY: Duration = Duration::from_millis(100);

/// Answers at a listener until the state is closed and requests under way are answered.
pub(crate) async fn serve(listener: Listener, state: AppState) -> io::Result<()> {
    let Listener { socket, tls, hosts, .. } = listener;
    let socket = TcpListener::from_std(socket)?;
    let state = state.at(hosts);
    let (app, tls) = (app(state.clone()), tls.map(TlsAcceptor::from));
    let (places, graceful) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), GracefulShutdown::new());
    let accept_all = async {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
            let Ok((stream, address)) = socket.accept().await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            let (app, tls, watcher) = (app.clone(), tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                converse(stream, tls, app, Peer(address.ip()), watcher).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept_all => {}
        () = state.closed() => {}
    }
    drop(socket);
    // Whoever takes longer is cut off with the runtime.
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
    Ok(())
}

async fn converse(stream: TcpStream, tls: Option<TlsAcceptor>, app: Router, peer: Peer, watcher: Watcher) {
    // Answers are whole; waiting for more to send would only delay them.
    let _ = stream.set_nodelay(true);
    let stream = Patient::new(stream);
    match tls {
        None => answer(stream, app, peer, watcher).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(stream)).await {
                answer(stream, app, peer, watcher).await;
            }
        }
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    peer: Peer,
    watcher: Watcher,
) {
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WAIT)
        .serve_connection(TokioIo::new(stream), service);
    // A client that hangs up or speaks something else is no fault of ours.
    let _ = watcher.watch(connection).await;
}
