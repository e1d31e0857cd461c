//! Figures in prose are those of a run.

use super::Finding;
use super::repo::Repo;

const START: &str = "<!-- rows of ";
const END: &str = "<!-- end of rows -->";

/// Rows that a page quotes from results are rows of those results.
pub(super) fn check_quoted_rows(repo: &Repo) -> Vec<Finding> {
    let pages = repo.files.iter().filter(|(path, _)| path.ends_with(".md"));
    pages.flat_map(|(path, text)| stale_rows(repo, path, text)).collect()
}

fn stale_rows(repo: &Repo, path: &str, text: &str) -> Vec<Finding> {
    let mut source: Option<&str> = None;
    let mut findings = Vec::new();
    for (line, row) in (1..).zip(text.lines()) {
        if let Some(name) = row.strip_prefix(START).and_then(|rest| rest.strip_suffix(" -->")) {
            source = Some(name);
        } else if row == END {
            source = None;
        } else if let Some(name) = source {
            let known = repo.files.get(name).is_some_and(|results| results.lines().any(|known| known == row));
            if !known {
                findings.push(Finding::new(path, line, format!("not a row of {name}; copy it from there")));
            }
        }
    }
    findings
}
