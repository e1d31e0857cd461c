//! Checks on crates: their manifests, their module trees, and the purity of some of them.

use std::collections::BTreeSet;

use super::Finding;
use super::repo::{Crate, Repo};
use super::sources::modules;

/// The pure crates and the crates of ours that each may use.
const PURE: &[(&str, &[&str])] = &[
    ("crates/model", &[]),
    ("crates/agent", &["pollux-model"]),
    ("crates/job", &[]),
    ("crates/policy", &["pollux-job", "pollux-model"]),
    ("crates/engine", &["pollux-agent", "pollux-job", "pollux-model", "pollux-policy"]),
];

/// What every pure crate may use from outside: data and errors, nothing that acts.
const PURE_EXTERNAL: &[&str] = &["serde", "thiserror", "utoipa"];

/// What the clippy settings of a pure crate ban at least.
const PURE_BANS: &[(&str, &[&str])] = &[
    ("disallowed-methods", &["std::time::Instant::now", "std::time::SystemTime::now", "std::env::var"]),
    ("disallowed-types", &["std::collections::HashMap", "std::collections::HashSet"]),
];

/// Every Rust file under `src` belongs to a module tree; the compiler ignores the others in silence.
pub(super) fn check_declared(repo: &Repo) -> Vec<Finding> {
    repo.crates
        .iter()
        .flat_map(|member| {
            let declared = declared(repo, member);
            sources(repo, member).filter(move |path| !declared.contains(path))
        })
        .map(|path| Finding::new(path, 1, "no module declares this file; add a mod line or delete it"))
        .collect()
}

/// Every crate says first what it is for.
pub(super) fn check_crate_comments(repo: &Repo) -> Vec<Finding> {
    repo.crates
        .iter()
        .flat_map(|member| roots(repo, member))
        .filter(|&path| {
            let comment = repo.files[path].lines().next().and_then(|line| line.strip_prefix("//!"));
            comment.is_none_or(|comment| comment.trim().is_empty())
        })
        .map(|path| Finding::new(path, 1, "no crate comment; open with //! and say what the crate is for"))
        .collect()
}

/// Lints and versions are written once, in the root.
pub(super) fn check_inheritance(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &repo.crates {
        let manifest = format!("{}/Cargo.toml", member.folder);
        if !member.inherits_lints {
            let message = "lints are not inherited; write workspace = true under [lints]";
            findings.push(Finding::new(&manifest, 1, message));
        }
        for dependency in member.dependencies.iter().filter(|dependency| !dependency.inherited) {
            let name = &dependency.name;
            let message =
                format!("{name} has its own version or path; write {name}.workspace = true and the rest in the root");
            findings.push(Finding::new(&manifest, dependency.line, message));
        }
    }
    findings
}

/// Pure crates use each other in one direction, and almost nothing else.
pub(super) fn check_pure_dependencies(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (member, internal) in pure_crates(repo) {
        let allowed = [internal, PURE_EXTERNAL].concat();
        for dependency in member.dependencies.iter().filter(|dependency| dependency.shipped) {
            let name = dependency.name.as_str();
            if !allowed.contains(&name) {
                let manifest = format!("{}/Cargo.toml", member.folder);
                let message = format!("{name} is not allowed in this pure crate; allowed: {}", allowed.join(", "));
                findings.push(Finding::new(manifest, dependency.line, message));
            }
        }
    }
    findings
}

/// Pure crates ban the clock, the environment and random order by clippy settings of their own.
pub(super) fn check_pure_bans(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (member, _) in pure_crates(repo) {
        for (key, paths) in PURE_BANS {
            let banned = bans(member, key);
            for path in paths.iter().filter(|path| !banned.contains(path)) {
                let file = format!("{}/clippy.toml", member.folder);
                let message = format!("{path} is not banned in this pure crate; add it to {key}");
                findings.push(Finding::new(file, 1, message));
            }
        }
    }
    findings
}

fn pure_crates(repo: &Repo) -> impl Iterator<Item = (&Crate, &'static [&'static str])> {
    repo.crates.iter().filter_map(|member| {
        let (_, internal) = PURE.iter().find(|(folder, _)| *folder == member.folder)?;
        Some((member, *internal))
    })
}

fn bans<'repo>(member: &'repo Crate, key: &str) -> Vec<&'repo str> {
    let entries = member.clippy.as_ref().and_then(|clippy| clippy.get(key)?.as_array());
    entries.into_iter().flatten().filter_map(|entry| entry.as_str().or_else(|| entry.get("path")?.as_str())).collect()
}

/// The Rust files under a crate's `src`.
fn sources<'repo>(repo: &'repo Repo, member: &Crate) -> impl Iterator<Item = &'repo str> + use<'repo> {
    let src = format!("{}/src/", member.folder);
    let files = repo.files.keys().map(String::as_str);
    files.filter(move |path| path.starts_with(&src) && path.ends_with(".rs"))
}

/// The files a compiler starts from, where cargo looks for them.
fn roots<'repo>(repo: &'repo Repo, member: &Crate) -> impl Iterator<Item = &'repo str> + use<'repo> {
    let src = format!("{}/src/", member.folder);
    sources(repo, member).filter(move |path| {
        let parts: Vec<_> = path[src.len()..].split('/').collect();
        matches!(parts[..], ["lib.rs" | "main.rs"] | ["bin", _] | ["bin", _, "main.rs"])
    })
}

fn declared<'repo>(repo: &'repo Repo, member: &Crate) -> BTreeSet<&'repo str> {
    let roots: BTreeSet<_> = roots(repo, member).collect();
    let mut waiting: Vec<_> = roots.iter().copied().collect();
    let mut declared = BTreeSet::new();
    while let Some(path) = waiting.pop() {
        if !declared.insert(path) {
            continue;
        }
        let children = match path.rsplit_once('/') {
            Some((folder, name)) if name == "mod.rs" || roots.contains(path) => folder,
            _ => path.trim_end_matches(".rs"),
        };
        for module in modules(&repo.files[path]).filter(|module| !module.inline) {
            let name = module.name;
            let places = [format!("{children}/{name}.rs"), format!("{children}/{name}/mod.rs")];
            let found = places.iter().filter_map(|place| repo.files.get_key_value(place));
            waiting.extend(found.map(|(path, _)| path.as_str()));
        }
    }
    declared
}
