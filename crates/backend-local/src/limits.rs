//! How many files a process may have open: the daemon needs some for every replica, workers get what they always had.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// What this process was started with.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Lets this process have as many files open as it may; tells how many it might before.
pub fn raise_files_max() -> Option<u64> {
    *BEFORE.get_or_init(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            // Replicas beyond those that can be watched fail to start, and fewer clients can be connected.
            warn!(%error, limit = current, "no more files can be opened than that");
        }
        current
    })
}

/// Lets this process, and what it becomes, have no more files open than that: some programs go through all they might.
pub(crate) fn lower_files_max(files_max: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    #[expect(clippy::let_underscore_must_use, reason = "it was so before")]
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files_max.or(maximum), maximum });
}
