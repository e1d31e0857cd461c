//! What jobs inherit of the scheduler's own environment: where they are, not what it was started with.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Variables that tell of the machine and its user. All others are the scheduler's own, and may be secret.
const NAMES: [&str; 18] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TZ",
    "TMPDIR",
    "LANG",
    "LANGUAGE",
    "XDG_RUNTIME_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// Language, drivers and networks of the machine.
const PREFIXES: [&str; 4] = ["LC_", "NVIDIA_", "NCCL_", "GLOO_"];
/// Where the scheduler's own Python environment is, whose programs are not those of jobs.
const ENVIRONMENTS: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

/// Variables of this process that a job starts with.
pub(crate) fn variables() -> Vec<(OsString, OsString)> {
    let own: Vec<PathBuf> = ENVIRONMENTS.iter().filter_map(env::var_os).map(PathBuf::from).collect();
    env::vars_os()
        .filter_map(|(name, value)| match name.to_str()? {
            "PATH" => Some((name, path_without(&value, &own))),
            text if is_inherited(text) => Some((name, value)),
            _ => None,
        })
        .collect()
}

fn is_inherited(name: &str) -> bool {
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn path_without(path: &OsStr, environments: &[PathBuf]) -> OsString {
    let is_ours = |folder: &PathBuf| environments.iter().any(|own| folder.starts_with(own));
    let kept = env::split_paths(path).filter(|folder| !is_ours(folder));
    // What was split can be joined.
    env::join_paths(kept).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_left_without_the_programs_of_an_environment() {
        let own = [PathBuf::from("/venv")];
        let path = OsStr::new("/venv/bin:/usr/local/bin:/venvs/bin:/usr/bin");
        assert_eq!(path_without(path, &own), "/usr/local/bin:/venvs/bin:/usr/bin");
        assert_eq!(path_without(path, &[]), path);
    }

    #[test]
    fn secrets_of_the_scheduler_are_its_own() {
        assert!(["HOME", "LC_ALL", "NCCL_SOCKET_IFNAME"].into_iter().all(is_inherited));
        assert!(!["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "VIRTUAL_ENV"].into_iter().any(is_inherited));
    }
}
