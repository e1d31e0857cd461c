use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::members::{NodeCaller, hex};
use crate::routes::Shared;
use crate::session;

/// Longest that a token may let machines join.
const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The machines that have joined, for whoever lets them in and shows them. Copies are cheap.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    shared: Shared,
}

/// Why something cannot be done with machines.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodesError {
    /// What is known of them cannot be read or written.
    #[error("machines that have joined: {0}")]
    State(#[from] io::Error),
    /// There is no such machine.
    #[error("no machine {name:?} has joined: `pollux nodes` lists those that have")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// A token that nobody should have for so long.
    #[error("a token to join for {asked_s} s: expected 1 to {max_s}")]
    Lifetime {
        /// Seconds asked for.
        asked_s: u64,
        /// Most seconds.
        max_s: u64,
    },
    /// There is no backend yet, or none any more.
    #[error("the scheduler is not ready: try again")]
    Closed,
}

/// What became of the wish to remove a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone, with all that ran there.
    Gone,
    /// It ends what it runs, and is gone then.
    Leaving,
}

/// A machine as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineView {
    /// Its name.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// The host under which others reach its replicas.
    pub address: String,
    /// The names of its nodes.
    pub nodes: Vec<String>,
    /// Whether it is connected.
    pub is_connected: bool,
    /// When it was heard last, if it was since the start.
    pub heard: Option<SystemTime>,
}

/// Where a connection comes from, and what the other end should know.
#[derive(Clone)]
pub struct Doorway {
    /// The other end.
    pub peer: IpAddr,
    /// Where workers are told to look for the scheduler.
    pub worker_url: String,
    /// Tells the fingerprint of the certificate that the scheduler shows now, if it has one.
    pub certificate: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

impl Nodes {
    pub(crate) const fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whom a token belongs to.
    pub fn caller(&self, token: &str) -> Option<NodeCaller> {
        self.shared.with(|routes| routes.members.caller(token, now_ms())).flatten()
    }

    /// A token that lets machines join for some time, and until when.
    pub fn issue_token(&self, lifetime: Duration) -> Result<(String, u64), NodesError> {
        if lifetime < Duration::from_secs(1) || lifetime > TOKEN_LIFETIME_MAX {
            return Err(NodesError::Lifetime { asked_s: lifetime.as_secs(), max_s: TOKEN_LIFETIME_MAX.as_secs() });
        }
        let token = random()?;
        let now = now_ms();
        let until = now.saturating_add(u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX));
        self.shared.with(|routes| routes.members.admit_by(&token, now, until)).ok_or(NodesError::Closed)??;
        Ok((token, until))
    }

    /// Removes a machine. One that is connected first ends what it runs, for which each replica has some time.
    pub fn remove(&self, name: &str, grace: Duration) -> Result<Removal, NodesError> {
        let removed = self.shared.with(|routes| match routes.members.machine(name) {
            None => Err(NodesError::Unknown { name: name.to_owned() }),
            Some(_) => Ok(routes.remove(name, grace)?),
        });
        Ok(if removed.ok_or(NodesError::Closed)?? { Removal::Gone } else { Removal::Leaving })
    }

    /// All machines that have joined.
    pub fn machines(&self) -> Vec<MachineView> {
        let view = |routes: &mut crate::routes::Routes| {
            let machines = routes.members.machines().iter().map(|machine| MachineView {
                name: machine.name.clone(),
                version: machine.version.clone(),
                address: machine.address.clone(),
                nodes: machine.nodes.clone(),
                is_connected: routes.is_connected(&machine.name),
                heard: routes.heard(&machine.name),
            });
            machines.collect()
        };
        self.shared.with(view).unwrap_or_default()
    }

    /// Speaks to a machine for as long as the connection lasts.
    pub async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        caller: &NodeCaller,
        doorway: &Doorway,
    ) {
        session::serve(&self.shared, stream, caller, doorway).await;
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A secret that nobody can guess.
pub(crate) fn random() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no random numbers: {error}")))?;
    Ok(hex(&bytes))
}
