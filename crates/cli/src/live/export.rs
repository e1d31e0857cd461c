use std::collections::BTreeMap;
use std::env;
use std::str::FromStr;

use pollux_job::Secret;

/// Variables that make a program find what it finds where its user is: programs, environments, libraries, language.
const USUAL: [&str; 7] =
    ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG"];
/// Parts of names whose values are nobody else's business.
const SECRET: [&str; 5] = ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "API_KEY"];

/// Which variables of the submitter a job is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Export {
    /// Those that programs, virtual environments and languages need.
    #[default]
    Usual,
    /// Every one but the scheduler's own.
    All,
    /// None.
    None,
    /// These.
    Named(Vec<String>),
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = || text.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>();
        let is_word = |name: &String| ["all", "none"].iter().any(|word| name.eq_ignore_ascii_case(word));
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            _ if names().iter().any(|name| name.is_empty() || name.contains('=') || is_word(name)) => {
                Err("expected all, none, or names of variables such as PATH,HF_HOME".to_owned())
            }
            _ => match names().into_iter().find(|name| env::var_os(name).is_none()) {
                Some(unset) => Err(format!("{unset} is not set here; expected all, none, or variables that are set")),
                None => Ok(Self::Named(names())),
            },
        }
    }
}

/// What is exported: ordinary variables, and those that are secret.
pub(super) struct Exported {
    pub(super) env: BTreeMap<String, String>,
    pub(super) secrets: BTreeMap<String, Secret>,
}

impl Export {
    /// What this process has of it. What looks like a secret is kept as one. Values that are no text cannot be sent and
    /// are left out.
    pub(super) fn collect(&self) -> Exported {
        let text =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let wanted = text.filter(|(name, _)| self.wants(name) && !pollux_job::is_own_variable(name));
        let (secrets, env) = wanted.partition::<Vec<_>, _>(|(name, _)| is_secret(name));
        let secrets = secrets.into_iter().map(|(name, value)| (name, Secret::new(value)));
        Exported { env: env.into_iter().collect(), secrets: secrets.collect() }
    }

    fn wants(&self, name: &str) -> bool {
        match self {
            Self::Usual => USUAL.contains(&name) || name.starts_with("LC_"),
            // The first two are the shell's own: a program elsewhere has others.
            Self::All => !matches!(name, "PWD" | "OLDPWD" | "_" | "SHLVL" | ""),
            Self::None => false,
            Self::Named(names) => names.iter().any(|wanted| wanted == name),
        }
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_what_is_exported() {
        let named: Export = "PATH, CARGO_PKG_NAME".parse().unwrap();
        assert_eq!(named, Export::Named(vec!["PATH".to_owned(), "CARGO_PKG_NAME".to_owned()]));
        assert!(named.wants("PATH") && !named.wants("HOME"));
        assert!(Export::Usual.wants("VIRTUAL_ENV") && Export::Usual.wants("LC_ALL") && !Export::Usual.wants("HOME"));
        assert!(!Export::None.wants("PATH") && Export::All.wants("HOME") && !Export::All.wants("PWD"));
        for text in ["", "A=B", "A,,B", "all,PATH", "ALL", "none,all", "POLLUX_TEST_NOT_SET"] {
            assert!(text.parse::<Export>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_that_look_like_secrets_are_kept_as_such() {
        assert!(["WANDB_API_KEY", "HF_TOKEN", "db_password"].iter().all(|name| is_secret(name)));
        assert!(!["PATH", "KEYBOARD"].iter().any(|name| is_secret(name)));
    }
}
