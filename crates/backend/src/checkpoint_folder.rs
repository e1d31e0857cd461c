use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use pollux_policy::JobId;

use crate::SavedCheckpoints;

/// Ends the name of a folder that is being deleted.
const DELETED: &str = "deleted";

/// Checkpoints of jobs as files: a folder for each, below one that is theirs alone. Calls wait for the disk.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    folder: PathBuf,
}

impl CheckpointFolder {
    /// Below this one.
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where a job saves.
    pub fn of(&self, job: JobId) -> PathBuf {
        self.folder.join(job.0.to_string())
    }

    /// Everything that is kept. Of what was half deleted and cannot be deleted now, `leftover` is told.
    pub fn list(&self, leftover: impl Fn(&Path, &io::Error)) -> io::Result<Vec<SavedCheckpoints>> {
        let entries = match fs::read_dir(&self.folder) {
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
                leftover(&entry.path(), &error);
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

    /// Deletes what a job has saved, if that is admitted when it is about to be done; returns its bytes.
    pub fn delete<T>(&self, job: JobId, admit: impl FnOnce() -> io::Result<T>) -> io::Result<u64> {
        let folder = self.of(job);
        // What takes long is not done while other orders wait.
        let (bytes, _) = measure(&folder)?;
        let gone = folder.with_extension(DELETED);
        let admission = admit()?;
        match fs::rename(&folder, &gone) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            other => other?,
        }
        drop(admission);
        fs::remove_dir_all(gone)?;
        Ok(bytes)
    }
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
