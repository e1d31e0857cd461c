use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::gate::Peer;
use super::hosts::Hosts;
use super::listeners::Listener;
use super::timeout_stream::TimeoutStream;
use super::unix_socket::{LocalUser, UnixSocket};
use super::{AppState, app};

/// Connections of one listener at once, if there are files enough; more wait to be accepted. Each worker holds one.
const CONNECTIONS_MAX: usize = 32_768;
/// What is kept of a request's head and its next piece.
const BUFFER_BYTES: usize = 64 * 1024;
/// Connections of users of this machine at once.
const SOCKET_CONNECTIONS_MAX: usize = 256;
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
    let connections_max = connections_max(getrlimit(Resource::Nofile).current);
    let (places, graceful) = (Arc::new(Semaphore::new(connections_max)), GracefulShutdown::new());
    let permits = ConnectionPermits::new(connections_max);
    let metrics = Arc::clone(&state.handle.metrics);
    debug!(connections_max, "listening");
    let accept_all = async {
        let (mut is_full, mut is_failing) = (false, false);
        loop {
            if places.available_permits() > 0 {
                is_full = false;
            } else if !std::mem::replace(&mut is_full, true) {
                warn!(connections_max, "no more connections at once: further ones wait until one is closed");
            }
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
            let (stream, address) = match socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!(%error, "no connection can be accepted");
                    }
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            is_failing = false;
            let Some(permit) = permits.enter(address.ip()) else {
                metrics.count_refused_connection("too_many");
                info!(peer = %address, limit = permits.of_one, "connection refused: too many from this address");
                continue;
            };
            debug!(peer = %address, "connection accepted");
            metrics.connections.inc();
            let (app, tls, watcher) = (app.clone(), tls.clone(), graceful.watcher());
            let (metrics, state) = (Arc::clone(&metrics), state.clone());
            tokio::spawn(async move {
                serve_connection(stream, tls, app, address, watcher, &state).await;
                metrics.connections.dec();
                drop((place, permit));
            });
        }
    };
    tokio::select! {
        () = accept_all => {}
        () = state.closed() => {}
    }
    drop(socket);
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        info!("connections that are still busy are cut off");
    }
    Ok(())
}

/// Leaves some of the files that may be open to the journal, logs and replicas.
fn connections_max(files_max: Option<u64>) -> usize {
    let files = files_max.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    (files / 8 * 5).min(CONNECTIONS_MAX)
}

/// Who is connected, and how often.
#[derive(Clone)]
struct ConnectionPermits {
    open: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
    /// What this machine, and what any other may have.
    of_this: usize,
    of_one: usize,
}

/// One connection of an address, while it lasts.
struct ConnectionPermit {
    permits: ConnectionPermits,
    address: IpAddr,
}

impl ConnectionPermits {
    fn new(connections_max: usize) -> Self {
        // Many machines may share an address, and none may keep all others out.
        Self { open: Arc::default(), of_this: connections_max, of_one: connections_max / 2 }
    }

    /// Lets one more in, unless there are enough from that address.
    fn enter(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let limit = if address.is_loopback() { self.of_this } else { self.of_one };
        let mut permits = self.open.lock().expect("nobody panics with it");
        let connections = permits.entry(address).or_default();
        if *connections >= limit {
            return None;
        }
        *connections += 1;
        Some(ConnectionPermit { permits: self.clone(), address })
    }
}

/// Answers users of this machine at a socket, as [`serve`] does others.
pub(crate) async fn serve_socket(socket: UnixSocket, state: AppState) -> io::Result<()> {
    let listener = socket.listen()?;
    let state = state.at(Hosts::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)), false, &[]));
    let app = app(state.clone());
    let (places, graceful) = (Arc::new(Semaphore::new(SOCKET_CONNECTIONS_MAX)), GracefulShutdown::new());
    let mut is_failing = false;
    let accept_all = async {
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!(%error, "no connection can be accepted");
                    }
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            is_failing = false;
            let (app, watcher, state) = (app.clone(), graceful.watcher(), state.clone());
            tokio::spawn(async move {
                let user = match LocalUser::of(&stream).await {
                    Ok(user) => user,
                    Err(error) => return warn!(%error, "connection refused: the system does not say whose it is"),
                };
                let peer = Peer(Ipv4Addr::LOCALHOST.into());
                match answer(TimeoutStream::new(stream), app, (peer, Some(user)), watcher, &state).await {
                    Ok(()) => debug!("connection closed"),
                    Err(error) => debug!(%error, "connection broken"),
                }
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept_all => {}
        () = state.closed() => {}
    }
    drop(listener);
    socket.remove();
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        info!("connections that are still busy are cut off");
    }
    Ok(())
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut permits = self.permits.open.lock().expect("nobody panics with it");
        if let Entry::Occupied(mut connections) = permits.entry(self.address) {
            *connections.get_mut() -= 1;
            if *connections.get() == 0 {
                connections.remove();
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    app: Router,
    address: SocketAddr,
    watcher: Watcher,
    state: &AppState,
) {
    // Answers are whole; waiting for more to send would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(peer = %address, %error, "answers may be delayed");
    }
    let (stream, peer) = (TimeoutStream::new(stream), Peer(address.ip()));
    let answered = match tls {
        None => answer(stream, app, (peer, None), watcher, state).await,
        Some(tls) => {
            let reason = match tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(stream)).await {
                Ok(Ok(stream)) => return closed(address, answer(stream, app, (peer, None), watcher, state).await),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("nothing for {} s", HANDSHAKE_WAIT.as_secs()),
            };
            state.handle.metrics().count_refused_connection("tls");
            return info!(peer = %address, reason, "connection refused: no TLS");
        }
    };
    closed(address, answered);
}

/// A client that hangs up or speaks something else is no fault of ours.
fn closed(peer: SocketAddr, answered: hyper::Result<()>) {
    match answered {
        Ok(()) => debug!(%peer, "connection closed"),
        Err(error) => debug!(%peer, %error, "connection broken"),
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    (peer, user): (Peer, Option<LocalUser>),
    // While it is held, the end of the server waits for this connection.
    _watcher: Watcher,
    state: &AppState,
) -> hyper::Result<()> {
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if let Some(user) = &user {
            request.extensions_mut().insert(user.clone());
        }
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WAIT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        answered = connection.as_mut() => return answered,
        () = state.closed() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_keep_all_others_out() {
        let permits = ConnectionPermits::new(20);
        let [far, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut inside: Vec<ConnectionPermit> = (0..20).map_while(|_| permits.enter(far)).collect();
        assert_eq!(inside.len(), 10);
        assert!(permits.enter(far).is_none());
        assert!(permits.enter(other).is_some());
        inside.pop();
        assert!(permits.enter(far).is_some());
        drop(inside);
        assert!(permits.open.lock().unwrap().is_empty());
    }

    #[test]
    fn ten_thousand_workers_are_connected_where_files_allow_it_and_some_files_are_left_where_not() {
        assert_eq!(
            [Some(16_384), Some(1 << 20), None].map(connections_max),
            [10_240, CONNECTIONS_MAX, CONNECTIONS_MAX]
        );
        let small = ConnectionPermits::new(connections_max(Some(1_024)));
        assert_eq!((small.of_this, small.of_one), (640, 320));
    }
}
