//! What a machine is known by, in a folder that only its agent uses.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{AgentError, Scheduler};
use crate::members::{digest, write};
use crate::nodes::random;

const FILE: &str = "node.json";
const LOCK: &str = "node.lock";
const VERSION: u32 = 1;
/// Certificates that are trusted: the one that was shown first, and that which follows it.
const PINS_MAX: usize = 2;

/// Who this machine is.
#[derive(Debug)]
pub(super) struct Identity {
    file: PathBuf,
    kept: Kept,
    /// Held for as long as the agent lives.
    _lock: File,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    name: String,
    /// What the scheduler knows it by; it knows only its digest.
    secret: String,
    /// The machine's own number, if it has one: a folder that is shared by machines is not taken by two.
    #[serde(default)]
    machine: Option<String>,
    /// The scheduler's state that it has joined, if it has.
    #[serde(default)]
    cluster: Option<String>,
    /// Fingerprints of certificates that the scheduler may show.
    #[serde(default)]
    pins: Vec<String>,
}

impl Identity {
    pub(super) fn open(folder: &Path, name: &str, scheduler: &Scheduler) -> Result<Self, AgentError> {
        let failed = |path: &Path, reason: String| AgentError::State { path: path.to_owned(), reason };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| failed(folder, error.to_string()))?;
        let lock = File::create(folder.join(LOCK)).map_err(|error| failed(folder, error.to_string()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| failed(folder, "another agent uses it: give this one another by --state".to_owned()))?;
        let file = folder.join(FILE);
        let machine = fs::read_to_string("/etc/machine-id").ok().map(|text| text.trim().to_owned());
        let machine = machine.filter(|number| !number.is_empty());
        let fresh = || -> Result<Kept, AgentError> {
            let secret = random().map_err(|error| failed(&file, error.to_string()))?;
            let (name, machine) = (name.to_owned(), machine.clone());
            Ok(Kept { version: VERSION, name, secret, machine, cluster: None, pins: Vec::new() })
        };
        let mut kept = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => fresh()?,
            Err(error) => return Err(failed(&file, error.to_string())),
            Ok(text) => serde_json::from_slice::<Kept>(&text).map_err(|error| failed(&file, error.to_string()))?,
        };
        if kept.version > VERSION {
            return Err(failed(&file, format!("version {}: expected {VERSION}, or a later pollux", kept.version)));
        }
        if kept.machine.is_some() && machine.is_some() && kept.machine != machine {
            return Err(failed(&file, "it belongs to another machine: give this one a folder by --state".to_owned()));
        }
        if kept.cluster.is_some() && kept.name != name {
            let reason = format!("this machine has joined as {}: start it with --name {0}", kept.name);
            return Err(failed(&file, reason));
        }
        name.clone_into(&mut kept.name);
        let identity = Self { file, kept, _lock: lock };
        identity.save()?;
        let mut identity = identity;
        if let Some(pin) = scheduler.pin() {
            identity.trust(pin)?;
        }
        Ok(identity)
    }

    /// The digest of its secret.
    pub(super) fn credential(&self) -> String {
        digest(&self.kept.secret)
    }

    /// What may open a connection, the likeliest first.
    pub(super) fn tokens(&self, to_join: Option<&str>) -> Vec<String> {
        let own = Some(self.kept.secret.clone());
        let to_join = to_join.map(str::to_owned);
        // Without a token to join, the own secret may have been made known by one that was lost before it was answered.
        let tokens = if self.kept.cluster.is_some() { [own, to_join] } else { [to_join, own] };
        tokens.into_iter().flatten().collect()
    }

    pub(super) fn pins(&self) -> &[String] {
        &self.kept.pins
    }

    /// The scheduler knows this machine from now on.
    pub(super) fn has_joined(&mut self, cluster: String) -> Result<(), AgentError> {
        if self.kept.cluster.as_ref() == Some(&cluster) {
            return Ok(());
        }
        self.kept.cluster = Some(cluster);
        self.save()
    }

    /// The scheduler's state that it has joined, if it has.
    pub(super) fn cluster(&self) -> Option<String> {
        self.kept.cluster.clone()
    }

    /// Another certificate may be shown from now on.
    pub(super) fn trust(&mut self, pin: &str) -> Result<(), AgentError> {
        if self.kept.pins.iter().any(|known| known == pin) {
            return Ok(());
        }
        self.kept.pins.push(pin.to_owned());
        let excess = self.kept.pins.len().saturating_sub(PINS_MAX);
        self.kept.pins.drain(..excess);
        self.save()
    }

    /// The machine is nobody's any more, and joins anew as another.
    pub(super) fn forget(&self) -> Result<(), AgentError> {
        fs::remove_file(&self.file)
            .map_err(|error| AgentError::State { path: self.file.clone(), reason: error.to_string() })
    }

    fn save(&self) -> Result<(), AgentError> {
        write(&self.file, &self.kept)
            .map_err(|error| AgentError::State { path: self.file.clone(), reason: error.to_string() })
    }
}
