//! Which commit an experiment was run at.

use std::path::Path;
use std::process::{Command, Stdio};

/// The commit of the tree that holds `folder`, marked where anything but the results differs from it.
pub(super) fn commit(folder: &Path, results: &Path) -> String {
    commit_of(folder, results).unwrap_or_else(|| "unknown".to_owned())
}

fn commit_of(folder: &Path, results: &Path) -> Option<String> {
    let hash = git(folder, &["rev-parse", "--short", "HEAD"])?;
    let root = git(folder, &["rev-parse", "--show-toplevel"])?;
    let mut status = vec!["status".to_owned(), "--porcelain".to_owned(), "--".to_owned(), ":/".to_owned()];
    // Results of one experiment must not mark those of the next.
    let results = results.canonicalize().ok()?;
    if let Some(results) = results.strip_prefix(&root).ok().filter(|path| path.file_name().is_some()) {
        status.push(format!(":(top,exclude){}", results.display()));
    }
    let changes = git(folder, &status)?;
    Some(if changes.is_empty() { hash } else { format!("{hash}-dirty") })
}

/// What git says, if it is there and has something to say.
fn git(folder: &Path, args: &[impl AsRef<std::ffi::OsStr>]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(args).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
