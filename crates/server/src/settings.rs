use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pollux_engine::EngineSettings;
use pollux_policy::PolicySettings;

use crate::{JournalCopy, ManualClock, Retention};

/// How a live cluster is run.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where everything is kept that must survive.
    pub state_dir: PathBuf,
    /// Where workers reach the server, like `http://127.0.0.1:7878`.
    pub url: String,
    /// Where workers reach the server, if not at its own address on this machine: `https://`, unless it is this machine.
    pub worker_url: Option<String>,
    /// The authorities that vouch for that address, a PEM file that workers can read.
    pub worker_authority: Option<PathBuf>,
    /// Where each worker finds a token that an [`Authenticator`](crate::http::Authenticator) knows; without it they are
    /// given one of the server's.
    pub worker_token_file: Option<PathBuf>,
    /// How the cluster is run.
    pub engine: EngineSettings,
    /// Who gets what.
    pub policy: PolicySettings,
    /// How long a replica may take to save and leave before it is killed; longer for jobs that save slowly.
    pub grace: Duration,
    /// A group that runs for so long without a word is taken for a script that knows nothing of Pollux, and as trained.
    pub silence: Duration,
    /// After a restart, nodes that are not seen within this are taken as unreachable, and plans are made without them.
    pub node_grace: Duration,
    /// How long checkpoints of jobs that are over are kept.
    pub retention: Retention,
    /// Where all that is written is kept a second time, before anything is done about it.
    pub journal_copy: Option<Arc<dyn JournalCopy>>,
    /// What the time is, instead of the machine's clock: for tests.
    #[doc(hidden)]
    pub clock: Option<ManualClock>,
    /// Ends the process's part at the so manyth point at which it could be killed: for tests.
    #[doc(hidden)]
    pub halt_after: Option<u64>,
}

impl ServerSettings {
    /// The usual settings for a folder and an address.
    pub fn new(state_dir: impl Into<PathBuf>, url: &str, policy: PolicySettings) -> Self {
        Self {
            state_dir: state_dir.into(),
            url: url.to_owned(),
            worker_url: None,
            worker_authority: None,
            worker_token_file: None,
            engine: EngineSettings::default(),
            policy,
            grace: Duration::from_secs(30),
            silence: Duration::from_secs(10),
            node_grace: Duration::from_secs(10),
            retention: Retention::default(),
            journal_copy: None,
            clock: None,
            halt_after: None,
        }
    }
}
