use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::LocalError;

/// How replicas run on this machine.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// What the machine looks like to the scheduler.
    pub nodes: NodeLayout,
    /// The program that is started as `PROGRAM shim FOLDER` and calls [`crate::shim`].
    pub program: PathBuf,
    /// How long a replica may take to end where nobody said otherwise: one that is not known, or whose shim is told to
    /// end by somebody else.
    pub grace: Duration,
    /// How much of what replicas write is kept.
    pub log: LogLimits,
    /// Where jobs save, in a folder for each, and nobody else: `checkpoints` in the state folder if nothing is said.
    pub checkpoint_dir: Option<PathBuf>,
    /// What the machine is called, and where it is reached.
    pub identity: MachineIdentity,
}

/// What a machine is called, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineIdentity {
    /// The name of its node, or the beginning of the names of several.
    pub name: String,
    /// The host under which others reach its replicas.
    pub address: String,
    /// What its GPUs or slots are called, if not as the driver does.
    pub gpu_type: Option<String>,
}

impl Default for MachineIdentity {
    /// The machine of the scheduler, where nobody else has to reach anything.
    fn default() -> Self {
        Self { name: "local".to_owned(), address: "127.0.0.1".to_owned(), gpu_type: None }
    }
}

/// What the machine looks like to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLayout {
    /// Every GPU, or a slot for every core on a machine without. GPUs of different kinds are different nodes.
    Gpus,
    /// No node: nothing is started here, and only what was started before is watched over.
    Nothing,
    /// One node of that many slots without GPUs.
    Slots(u32),
    /// Pretend nodes, to try placement on one machine. Their slots are its GPUs if it has enough.
    Nodes {
        /// How many.
        nodes: u32,
        /// Slots of each.
        slots: u32,
    },
}

impl FromStr for NodeLayout {
    type Err = LocalError;

    /// Pretend nodes from text such as `4x4`.
    fn from_str(text: &str) -> Result<Self, LocalError> {
        let layout = text.split_once('x').and_then(|(nodes, slots)| {
            // A sign is not part of a count.
            let count =
                |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?;
            Some(Self::Nodes { nodes: count(nodes)?, slots: count(slots)? })
        });
        layout.ok_or_else(|| LocalError::LayoutText { text: text.to_owned() })
    }
}

/// How much of what a replica writes is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Size at which a new file is begun.
    pub bytes_max: u64,
    /// Full files that are kept beside the one that is written.
    pub old_files: u32,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { bytes_max: 10_000_000, old_files: 3 }
    }
}
