//! What `deny.toml` may say.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::Package;
use super::license::is_accepted;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    /// Read, so that a file that asks for less is refused.
    #[serde(rename = "graph")]
    _graph: Graph,
    pub(super) licenses: Licenses,
    pub(super) bans: Bans,
    pub(super) sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Graph {
    #[serde(rename = "all-features")]
    _all_features: True,
}

/// The only value that is carried out.
#[derive(Debug, Deserialize)]
#[serde(try_from = "bool")]
struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, &'static str> {
        if value { Ok(Self) } else { Err("expected true") }
    }
}

/// The only level that is carried out.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Deny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Licenses {
    pub(super) allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Licenses of one crate alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Bans {
    #[serde(rename = "multiple-versions")]
    _multiple_versions: Level,
    #[serde(default)]
    pub(super) skip: Vec<Named>,
    #[serde(default)]
    deny: Vec<Named>,
}

/// A crate, `name` or `name@version`, and why it is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    #[serde(rename = "crate")]
    pub(super) name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Sources {
    #[serde(rename = "unknown-registry")]
    _unknown_registry: Level,
    #[serde(rename = "unknown-git")]
    _unknown_git: Level,
    allow_registry: Vec<String>,
}

impl Licenses {
    pub(super) fn allows(&self, name: &str, license: &str) -> bool {
        let exceptions = self.exceptions.iter().filter(|exception| exception.name == name);
        let mut allowed = self.allow.iter().chain(exceptions.flat_map(|exception| &exception.allow));
        allowed.any(|allowed| allowed == license)
    }

    pub(super) fn refuse(&self, Package { name, version, license, .. }: &Package) -> Option<String> {
        let allow = self.allow.join(", ");
        match license {
            None => Some(format!("{name} {version} names no license; expected {allow}")),
            Some(license) if is_accepted(license, &|one| self.allows(name, one)) => None,
            Some(license) => Some(format!("{name} {version} has the license {license:?}; expected {allow}")),
        }
    }
}

impl Bans {
    pub(super) fn skips(&self, package: &Package) -> bool {
        self.skip.iter().any(|skip| skip.matches(package))
    }

    pub(super) fn refuse(&self, package: &Package) -> Option<String> {
        let banned = self.deny.iter().find(|banned| banned.matches(package))?;
        Some(format!("{} {} is banned: {}", package.name, package.version, banned.reason))
    }
}

impl Named {
    pub(super) fn matches(&self, package: &Package) -> bool {
        match self.name.split_once('@') {
            Some((name, version)) => name == package.name && version == package.version,
            None => self.name == package.name,
        }
    }
}

impl Sources {
    /// Ours are in the workspace, all others in a registry that is allowed.
    pub(super) fn refuse(&self, package: &Package, members: &BTreeSet<String>) -> Option<String> {
        let Package { id, name, version, source, .. } = package;
        let accepted = match source.as_deref() {
            None => members.contains(id),
            Some(source) => {
                source.strip_prefix("registry+").is_some_and(|url| self.allow_registry.contains(&url.into()))
            }
        };
        let from = source.as_deref().unwrap_or("a folder outside the workspace");
        let allowed = self.allow_registry.join(", ");
        (!accepted).then(|| format!("{name} {version} comes from {from}; expected {allowed}"))
    }
}
