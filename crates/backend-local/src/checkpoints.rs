//! Checkpoints of jobs: a folder for each, below one that is this backend's own.

use std::io;
use std::path::PathBuf;

use pollux_backend::{CheckpointAnswer, CheckpointFolder, Checkpoints, Epoch, SavedCheckpoints};
use pollux_policy::JobId;
use tracing::warn;

use crate::disk::DiskThreads;
use crate::epoch_gate::EpochGate;

/// Folders of this machine.
#[derive(Debug)]
pub(crate) struct LocalCheckpoints {
    folder: CheckpointFolder,
    gate: EpochGate,
    threads: DiskThreads,
}

impl LocalCheckpoints {
    pub(crate) fn new(folder: PathBuf, gate: EpochGate) -> io::Result<Self> {
        Ok(Self { folder: CheckpointFolder::new(folder), gate, threads: DiskThreads::start("checkpoints", 1)? })
    }
}

impl Checkpoints for LocalCheckpoints {
    fn location(&self, job: JobId) -> String {
        self.folder.of(job).to_string_lossy().into_owned()
    }

    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>) {
        let folder = self.folder.clone();
        self.threads.run(move || {
            answer(folder.list(|path, error| {
                warn!(folder = %path.display(), %error, "checkpoints that were deleted still take room");
            }));
        });
    }

    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>) {
        let (folder, gate) = (self.folder.clone(), self.gate.clone());
        self.threads.run(move || answer(folder.delete(job, || Ok(gate.admit(epoch)?))));
    }
}
