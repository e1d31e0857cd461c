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
}
