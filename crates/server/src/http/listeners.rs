use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use pollux_backend_remote::Nodes;
use pollux_slurm::Queues;
use tokio_rustls::rustls::ServerConfig;
use tracing::warn;

use super::Authenticator;
use super::hosts::Hosts;
use super::tls;
use super::unix_socket::SocketFile;
use crate::ServerError;

/// The port at which workers of earlier processes look for us.
const WORKER_PORT_FILE: &str = "worker-port";
/// Clients that connect at once and wait to be accepted: all workers come back together when a server starts anew.
const BACKLOG: i32 = 4_096;
/// How long an address that is taken is waited for.
const RELEASE_WAIT: Duration = Duration::from_secs(1);
const RELEASE_LOOK: Duration = Duration::from_millis(20);

/// Where the REST interface is reached.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Address and port; port 0 takes one that is free.
    pub listen: SocketAddr,
    /// Needed wherever others than this machine may connect.
    pub tls: Option<TlsFiles>,
    /// Names under which it is reached, besides its address.
    pub hosts: Vec<String>,
    /// Knows tokens that this server has not made.
    pub authenticator: Option<Arc<dyn Authenticator>>,
    /// Where users of this machine connect, who need no token: the system says who they are.
    pub socket: Option<SocketFile>,
    /// Which jobs members see.
    pub visibility: Visibility,
    /// Where jobs and nodes are changed, if not here: a sentence for those who try.
    pub changed_elsewhere: Option<&'static str>,
    /// Machines that may join, if any may.
    pub nodes: Option<Nodes>,
    /// Queues of allocations, if Slurm may be asked for nodes.
    pub allocations: Option<AllocationSettings>,
}

/// Which jobs members see; admins and viewers see all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// All of them.
    #[default]
    All,
    /// Their own.
    Own,
}

/// How Slurm is asked for nodes.
#[derive(Clone, Debug)]
pub struct AllocationSettings {
    /// The queues.
    pub queues: Queues,
    /// Between two looks at Slurm.
    pub interval: Duration,
}

impl HttpSettings {
    /// Those of a server that listens at one address, without TLS.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            hosts: Vec::new(),
            authenticator: None,
            socket: None,
            visibility: Visibility::default(),
            changed_elsewhere: None,
            nodes: None,
            allocations: None,
        }
    }
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
    /// Workers always find a plain listener of this machine, those of an earlier process at the port they know.
    pub(crate) workers: Option<Listener>,
    /// A port at which workers of an earlier process look for us, and that is taken.
    pub(crate) missed: Option<u16>,
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
        let known = known_port(&state_dir.join(WORKER_PORT_FILE));
        let bind = |address| Listener::bind(address, tls.clone(), &settings.hosts);
        // Of any port, that at which workers look is as good as another.
        let any = known.filter(|_| settings.listen.port() == 0 && tls.is_none());
        let again = any.and_then(|port| bind(SocketAddr::new(settings.listen.ip(), port)).ok());
        let public = again.map_or_else(|| bind(settings.listen), Ok)?;
        let is_plain = public.tls.is_none();
        let at = |port| Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), None, &[]);
        let elsewhere = known.filter(|&port| !is_plain || port != public.address.port());
        let there = elsewhere.and_then(|port| at(port).ok());
        let missed = elsewhere.filter(|_| there.is_none());
        let workers = match there {
            None if !is_plain => Some(at(0)?),
            there => there,
        };
        Ok(Self { public, workers, missed })
    }

    /// Where everybody reaches it.
    pub(crate) fn url(&self) -> String {
        self.public.url()
    }

    /// Where workers of this machine reach it, without TLS.
    pub(crate) fn local_url(&self) -> String {
        self.workers.as_ref().unwrap_or(&self.public).url()
    }

    /// Where commands of this machine reach it, without TLS.
    pub(crate) fn command_url(&self) -> String {
        if self.public.tls.is_none() { self.public.url() } else { self.local_url() }
    }

    /// Remembers the port of the workers, who outlive this process.
    pub(crate) fn remember(&self, state_dir: &Path) -> Result<(), ServerError> {
        let port = self.workers.as_ref().unwrap_or(&self.public).address.port();
        crate::files::write(&state_dir.join(WORKER_PORT_FILE), &port.to_string())
    }
}

impl Listener {
    fn bind(address: SocketAddr, tls: Option<Arc<ServerConfig>>, names: &[String]) -> Result<Self, ServerError> {
        let refused = |reason| ServerError::Listen { address, reason };
        let socket = listen(address).map_err(refused)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| refused(error.into()))?;
        socket.set_nonblocking(true).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        let hosts = Hosts::new(address, tls.is_some(), names);
        Ok(Self { socket, tls, hosts, address })
    }

    fn url(&self) -> String {
        format!("{}://{}", self.hosts.scheme, self.address)
    }
}

/// Where workers of an earlier process look for us, if there were any.
fn known_port(file: &Path) -> Option<u16> {
    let port = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error.to_string()),
        Ok(text) => text.trim().parse().map_err(|_| format!("it holds {text:?}: expected a port")),
    };
    let lost = "workers of an earlier server may not find this one";
    port.inspect_err(|error| warn!(file = %file.display(), %error, "{lost}")).ok()
}

/// A process that a killed server was about to start holds its sockets for an instant longer.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + RELEASE_WAIT;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(RELEASE_LOOK);
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_about_to_be_free_is_waited_for() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(listen(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        thread::spawn(move || {
            thread::sleep(RELEASE_LOOK * 3);
            drop(taken);
        });
        listen(address).unwrap();
    }

    #[test]
    fn a_port_that_cannot_be_read_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(WORKER_PORT_FILE);
        let log = folder.path().join("log");
        let writer = fs::File::create(&log).unwrap();
        let known = || {
            let logger = tracing_subscriber::fmt().with_ansi(false).with_writer(writer.try_clone().unwrap()).finish();
            tracing::subscriber::with_default(logger, || known_port(&file))
        };
        assert_eq!(known(), None);
        fs::write(&file, "7878\n").unwrap();
        assert_eq!(known(), Some(7878));
        assert_eq!(fs::read_to_string(&log).unwrap(), "");
        fs::write(&file, "door 7").unwrap();
        assert_eq!(known(), None);
        let said = fs::read_to_string(log).unwrap();
        assert!(said.contains(r#"it holds "door 7": expected a port"#), "{said}");
    }

    fn bind(listen: &str, state_dir: &Path) -> Listeners {
        let settings = HttpSettings::new(listen.parse().unwrap());
        let listeners = Listeners::bind(&settings, state_dir).unwrap();
        listeners.remember(state_dir).unwrap();
        listeners
    }

    #[test]
    fn workers_find_the_next_server_where_they_found_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let first = bind("127.0.0.1:0", folder.path());
        let port = first.public.address.port();
        assert!(first.workers.is_none());
        drop(first);
        let again = bind("127.0.0.1:0", folder.path());
        assert_eq!((again.public.address.port(), again.workers.is_none()), (port, true));
        drop(again);
        let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let moved = bind(&other.to_string(), folder.path());
        assert_eq!(moved.public.address, other);
        assert_eq!(moved.workers.map(|workers| workers.address.port()), Some(port));
    }

    #[test]
    fn workers_follow_to_the_new_port_where_the_old_one_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let first = bind("127.0.0.1:0", folder.path());
        let second = bind("127.0.0.1:0", folder.path());
        assert!(second.workers.is_none());
        assert_ne!(second.local_url(), first.local_url());
    }
}
