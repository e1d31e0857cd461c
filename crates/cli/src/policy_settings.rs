use std::fs;
use std::path::Path;

use pollux_policy::PolicySettings;

/// A policy by its name, or from a .toml file of its settings; or what is wrong with them in one line.
pub(crate) fn policy_named(name: &str) -> Result<PolicySettings, String> {
    let path = Path::new(name);
    if path.extension().is_none_or(|extension| extension != "toml") {
        return PolicySettings::named(name).map_err(|error| error.to_string());
    }
    policy_file(path).map_err(|reason| format!("{}: {reason}", path.display()))
}

/// A policy from a file, or what is wrong with it in one line.
pub(crate) fn policy_file(path: &Path) -> Result<PolicySettings, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| error.message().replace('\n', "; "))?;
    policy_settings(table)
}

/// A policy from a table of its settings, or what is wrong with them in one line.
pub(crate) fn policy_settings(table: toml::Table) -> Result<PolicySettings, String> {
    let settings: PolicySettings =
        table.try_into().map_err(|error: toml::de::Error| error.message().replace('\n', "; "))?;
    settings.check().map_err(|error| error.to_string())?;
    Ok(settings)
}
