//! The program of a machine that joins: replicas are its own, orders come over one connection that it opens.

mod connection;
mod duty;
mod error;
mod identity;
mod keeper;
mod term;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pollux_backend::Observation;
use pollux_backend_local::{LocalBackend, LocalSettings, MachineIdentity};
use tokio::runtime;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{error, warn};

pub use connection::Scheduler;
pub use error::AgentError;
use identity::Identity;
pub use term::Lifetime;
use term::Term;

/// Before another attempt to connect: from one to the other, doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(3);

/// What an agent is told when it starts.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Where it keeps its replicas and what it is known by. Nobody else uses this folder, not on another machine either.
    pub state_dir: PathBuf,
    /// The scheduler that it joins.
    pub scheduler: Scheduler,
    /// What lets it join, where it has not.
    pub token: Option<String>,
    /// What the machine is called.
    pub name: String,
    /// The host under which others reach its replicas, if not its own address on the way to the scheduler.
    pub address: Option<String>,
    /// How replicas run; the identity is filled in.
    pub local: LocalSettings,
    /// How long it works for the scheduler.
    pub lifetime: Lifetime,
}

/// An agent that has its state folder.
pub struct Agent {
    settings: AgentSettings,
    identity: Identity,
    address: String,
    local: LocalBackend,
    seen: UnboundedReceiver<Observation>,
    stopped: Arc<watch::Sender<bool>>,
    drained: Arc<watch::Sender<bool>>,
    term: Term,
}

/// How the work of an agent has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEnd {
    /// It was stopped, and its replicas run on.
    Stopped,
    /// The machine has left as it wanted, and nothing runs there any more.
    Left,
}

/// Has an agent's machine emptied, from any thread; once nothing runs there it leaves.
#[derive(Clone, Debug)]
pub struct AgentDrainer(Arc<watch::Sender<bool>>);

impl AgentDrainer {
    /// Nothing new comes there from now on, and what is there goes elsewhere.
    pub fn drain(&self) {
        self.0.send_replace(true);
    }
}

/// Ends an agent, from any thread; its replicas run on.
#[derive(Clone, Debug)]
pub struct AgentStopper(Arc<watch::Sender<bool>>);

impl AgentStopper {
    /// Lets [`Agent::run`] return.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// How a connection has ended.
enum Ended {
    /// It is to be opened again.
    Broken(String),
    /// The scheduler does not want this machine, and says why.
    Refused(String),
    /// The machine has left, or was removed: nothing runs here any more.
    Left(String),
}

impl Agent {
    /// Takes the state folder, and finds the replicas that run.
    pub fn open(settings: AgentSettings) -> Result<Self, AgentError> {
        let identity = Identity::open(&settings.state_dir, &settings.name, &settings.scheduler)?;
        let address = match &settings.address {
            Some(address) => address.clone(),
            None => settings.scheduler.own_address()?,
        };
        let (sender, seen) = mpsc::unbounded_channel();
        let observer = Box::new(move |observation| {
            #[expect(clippy::let_underscore_must_use, reason = "an agent that ends hears nothing any more")]
            let _ = sender.send(observation);
        });
        let gpu_type = settings.local.identity.gpu_type.clone();
        let machine = MachineIdentity { name: settings.name.clone(), address: address.clone(), gpu_type };
        let local = LocalSettings { identity: machine, ..settings.local.clone() };
        let local = LocalBackend::new(&settings.state_dir, local, observer)?;
        let [stopped, drained] = [(); 2].map(|()| Arc::new(watch::Sender::new(false)));
        let term = Term::begin(settings.lifetime, Instant::now());
        Ok(Self { settings, identity, address, local, seen, stopped, drained, term })
    }

    /// How to empty it.
    pub fn drainer(&self) -> AgentDrainer {
        AgentDrainer(Arc::clone(&self.drained))
    }

    /// How to end it.
    pub fn stopper(&self) -> AgentStopper {
        AgentStopper(Arc::clone(&self.stopped))
    }

    /// The replicas' side of the machine.
    pub const fn local(&self) -> &LocalBackend {
        &self.local
    }

    /// Connects, again and again, and does as it is told, until it is stopped, leaves or is removed. `joined` is called when the
    /// scheduler has welcomed it for the first time.
    pub fn run(mut self, joined: impl FnOnce()) -> Result<AgentEnd, AgentError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Runtime)?;
        let mut stopped = self.stopped.subscribe();
        let outcome = runtime.block_on(async {
            tokio::select! {
                outcome = self.connect_again_and_again(joined) => outcome,
                _ = stopped.wait_for(|stopped| *stopped) => Ok(AgentEnd::Stopped),
            }
        });
        // A look at a name service may still be under way.
        runtime.shutdown_background();
        if let Ok(AgentEnd::Left) | Err(AgentError::Removed { .. }) = &outcome {
            let Self { settings: AgentSettings { state_dir: path, .. }, identity, local, .. } = self;
            local.hand_back().map_err(|error| AgentError::State { path, reason: error.to_string() })?;
            identity.forget()?;
        }
        outcome
    }

    async fn connect_again_and_again(&mut self, joined: impl FnOnce()) -> Result<AgentEnd, AgentError> {
        let (mut joined, mut wait, mut said) = (Some(joined), RETRY_MIN, String::new());
        loop {
            let mut welcomed = false;
            let ended = self.connect(&mut welcomed, &mut joined).await?;
            if welcomed {
                (wait, said) = (RETRY_MIN, String::new());
            }
            match ended {
                Ended::Left(_) if self.term.has_asked() => return Ok(AgentEnd::Left),
                Ended::Left(reason) => return Err(AgentError::Removed { reason }),
                // Whoever has just started it sees why; a machine that was welcome before waits until it is again.
                Ended::Refused(reason) if joined.is_some() => return Err(AgentError::Refused { reason }),
                Ended::Refused(reason) => {
                    if said != reason {
                        error!(reason, "the scheduler refuses this machine; what runs here runs on");
                        said = reason;
                    }
                    wait = RETRY_MAX;
                }
                Ended::Broken(reason) => {
                    if said != reason {
                        warn!(reason, "no connection to the scheduler; what runs here runs on, and it is tried again");
                        said = reason;
                    }
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// One connection, from its beginning to its end.
    async fn connect(&mut self, welcomed: &mut bool, joined: &mut Option<impl FnOnce()>) -> Result<Ended, AgentError> {
        // Whatever was seen without a connection is asked for again.
        while self.seen.try_recv().is_ok() {}
        let mut refused = Ended::Refused(
            "this machine has not joined: give a token by --token-file, which `pollux token create --node` prints"
                .to_owned(),
        );
        for token in self.identity.tokens(self.settings.token.as_deref()) {
            match self.settings.scheduler.open(&token, self.identity.pins()).await {
                Ok(stream) => {
                    let greeted = || {
                        *welcomed = true;
                        if let Some(joined) = joined.take() {
                            joined();
                        }
                    };
                    return self.serve(stream, greeted).await;
                }
                Err(connection::Failure::Refused(reason)) => refused = Ended::Refused(reason),
                Err(connection::Failure::Broken(reason)) => return Ok(Ended::Broken(reason)),
            }
        }
        Ok(refused)
    }
}
