//! Machines that have joined, and who may: one file of the scheduler's state folder, written whole before it counts.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::nodes::random;
use crate::protocol::Hello;

const FILE: &str = "nodes.json";
const VERSION: u32 = 1;
/// Machines that were removed and may still come back, the newest.
const REMOVED_MAX: usize = 1_000;
/// Tokens that are good at the same time.
const TOKENS_MAX: usize = 1_000;

/// All of it.
#[derive(Debug)]
pub(crate) struct Members {
    file: PathBuf,
    kept: Kept,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// What machines know this state of a scheduler by.
    cluster: String,
    machines: Vec<Machine>,
    #[serde(default)]
    removed: Vec<Removed>,
    #[serde(default)]
    tokens: Vec<JoinToken>,
}

/// A machine that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) name: String,
    /// SHA-256 of its secret.
    credential: String,
    /// The version of its program, when it was here last.
    pub(crate) version: String,
    /// The host under which others reach its replicas.
    pub(crate) address: String,
    /// The names of its nodes.
    pub(crate) nodes: Vec<String>,
    /// Whether it is to end what it runs, and leave.
    #[serde(default)]
    pub(crate) is_leaving: bool,
}

/// A machine that was removed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Removed {
    name: String,
    credential: String,
    pub(crate) nodes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct JoinToken {
    /// SHA-256 of it.
    digest: String,
    until_ms: u64,
}

/// Whom a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeCaller {
    /// Somebody who may join, and nothing else.
    Joining,
    /// A machine that has joined, by its name.
    Joined(String),
    /// A machine that was removed since, by its name.
    Removed(String),
}

impl fmt::Display for NodeCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joining => write!(f, "a machine that joins"),
            Self::Joined(name) => write!(f, "machine {name}"),
            Self::Removed(name) => write!(f, "removed machine {name}"),
        }
    }
}

/// SHA-256 as text.
pub(crate) fn digest(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

impl Members {
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let file = state_dir.join(FILE);
        let named = |error: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {error}", file.display()));
        let kept = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (machines, removed, tokens) = (Vec::new(), Vec::new(), Vec::new());
                Kept { version: VERSION, cluster: random()?, machines, removed, tokens }
            }
            read => serde_json::from_slice(&read?).map_err(|error| named(error.to_string()))?,
        };
        if kept.version > VERSION {
            return Err(named(format!("version {}: expected {VERSION}, or a later pollux", kept.version)));
        }
        Ok(Self { file, kept })
    }

    pub(crate) fn cluster(&self) -> &str {
        &self.kept.cluster
    }

    pub(crate) fn machines(&self) -> &[Machine] {
        &self.kept.machines
    }

    pub(crate) fn removed(&self) -> &[Removed] {
        &self.kept.removed
    }

    pub(crate) fn machine(&self, name: &str) -> Option<&Machine> {
        self.kept.machines.iter().find(|machine| machine.name == name)
    }

    /// The machine that has a node.
    pub(crate) fn machine_of(&self, node: &str) -> Option<&str> {
        let has = |machine: &&Machine| machine.nodes.iter().any(|it| it == node);
        self.kept.machines.iter().find(has).map(|machine| machine.name.as_str())
    }

    pub(crate) fn caller(&self, token: &str, now_ms: u64) -> Option<NodeCaller> {
        let digest = digest(token);
        let machine = self.kept.machines.iter().find(|it| is_same(&it.credential, &digest));
        let removed = || self.kept.removed.iter().rev().find(|it| is_same(&it.credential, &digest));
        let joins = || self.kept.tokens.iter().any(|it| is_same(&it.digest, &digest) && it.until_ms > now_ms);
        match machine {
            Some(machine) => Some(NodeCaller::Joined(machine.name.clone())),
            None if joins() => Some(NodeCaller::Joining),
            None => removed().map(|it| NodeCaller::Removed(it.name.clone())),
        }
    }

    /// A token lets machines join for some time.
    pub(crate) fn admit_by(&mut self, token: &str, now_ms: u64, until_ms: u64) -> io::Result<()> {
        let digest = digest(token);
        self.change(|kept| {
            kept.tokens.retain(|it| it.until_ms > now_ms);
            let excess = (kept.tokens.len() + 1).saturating_sub(TOKENS_MAX);
            kept.tokens.drain(..excess);
            kept.tokens.push(JoinToken { digest, until_ms });
        })
    }

    /// A machine joins, or is here again as what it is now.
    pub(crate) fn join(&mut self, hello: &Hello) -> io::Result<()> {
        let Hello { name, credential, version, address, nodes, .. } = hello.clone();
        let known = self.machine(&name);
        let is_leaving = known.is_some_and(|known| known.is_leaving);
        let machine = Machine { name, credential, version, address, nodes, is_leaving };
        if known == Some(&machine) {
            return Ok(());
        }
        self.change(|kept| {
            kept.machines.retain(|it| it.name != machine.name);
            kept.machines.push(machine);
        })
    }

    /// Whether a name is free, or that of the machine with this credential.
    pub(crate) fn may_be(&self, name: &str, credential: &str) -> bool {
        self.machine(name).is_none_or(|machine| is_same(&machine.credential, credential))
    }

    /// A machine is to end what it runs, whenever it hears of it.
    pub(crate) fn let_go(&mut self, name: &str) -> io::Result<()> {
        self.change(|kept| {
            kept.machines.iter_mut().filter(|it| it.name == name).for_each(|machine| machine.is_leaving = true);
        })
    }

    /// A machine is none of ours any more; returns its nodes.
    pub(crate) fn remove(&mut self, name: &str) -> io::Result<Vec<String>> {
        let Some(machine) = self.machine(name).cloned() else { return Ok(Vec::new()) };
        let nodes = machine.nodes;
        self.change(|kept| {
            kept.machines.retain(|it| it.name != name);
            let excess = (kept.removed.len() + 1).saturating_sub(REMOVED_MAX);
            kept.removed.drain(..excess);
            kept.removed.push(Removed { name: machine.name, credential: machine.credential, nodes: nodes.clone() });
        })?;
        Ok(nodes)
    }

    fn change(&mut self, change: impl FnOnce(&mut Kept)) -> io::Result<()> {
        let mut kept = self.kept.clone();
        change(&mut kept);
        write(&self.file, &kept)?;
        self.kept = kept;
        Ok(())
    }
}

