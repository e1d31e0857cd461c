//! Rules of the repository that neither the compiler nor clippy can hold.
//!
//! [`tidy`] reads the tree once into a [`Repo`]; each check is a function from it to findings.

mod crates;
mod quotes;
mod repo;
mod sources;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use repo::Repo;

/// One broken rule: where it is, what is wrong and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the root of the workspace, with forward slashes.
    pub(crate) file: String,
    /// Line in that file, counted from one.
    pub(crate) line: usize,
    /// What is wrong, then what would be accepted.
    pub(crate) message: String,
}

impl Finding {
    fn new(file: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.file, self.line, self.message)
    }
}

type Check = fn(&Repo) -> Vec<Finding>;

const CHECKS: &[Check] = &[
    sources::check_length,
    sources::check_leftovers,
    sources::check_machine_paths,
    sources::check_names,
    crates::check_declared,
    crates::check_crate_comments,
    crates::check_inheritance,
    crates::check_pure_dependencies,
    crates::check_pure_bans,
    quotes::check_quoted_rows,
];

/// Runs every check on the workspace at `root`; findings come ordered by file and line.
pub(crate) fn tidy(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let repo = Repo::read(root)?;
    let mut findings: Vec<_> = CHECKS.iter().flat_map(|check| check(&repo)).collect();
    findings.sort();
    Ok(findings)
}
