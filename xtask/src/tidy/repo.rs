//! The tree as the checks see it: text files by path, and the crates among them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use toml::Spanned;

/// Folders that are never ours, for trees that git does not know.
const SKIPPED_FOLDERS: &[&str] = &[".git", "target", "node_modules"];

/// The text files of a workspace and its crates.
#[derive(Debug)]
pub(crate) struct Repo {
    /// Text by path from the root, with forward slashes.
    pub(crate) files: BTreeMap<String, String>,
    /// Every crate, ordered by folder.
    pub(crate) crates: Vec<Crate>,
}

/// What the checks need to know of one crate.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Path from the root: `crates/model`.
    pub(crate) folder: String,
    /// Whether the lints are the workspace's.
    pub(crate) inherits_lints: bool,
    /// Every dependency of every kind, platform-specific ones included.
    pub(crate) dependencies: Vec<Dependency>,
    /// The crate's own clippy settings, if it has any.
    pub(crate) clippy: Option<toml::Table>,
}

/// One line under a crate's dependencies.
#[derive(Debug)]
pub(crate) struct Dependency {
    /// The key it is written under.
    pub(crate) name: String,
    /// Its line in the manifest.
    pub(crate) line: usize,
    /// Whether the version comes from the workspace.
    pub(crate) inherited: bool,
    /// Whether users of the crate get it too: not for tests or build scripts only.
    pub(crate) shipped: bool,
}

impl Repo {
    /// Reads the workspace at `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for path in list(root)? {
            if let Some(text) = read_text(&root.join(&path))? {
                files.insert(path, text);
            }
        }
        let is_workspace = match files.get("Cargo.toml") {
            Some(text) => manifest::<Manifest>("Cargo.toml", text)?.workspace.is_some(),
            None => false,
        };
        ensure!(is_workspace, "{}: not a workspace; pass the folder whose Cargo.toml has [workspace]", root.display());
        let crates = files
            .iter()
            .filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)))
            .map(|(folder, text)| Crate::parse(folder, text, &files))
            .collect::<Result<_>>()?;
        Ok(Self { files, crates })
    }
}

impl Crate {
    fn parse(folder: &str, text: &str, files: &BTreeMap<String, String>) -> Result<Self> {
        let path = format!("{folder}/Cargo.toml");
        let Manifest { lints, target, .. } = manifest(&path, text)?;
        let everywhere: DependencyTables = manifest(&path, text)?;
        let clippy_path = format!("{folder}/clippy.toml");
        let clippy = files.get(&clippy_path).map(|settings| manifest(&clippy_path, settings)).transpose()?;
        let dependencies =
            target.into_values().chain([everywhere]).flat_map(|tables| tables.into_dependencies(text)).collect();
        let inherits_lints = lints.is_some_and(|lints| lints.workspace);
        Ok(Self { folder: folder.to_owned(), inherits_lints, dependencies, clippy })
    }
}

#[derive(Deserialize)]
struct Manifest {
    workspace: Option<IgnoredAny>,
    lints: Option<Lints>,
    #[serde(default)]
    target: BTreeMap<String, DependencyTables>,
}

#[derive(Deserialize)]
struct Lints {
    #[serde(default)]
    workspace: bool,
}

// Read apart from `Manifest`: a flattened field would lose the positions.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct DependencyTables {
    dependencies: BTreeMap<Spanned<String>, toml::Value>,
    dev_dependencies: BTreeMap<Spanned<String>, toml::Value>,
    build_dependencies: BTreeMap<Spanned<String>, toml::Value>,
}

impl DependencyTables {
    fn into_dependencies(self, text: &str) -> impl Iterator<Item = Dependency> {
        [(true, self.dependencies), (false, self.dev_dependencies), (false, self.build_dependencies)]
            .into_iter()
            .flat_map(|(shipped, table)| table.into_iter().map(move |entry| (shipped, entry)))
            .map(move |(shipped, (name, value))| Dependency {
                line: line_at(text, name.span().start),
                name: name.into_inner(),
                inherited: value.get("workspace").and_then(toml::Value::as_bool) == Some(true),
                shipped,
            })
    }
}

fn manifest<T: DeserializeOwned>(path: &str, text: &str) -> Result<T> {
    // The library's own report shows the source and takes several lines.
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        anyhow!("{path}:{line}: {}", error.message().replace('\n', "; "))
    })
}

fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn list(root: &Path) -> Result<Vec<String>> {
    if root.join(".git").exists()
        && let Some(paths) = list_by_git(root)?
    {
        return Ok(paths);
    }
    let mut paths = Vec::new();
    walk(root, "", &mut paths).with_context(|| format!("cannot list {}", root.display()))?;
    Ok(paths)
}

/// `None` when git is not installed.
fn list_by_git(root: &Path) -> Result<Option<Vec<String>>> {
    // A tree mounted into a container belongs to another user, and git refuses to list it.
    // Its code is about to be built and run: trusting it for a listing adds no risk.
    let listing = Command::new("git")
        .args(["-c", "safe.directory=*", "-C"])
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    let listing = match listing {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.context("cannot run git")?,
    };
    if !listing.status.success() {
        let reason = String::from_utf8_lossy(&listing.stderr);
        bail!("git cannot list {}: {}", root.display(), reason.lines().next().unwrap_or("no reason given"));
    }
    let paths = String::from_utf8_lossy(&listing.stdout);
    Ok(Some(paths.split_terminator('\0').map(str::to_owned).collect()))
}

fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = if folder.is_empty() { name.to_string() } else { format!("{folder}/{name}") };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if !SKIPPED_FOLDERS.contains(&&*name) {
            walk(root, &path, paths)?;
        }
    }
    Ok(())
}

/// `None` for what is not text: binaries, links, submodules, files deleted but still in git's index.
fn read_text(path: &Path) -> Result<Option<String>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8(bytes).ok())
}
