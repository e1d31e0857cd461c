//! Checkpoints of jobs: a folder for each, below one that is this backend's own.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pollux_backend::{CheckpointAnswer, Checkpoints, Epoch, SavedCheckpoints};
use pollux_policy::JobId;
use tracing::warn;

use crate::disk::DiskThreads;
use crate::epoch_gate::EpochGate;

/// Ends the name of a folder that is being deleted.
const DELETED: &str = "deleted";

/// Folders of this machine.
#[derive(Debug)]
pub(crate) struct LocalCheckpoints {
    folder: PathBuf,
    gate: EpochGate,
    threads: DiskThreads,
}

impl LocalCheckpoints {
    pub(crate) fn new(folder: PathBuf, gate: EpochGate) -> io::Result<Self> {
        Ok(Self { folder, gate, threads: DiskThreads::start("checkpoints", 1)? })
    }

    fn of(&self, job: JobId) -> PathBuf {
        self.folder.join(job.0.to_string())
    }
}

impl Checkpoints for LocalCheckpoints {
    fn location(&self, job: JobId) -> String {
        self.of(job).to_string_lossy().into_owned()
    }

    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>) {
        let folder = self.folder.clone();
        self.threads.run(move || answer(list(&folder)));
    }

    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>) {
        let (folder, gate) = (self.of(job), self.gate.clone());
        self.threads.run(move || {
            answer(delete(&folder, &gate, epoch));
        });
    }
}

fn delete(folder: &Path, gate: &EpochGate, epoch: Epoch) -> io::Result<u64> {
    // What takes long is not done while other orders wait.
    let (bytes, _) = measure(folder)?;
    let gone = folder.with_extension(DELETED);
    let admission = gate.admit(epoch)?;
    match fs::rename(folder, &gone) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        other => other?,
    }
    drop(admission);
    fs::remove_dir_all(gone)?;
    Ok(bytes)
}

fn list(folder: &Path) -> io::Result<Vec<SavedCheckpoints>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut saved = Vec::new();
    for entry in entries {
        let entry = entry?;
        // What was half deleted is gone for everybody.
        if entry.path().extension().is_some_and(|extension| extension == DELETED)
            && let Err(error) = fs::remove_dir_all(entry.path())
        {
            warn!(folder = %entry.path().display(), %error, "checkpoints that were deleted still take room");
        }
        // Whatever else is there is not ours.
        let job = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(JobId);
        if let Some(job) = job.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let (bytes, written) = measure(&entry.path())?;
            saved.push(SavedCheckpoints { job, bytes, written });
        }
    }
    saved.sort_by_key(|saved| saved.job);
    Ok(saved)
}

/// Bytes below a folder, and when something was written there last. Links are not followed; what vanishes meanwhile is
/// not counted.
fn measure(folder: &Path) -> io::Result<(u64, SystemTime)> {
    let (mut bytes, mut written) = (0, SystemTime::UNIX_EPOCH);
    let mut paths = vec![folder.to_owned()];
    while let Some(path) = paths.pop() {
        let metadata = match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        written = written.max(metadata.modified()?);
        if metadata.is_dir() {
            let entries = match fs::read_dir(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                paths.push(entry?.path());
            }
        } else {
            bytes += metadata.len();
        }
    }
    Ok((bytes, written))
}
