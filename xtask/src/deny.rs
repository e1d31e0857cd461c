//! What the workspace may depend on: `deny.toml` against what cargo resolved.
//!
//! Reads the file of `cargo deny` and holds the same rules, with nothing to install and no network: a cold `make test`
//! stays short. Settings that are not checked here are refused, so that nobody relies on them.

mod license;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use license::is_accepted;
use rules::Rules;

/// The part of `cargo metadata` that matters here.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

/// A crate of one version.
#[derive(Clone, Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// Nothing for a folder of this machine.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

/// What the workspace at `root` depends on and should not, in one line each; sorted.
pub(crate) fn deny(root: &Path) -> anyhow::Result<Vec<String>> {
    let path = root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rules: Rules = toml::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(findings(&rules, &metadata(root)?))
}

/// What cargo resolves for this machine: the lock file decides, and nothing is downloaded.
fn metadata(root: &Path) -> anyhow::Result<Metadata> {
    let host = output(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["metadata", "--format-version", "1", "--locked", "--offline", "--all-features", "--filter-platform"];
    let told = output(Command::new(cargo).args(args).arg(host.trim()).current_dir(root))?;
    serde_json::from_str(&told).context("cargo metadata")
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let run = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let complaint = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{}: {}", command.get_program().display(), complaint.trim());
    Ok(String::from_utf8(run.stdout)?)
}

fn findings(rules: &Rules, metadata: &Metadata) -> Vec<String> {
    let resolved: BTreeSet<&str> = metadata.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
    let packages: Vec<&Package> =
        metadata.packages.iter().filter(|package| resolved.contains(package.id.as_str())).collect();
    let mut findings = Vec::new();
    findings.extend(packages.iter().filter_map(|package| rules.licenses.refuse(package)));
    findings.extend(packages.iter().filter_map(|package| rules.bans.refuse(package)));
    findings.extend(packages.iter().filter_map(|package| rules.sources.refuse(package, &metadata.workspace_members)));
    findings.extend(repeated(rules, &packages));
    findings.extend(unused(rules, &packages));
    findings.sort();
    findings
}

/// Crates of several versions, but for those that are known.
fn repeated(rules: &Rules, packages: &[&Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages.iter().filter(|package| !rules.bans.skips(package)) {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    several
        .map(|(name, versions)| {
            format!("{name} {}: expected one version, or all but one in skip of deny.toml", versions.join(" and "))
        })
        .collect()
}

/// What the file allows and nobody needs any more.
fn unused(rules: &Rules, packages: &[&Package]) -> Vec<String> {
    let needed = |allowed: &String| {
        let without = |package: &&Package| {
            let license = package.license.as_deref().unwrap_or_default();
            !is_accepted(license, &|one| one != allowed && rules.licenses.allows(&package.name, one))
        };
        packages.iter().any(without)
    };
    let licenses = rules.licenses.allow.iter().filter(|allowed| !needed(allowed));
    let skips = rules.bans.skip.iter().filter(|skip| !packages.iter().any(|package| skip.matches(package)));
    licenses
        .map(|license| format!("license {license:?} is allowed and nothing needs it; delete it from deny.toml"))
        .chain(skips.map(|skip| format!("{} is skipped and not there; delete it from deny.toml", skip.name)))
        .collect()
}
