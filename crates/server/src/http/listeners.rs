use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use super::hosts::Hosts;
use super::tls;
use crate::ServerError;

/// The port at which workers of earlier processes look for us.
const WORKER_PORT_FILE: &str = "worker-port";

/// Where the REST interface is reached.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Address and port; port 0 takes one that is free.
    pub listen: SocketAddr,
    /// Needed wherever others than this machine may connect.
    pub tls: Option<TlsFiles>,
    /// Names under which it is reached, besides its address.
    pub hosts: Vec<String>,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, followed by those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Sockets that are ours, before anybody is answered.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) public: Listener,
    /// Workers always find a plain listener of this machine.
    pub(crate) workers: Option<Listener>,
}

/// One socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) hosts: Hosts,
    address: SocketAddr,
}

impl Listeners {
    pub(crate) fn bind(settings: &HttpSettings, state_dir: &Path) -> Result<Self, ServerError> {
        let is_local = settings.listen.ip().is_loopback();
        if !is_local && settings.tls.is_none() {
            return Err(ServerError::Insecure { listen: settings.listen });
        }
        let tls = settings.tls.as_ref().map(tls::configure).transpose()?;
        let needs_another = tls.is_some();
        let public = Listener::bind(settings.listen, tls, &settings.hosts)?;
        let workers = if needs_another { Some(worker_listener(state_dir)?) } else { None };
        Ok(Self { public, workers })
    }

    /// Where everybody reaches it.
    pub(crate) fn url(&self) -> String {
        self.public.url()
    }

    /// Where this machine reaches it, without TLS.
    pub(crate) fn local_url(&self) -> String {
        self.workers.as_ref().unwrap_or(&self.public).url()
    }

    /// Remembers the port of the workers, who outlive this process.
    pub(crate) fn remember(&self, state_dir: &Path) -> Result<(), ServerError> {
        match &self.workers {
            Some(workers) => {
                crate::files::write(&state_dir.join(WORKER_PORT_FILE), &workers.address.port().to_string())
            }
            None => Ok(()),
        }
    }
}

impl Listener {
    fn bind(address: SocketAddr, tls: Option<Arc<ServerConfig>>, names: &[String]) -> Result<Self, ServerError> {
        let refused = |reason| ServerError::Listen { address, reason };
        let socket = TcpListener::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        let hosts = Hosts::new(address, tls.is_some(), names);
        Ok(Self { socket, tls, hosts, address })
    }

    fn url(&self) -> String {
        format!("{}://{}", self.hosts.scheme, self.address)
    }
}

/// At the same port as the last time, if it is still free.
fn worker_listener(state_dir: &Path) -> Result<Listener, ServerError> {
    let known = fs::read_to_string(state_dir.join(WORKER_PORT_FILE)).ok().and_then(|text| text.trim().parse().ok());
    let at = |port| Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), None, &[]);
    known.map(at).and_then(Result::ok).map_or_else(|| at(0), Ok)
}