/// Replaces a file that nobody else may read: it is there whole or not at all, also after a power failure.
pub(crate) fn write(file: &Path, content: &impl Serialize) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut writer = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    serde_json::to_writer(&mut writer, content)?;
    writer.flush()?;
    writer.sync_all()?;
    fs::rename(&new, file)?;
    file.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(name: &str, credential: &str, nodes: &[&str]) -> Hello {
        Hello {
            protocol: 1,
            version: "0.1.0".to_owned(),
            name: name.to_owned(),
            credential: credential.to_owned(),
            cluster: None,
            address: "10.0.0.7".to_owned(),
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            replicas: Vec::new(),
            end: None,
        }
    }

    #[test]
    fn tokens_open_what_they_are_for_as_long_as_they_do_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut members = Members::open(folder.path()).unwrap();
        members.admit_by("ticket", 1_000, 2_000).unwrap();
        members.join(&hello("gpu1", &digest("secret"), &["gpu1"])).unwrap();
        let cluster = members.cluster().to_owned();
        let members = Members::open(folder.path()).unwrap();
        assert_eq!(members.cluster(), cluster);
        assert_eq!(members.caller("ticket", 1_999), Some(NodeCaller::Joining));
        assert_eq!(members.caller("ticket", 2_000), None);
        assert_eq!(members.caller("secret", 9_999), Some(NodeCaller::Joined("gpu1".to_owned())));
        assert_eq!(members.caller("guess", 1_500), None);
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(!text.contains("ticket") && !text.contains("\"secret\""), "{text}");
    }

    #[test]
    fn a_name_belongs_to_one_machine_until_that_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut members = Members::open(folder.path()).unwrap();
        let (one, other) = (digest("one"), digest("other"));
        members.join(&hello("gpu1", &one, &["gpu1-0", "gpu1-1"])).unwrap();
        assert_eq!((members.may_be("gpu1", &one), members.may_be("gpu1", &other)), (true, false));
        assert_eq!(members.machine_of("gpu1-1"), Some("gpu1"));
        assert_eq!(members.remove("gpu1").unwrap(), ["gpu1-0", "gpu1-1"]);
        assert!(members.may_be("gpu1", &other));
        assert_eq!(members.caller("one", 0), Some(NodeCaller::Removed("gpu1".to_owned())));
        members.join(&hello("gpu1", &other, &["gpu1"])).unwrap();
        let members = Members::open(folder.path()).unwrap();
        assert_eq!(members.caller("one", 0), Some(NodeCaller::Removed("gpu1".to_owned())));
        assert_eq!(members.caller("other", 0), Some(NodeCaller::Joined("gpu1".to_owned())));
    }

    #[test]
    fn a_machine_that_is_let_go_stays_so_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut members = Members::open(folder.path()).unwrap();
        let gpu1 = hello("gpu1", "ab", &["gpu1"]);
        members.join(&gpu1).unwrap();
        members.let_go("gpu1").unwrap();
        let mut members = Members::open(folder.path()).unwrap();
        members.join(&Hello { version: "0.1.1".to_owned(), ..gpu1.clone() }).unwrap();
        assert!(members.machine("gpu1").unwrap().is_leaving);
        members.remove("gpu1").unwrap();
        members.join(&gpu1).unwrap();
        assert!(!members.machine("gpu1").unwrap().is_leaving);
    }

    #[test]
    fn a_later_version_is_refused_and_what_it_adds_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        fs::write(&file, r#"{"version": 1, "cluster": "ab", "machines": [], "colour": "blue"}"#).unwrap();
        assert!(Members::open(folder.path()).unwrap().machines().is_empty());
        fs::write(&file, r#"{"version": 2, "cluster": "ab", "machines": []}"#).unwrap();
        let error = Members::open(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("nodes.json: version 2: expected 1, or a later pollux"), "{error}");
    }
}
