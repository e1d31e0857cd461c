use std::collections::BTreeMap;
use std::path::PathBuf;

use pollux_engine::JobSpec;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What all arguments and variables of a job may take, well below what a system can start.
const BYTES_MAX: usize = 128 * 1024;

/// A job as its user asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// What the engine has to know.
    pub spec: JobSpec,
    /// Program and arguments, the same for every replica.
    pub command: Vec<String>,
    /// Where the program starts; absolute.
    pub working_dir: PathBuf,
    /// Variables besides those that every program on the node has.
    pub environment: BTreeMap<String, String>,
}

/// Why a job could never be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nothing to run.
    #[error("the command is empty: accepted are a program and its arguments")]
    NoCommand,
    /// A text that no program can be given.
    #[error("a NUL byte in the command, the working directory or a variable: accepted is text without")]
    Nul,
    /// Nobody knows where that would be.
    #[error("working_dir {}: accepted is an absolute path", .0.display())]
    WorkingDir(PathBuf),
    /// A name that cannot be one, or is the scheduler's own.
    #[error("variable {0:?}: accepted are names without = that do not start with POLLUX_")]
    Variable(String),
    /// More than a system can start.
    #[error("a command and variables of {bytes} bytes: accepted are {limit}")]
    TooLong {
        /// Their length.
        bytes: usize,
        /// Longest accepted.
        limit: usize,
    },
}

impl JobRequest {
    /// Refuses what could never be started.
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(RequestError::NoCommand);
        }
        if !self.working_dir.is_absolute() {
            return Err(RequestError::WorkingDir(self.working_dir.clone()));
        }
        let is_name = |name: &str| !name.is_empty() && !name.contains('=') && !name.starts_with("POLLUX_");
        if let Some(name) = self.environment.keys().find(|name| !is_name(name)) {
            return Err(RequestError::Variable(name.clone()));
        }
        let variables = self.environment.iter().flat_map(|(name, value)| [name, value]);
        let working_dir = self.working_dir.as_os_str();
        let texts = || self.command.iter().chain(variables.clone());
        let bytes = texts().map(|text| text.len() + 1).sum::<usize>() + working_dir.len();
        if bytes > BYTES_MAX {
            return Err(RequestError::TooLong { bytes, limit: BYTES_MAX });
        }
        if texts().any(|text| text.contains('\0')) || working_dir.as_encoded_bytes().contains(&0) {
            return Err(RequestError::Nul);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> JobRequest {
        JobRequest {
            spec: JobSpec::new("resnet", 1),
            command: vec!["train".to_owned()],
            working_dir: PathBuf::from("/"),
            environment: BTreeMap::new(),
        }
    }

    #[test]
    fn what_could_never_be_started_is_refused() {
        let with_variable = |name: &str, value: &str| JobRequest {
            environment: BTreeMap::from([(name.to_owned(), value.to_owned())]),
            ..request()
        };
        let with_command =
            |command: &[&str]| JobRequest { command: command.iter().map(|&it| it.into()).collect(), ..request() };
        assert_eq!(request().check(), Ok(()));
        assert_eq!(with_variable("SEED", "1").check(), Ok(()));
        assert_eq!(with_command(&[]).check(), Err(RequestError::NoCommand));
        assert_eq!(with_command(&["train", "a\0b"]).check(), Err(RequestError::Nul));
        let relative = JobRequest { working_dir: "here".into(), ..request() };
        assert_eq!(relative.check(), Err(RequestError::WorkingDir("here".into())));
        for name in ["", "A=B", "POLLUX_TOKEN"] {
            assert_eq!(with_variable(name, "1").check(), Err(RequestError::Variable(name.to_owned())));
        }
        let long = with_variable("LONG", &"x".repeat(BYTES_MAX)).check();
        assert_eq!(long, Err(RequestError::TooLong { bytes: BYTES_MAX + 13, limit: BYTES_MAX }));
    }
}
