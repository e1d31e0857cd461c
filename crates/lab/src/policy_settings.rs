use std::fs;
use std::path::Path;

use pollux_policy::PolicySettings;

use crate::sim::SimError;

/// A policy by its name, or from a .toml file of its settings; or what is wrong with them in one line.
pub fn policy_named(name: &str) -> Result<PolicySettings, String> {
    match file_named(name) {
        None => PolicySettings::named(name).map_err(|error| error.to_string()),
        Some(path) => policy_file(path).map_err(|reason| format!("{}: {reason}", path.display())),
    }
}

/// A policy with what to call it: by name, or from a .toml file that is called as the policy is to be called.
pub fn labelled_policy(name: &str) -> Result<(String, PolicySettings), SimError> {
    let Some(path) = file_named(name) else {
        return Ok((name.to_owned(), PolicySettings::named(name).map_err(SimError::Policy)?));
    };
    let refused = |reason: String| SimError::PolicyFile { path: path.to_owned(), reason };
    let settings = policy_file(path).map_err(refused)?;
    let label = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok((label.unwrap_or_else(|| settings.name().to_owned()), settings))
}

/// A policy from a table of its settings, or what is wrong with them in one line.
pub(crate) fn policy_settings(table: toml::Table) -> Result<PolicySettings, String> {
    let settings: PolicySettings =
        table.try_into().map_err(|error: toml::de::Error| error.message().replace('\n', "; "))?;
    settings.check().map_err(|error| error.to_string())?;
    Ok(settings)
}

fn file_named(name: &str) -> Option<&Path> {
    Some(Path::new(name)).filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
}

fn policy_file(path: &Path) -> Result<PolicySettings, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| error.message().replace('\n', "; "))?;
    policy_settings(table)
}
