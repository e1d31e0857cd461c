use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why replicas cannot run on this machine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The state folder cannot be used.
    #[error("{}: cannot keep replicas there: {source}", .path.display())]
    State {
        /// Which folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder for checkpoints cannot be used.
    #[error("{}: cannot keep checkpoints there: {source}", .path.display())]
    Checkpoints {
        /// Which folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program that watches over replicas is not there.
    #[error("{}: cannot start replicas with it: {source}", .path.display())]
    Program {
        /// Which program.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nodes that cannot be.
    #[error("{nodes} nodes of {slots} slots: expected 1 or more of each, {limit} slots in all")]
    Layout {
        /// Nodes asked for.
        nodes: u32,
        /// Slots of each.
        slots: u32,
        /// Most slots accepted.
        limit: u32,
    },
    /// Text that describes no nodes.
    #[error("{text:?}: expected NODESxSLOTS, such as 4x4")]
    LayoutText {
        /// What was read.
        text: String,
    },
    /// There is a driver, but it does not answer.
    #[error("the GPUs cannot be listed: {reason}; repair the driver, or ask for CPU slots")]
    Gpus {
        /// What went wrong, in one line.
        reason: String,
    },
    /// The system gives no handles to wait with.
    #[error("cannot watch processes: {0}")]
    Watch(io::Error),
}
