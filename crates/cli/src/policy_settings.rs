use pollux_policy::PolicySettings;

/// A policy from a table of its settings, or what is wrong with them in one line.
pub(crate) fn policy_settings(table: toml::Table) -> Result<PolicySettings, String> {
    let given: Vec<String> = table.keys().cloned().collect();
    let settings: PolicySettings =
        table.try_into().map_err(|error: toml::de::Error| error.message().replace('\n', "; "))?;
    // Policies without settings would take any.
    let known = toml::Table::try_from(&settings).map_err(|error| error.to_string())?;
    if let Some(key) = given.iter().find(|key| !known.contains_key(*key)) {
        return Err(format!("unknown field `{key}` of {}", settings.name()));
    }
    settings.check().map_err(|error| error.to_string())?;
    Ok(settings)
}
