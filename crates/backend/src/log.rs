use std::{fmt, io};

use crate::ReplicaId;

/// Reads what replicas have written. Copies of the handle are shared by everybody who reads, beside the scheduler.
///
/// A log is one sequence of bytes that grows at its end; a *position* counts them from the first that was ever written.
/// The oldest may have been dropped.
pub trait LogReader: Send + Sync + fmt::Debug {
    /// Reads up to `bytes_max` bytes of a replica's log. The call does not wait: `answer` is called once, from any
    /// thread. A replica of which nothing is kept has an empty log that has not ended.
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer);
}

/// Who is told what was read.
pub type LogAnswer = Box<dyn FnOnce(io::Result<LogChunk>) + Send>;

/// Where to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStart {
    /// From this position on.
    At(u64),
    /// So many lines before the end.
    LastLines(u64),
}

/// A piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogChunk {
    /// What is written there; empty at the end of what was written so far.
    pub bytes: Vec<u8>,
    /// The position after these bytes: where to read on.
    pub next: u64,
    /// Bytes between the position that was asked for and the first that is still kept. None are counted for a reader
    /// who asks for the last lines.
    pub dropped: u64,
    /// Whether nothing will ever follow: the replica has ended and this is its last piece.
    pub ended: bool,
}
