use std::path::PathBuf;

use thiserror::Error;

/// Why there is no demo.
#[derive(Debug, Error)]
pub(crate) enum DemoError {
    /// Nothing that could be trained.
    #[error("{}: there is no trainer; `make demo` builds it, or name one with --trainer", path.display())]
    NoTrainer {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A scheduler did not come up.
    #[error("a scheduler did not start: {talk}")]
    NotStarted {
        /// The last thing it said.
        talk: String,
    },
    /// The user has seen enough.
    #[error("stopped; nothing is left behind")]
    Interrupted,
    /// Trainings that should have ended well did not.
    #[error("trainings failed: {}; `make test` says what is wrong with this build", .jobs.join("; "))]
    Failed {
        /// Which, and why.
        jobs: Vec<String>,
    },
}

impl DemoError {
    /// What the command ends with: 2 for what has to be asked for differently, 130 as shells say it of an interruption.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::NoTrainer { .. } => 2,
            Self::NotStarted { .. } | Self::Failed { .. } => 1,
            Self::Interrupted => 130,
        }
    }
}
