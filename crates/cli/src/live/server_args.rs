use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use pollux_client::{Client, Connection, socket_in};
use pollux_kubectl::Tunnel;

use super::LiveError;

/// Which scheduler a command speaks to.
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    /// Address of the scheduler, or unix:FILE [default: of the one that runs with the state folder]
    #[arg(long, value_name = "URL", env = "POLLUX_URL", hide_env = true, global = true)]
    server: Option<String>,

    #[command(flatten)]
    state: StateArgs,

    /// The way to an operator, which goes before all others
    #[arg(skip)]
    tunnel: Option<Tunnel>,
}

/// Where a scheduler keeps its state.
#[derive(Args, Debug)]
pub(crate) struct StateArgs {
    /// State folder [default: pollux in XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR", env = "POLLUX_STATE", hide_env = true, global = true)]
    state: Option<PathBuf>,
}

impl ServerArgs {
    /// Opens the way to the scheduler; nothing is asked yet.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        match self.socket() {
            Some(socket) => Ok(Client::of_socket(&socket)),
            None => Ok(Client::new(&self.connection()?)?),
        }
    }

    /// The socket to speak over: one that is named, or that of this machine's scheduler where nothing else is.
    fn socket(&self) -> Option<PathBuf> {
        if self.tunnel.is_some() {
            return None;
        }
        if let Some(server) = &self.server {
            return server.strip_prefix("unix:").map(PathBuf::from);
        }
        if env::var_os("POLLUX_TOKEN").is_some() {
            return None;
        }
        socket_in(&self.state.folder().ok()?)
    }

    /// Has the command speak to an operator.
    pub(crate) fn use_tunnel(&mut self, tunnel: Tunnel) {
        self.tunnel = Some(tunnel);
    }

    /// Whether the way to the scheduler ends with this process.
    pub(super) const fn is_tunnel(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Where the scheduler of this machine keeps its state.
    pub(super) fn folder(&self) -> Result<PathBuf, LiveError> {
        self.state.folder()
    }

    /// Where the scheduler is, and what opens it.
    pub(super) fn connection(&self) -> anyhow::Result<Connection> {
        if let Some(tunnel) = &self.tunnel {
            let (url, token) = (tunnel.url().to_owned(), tunnel.token().to_owned());
            return Ok(Connection { url, token, authority: None });
        }
        let token = env::var_os("POLLUX_TOKEN");
        // What is not text is no token either, and refused as such.
        let token = token.as_deref().map(OsStr::to_string_lossy);
        let authority = env::var_os("POLLUX_CA").map(PathBuf::from);
        let connection = Connection::find(self.server.as_deref(), token.as_deref(), &self.state.folder()?)?;
        Ok(Connection { authority, ..connection })
    }
}

impl StateArgs {
    /// The folder.
    pub(crate) fn folder(&self) -> Result<PathBuf, LiveError> {
        if let Some(folder) = &self.state {
            return Ok(folder.clone());
        }
        // By the specification of these folders, one that is relative does not count.
        let given = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        let usual = || env::home_dir().filter(|home| home != Path::new("")).map(|home| home.join(".local/state"));
        given.or_else(usual).map(|folder| folder.join("pollux")).ok_or(LiveError::NoStateFolder)
    }
}
