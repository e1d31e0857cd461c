//! How many files a process may have open: the daemon needs some for every replica, workers get what they always had.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What this process was started with.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Lets this process have as many files open as it may; tells how many it might before.
pub(crate) fn raise_files_max() -> Option<u64> {
    *BEFORE.get_or_init(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // Without it fewer replicas can be watched, and those beyond fail to start.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        current
    })
}

/// Lets this process, and what it becomes, have no more files open than that: some programs go through all they might.
pub(crate) fn lower_files_max(files_max: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // It was so before.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files_max.or(maximum), maximum });
}
