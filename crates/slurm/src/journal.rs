//! All queues: one file of the scheduler's state folder, written whole before it counts.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::queue::Queue;

const FILE: &str = "allocations.json";
const VERSION: u32 = 1;

/// The file, and what it holds.
#[derive(Debug)]
pub(crate) struct Journal {
    file: PathBuf,
    kept: Kept,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// Tells jobs of this scheduler from those of another of the same user.
    key: String,
    /// Of the last allocation that was ever asked for.
    #[serde(default)]
    last: u64,
    #[serde(default)]
    queues: Vec<Queue>,
}

impl Journal {
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let file = state_dir.join(FILE);
        let named = |error: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {error}", file.display()));
        let kept = match fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Kept { version: VERSION, key: key()?, last: 0, queues: Vec::new() }
            }
            read => serde_json::from_slice(&read?).map_err(|error| named(error.to_string()))?,
        };
        if kept.version > VERSION {
            return Err(named(format!("version {}: expected {VERSION}, or a later pollux", kept.version)));
        }
        Ok(Self { file, kept })
    }

    /// How names of allocations begin.
    pub(crate) fn prefix(&self) -> String {
        format!("pollux-{}-", self.kept.key)
    }

    pub(crate) fn queues(&self) -> &[Queue] {
        &self.kept.queues
    }

    pub(crate) fn queue(&self, name: &str) -> Option<&Queue> {
        self.kept.queues.iter().find(|queue| queue.spec.name == name)
    }

    /// A number that no allocation has had.
    pub(crate) const fn next(&self) -> u64 {
        self.kept.last + 1
    }

    /// Changes what is kept: on the disk first.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Vec<Queue>) -> T) -> io::Result<T> {
        let mut kept = self.kept.clone();
        let outcome = change(&mut kept.queues);
        let highest = kept.queues.iter().flat_map(|queue| &queue.allocations).map(|it| it.number).max();
        kept.last = kept.last.max(highest.unwrap_or(0));
        write(&self.file, &serde_json::to_vec(&kept)?)?;
        self.kept = kept;
        Ok(outcome)
    }

    /// Says of a queue what need not survive.
    pub(crate) fn say(&mut self, name: &str, standing: String) {
        if let Some(queue) = self.kept.queues.iter_mut().find(|queue| queue.spec.name == name) {
            queue.standing = standing;
        }
    }
}

fn key() -> io::Result<String> {
    let mut bytes = [0_u8; 4];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Replaces a file that nobody else may read: it is there whole or not at all, also after a power failure.
pub(crate) fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut writer = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    writer.write_all(content)?;
    writer.sync_all()?;
    fs::rename(&new, file)?;
    file.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::spec;

    /// As version 1 wrote it.
    const VERSION_1: &str = r#"{"version":1,"key":"0badcafe","last":7,"queues":[{"spec":{"name":"a100","time_limit_s":28800,
        "nodes_per_alloc":1,"backlog":1,"idle_timeout_s":600,"drain_before_s":600,"sbatch":["-p","gpu"]},
        "allocations":[{"number":7,"name":"pollux-0badcafe-a100-7","stage":"asked","asked_ms":1000}],"colour":"blue"}]}"#;

    #[test]
    fn what_version_1_wrote_is_read_and_numbers_are_never_used_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), VERSION_1).unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        assert_eq!((journal.prefix().as_str(), journal.next()), ("pollux-0badcafe-", 8));
        assert_eq!(journal.queue("a100").unwrap().allocations[0].number, 7);
        journal.change(Vec::clear).unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        assert_eq!((journal.queues().len(), journal.next()), (0, 8));
    }

    #[test]
    fn a_later_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), r#"{"version":2,"key":"ab"}"#).unwrap();
        let error = Journal::open(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("allocations.json: version 2: expected 1, or a later pollux"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let mut journal = Journal::open(&state).unwrap();
        fs::remove_dir(&state).unwrap();
        assert!(journal.change(|queues| queues.push(Queue::new(spec("a")))).is_err());
        assert!(journal.queues().is_empty());
    }
}
