use std::time::SystemTime;
use std::{fmt, io};

use pollux_policy::JobId;

use crate::Epoch;

/// Where jobs keep their checkpoints, and what that costs. No call but [`Checkpoints::location`] waits for a disk:
/// answers are given once, from any thread.
pub trait Checkpoints: Send + Sync + fmt::Debug {
    /// The folder that replicas of a job are told to save in, the same for all of them wherever they run.
    fn location(&self, job: JobId) -> String;

    /// Looks for everything that is kept.
    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>);

    /// Deletes all that is kept of a job that has ended; answers with the bytes that were freed.
    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>);
}

/// Who is told what came of it.
pub type CheckpointAnswer<T> = Box<dyn FnOnce(io::Result<T>) + Send>;

/// What is kept of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedCheckpoints {
    /// Whose.
    pub job: JobId,
    /// Room that it takes.
    pub bytes: u64,
    /// When the job wrote there last.
    pub written: SystemTime,
}
