//! The part of a specification that starts programs, of which the engine knows nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{JobSpec, Secret, SpecError};

/// What all arguments and variables of a job may take, well below what a system can start.
const BYTES_MAX: usize = 128 * 1024;

/// What every replica is told of its place; a user's own value would be lost.
const PLACE: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
];

/// Whether Pollux sets the variable of this name for every replica.
pub fn is_own_variable(name: &str) -> bool {
    name.starts_with("POLLUX_") || PLACE.contains(&name)
}

/// Refuses what cannot be the name of a user's variable.
pub fn check_variable(name: &str) -> Result<(), SpecError> {
    if name.is_empty() || name.contains('=') {
        return Err(SpecError::Variable(without_value(name)));
    }
    if is_own_variable(name) { Err(SpecError::OwnVariable(name.to_owned())) } else { Ok(()) }
}

/// A name as messages show it: what follows a = in it was meant to be a value, and may be a secret.
pub(crate) fn without_value(name: &str) -> String {
    name.split_once('=').map_or_else(|| name.to_owned(), |(name, _)| format!("{name}=..."))
}

impl JobSpec {
    /// Refuses what could never be started.
    pub fn check_launch(&self) -> Result<(), SpecError> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(SpecError::NoCommand);
        }
        if !self.working_dir.is_absolute() {
            return Err(SpecError::WorkingDir(self.working_dir.clone()));
        }
        self.env.keys().chain(self.secrets.keys()).try_for_each(|name| check_variable(name))?;
        if let Some(name) = self.secrets.keys().find(|name| self.env.contains_key(*name)) {
            return Err(SpecError::VariableTwice(name.clone()));
        }
        let variables = self.env.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let secrets = self.secrets.iter().flat_map(|(name, value)| [name.as_str(), value.reveal()]);
        let texts = || self.command.iter().map(String::as_str).chain(variables.clone()).chain(secrets.clone());
        let working_dir = self.working_dir.as_os_str();
        let bytes = texts().map(|text| text.len() + 1).sum::<usize>() + working_dir.len();
        if bytes > BYTES_MAX {
            return Err(SpecError::TooLong { bytes, limit: BYTES_MAX });
        }
        if texts().any(|text| text.contains('\0')) || working_dir.as_encoded_bytes().contains(&0) {
            return Err(SpecError::Nul);
        }
        Ok(())
    }

    /// The same job without what only starts programs: what a scheduler has to know.
    pub fn without_launch(&self) -> Self {
        Self {
            command: Vec::new(),
            working_dir: PathBuf::new(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// The same job as people may see it.
    pub fn without_secrets(&self) -> Self {
        let secrets = self.secrets.keys().map(|name| (name.clone(), Secret::hidden())).collect();
        Self { secrets, ..self.clone() }
    }

    /// Names the job after its script or program, unless it has a name.
    pub fn named(self) -> Self {
        let name = if self.name.is_empty() { default_name(&self.command) } else { self.name };
        Self { name, ..self }
    }
}

/// The script that an interpreter is given, else the program.
fn default_name(command: &[String]) -> String {
    let stem = |text: &String| Path::new(text).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let program = command.first().and_then(stem).unwrap_or_default();
    let is_interpreter = ["python", "sh", "bash", "env", "torchrun"].iter().any(|name| program.starts_with(name));
    let script = command.iter().skip(1).find(|argument| argument.ends_with(".py") || argument.ends_with(".sh"));
    let name = script.filter(|_| is_interpreter).and_then(stem).unwrap_or(program);
    if name.is_empty() { "job".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(command: &[&str]) -> JobSpec {
        let command = command.iter().map(|&text| text.to_owned()).collect();
        JobSpec { command, working_dir: "/".into(), ..JobSpec::new("resnet", 1) }
    }

    #[test]
    fn what_could_never_be_started_is_refused() {
        let with_variable =
            |name: &str, value: &str| JobSpec { env: [(name.to_owned(), value.to_owned())].into(), ..job(&["train"]) };
        assert_eq!(job(&["train"]).check_launch(), Ok(()));
        assert_eq!(with_variable("SEED", "1").check_launch(), Ok(()));
        assert_eq!(job(&[]).check_launch(), Err(SpecError::NoCommand));
        assert_eq!(job(&["train", "a\0b"]).check_launch(), Err(SpecError::Nul));
        let relative = JobSpec { working_dir: "here".into(), ..job(&["train"]) };
        assert_eq!(relative.check_launch(), Err(SpecError::WorkingDir("here".into())));
        for (name, shown) in [("", ""), ("A=B", "A=...")] {
            assert_eq!(with_variable(name, "1").check_launch(), Err(SpecError::Variable(shown.to_owned())));
        }
        for name in ["POLLUX_TOKEN", "RANK", "CUDA_VISIBLE_DEVICES"] {
            assert_eq!(with_variable(name, "1").check_launch(), Err(SpecError::OwnVariable(name.to_owned())));
        }
        let long = with_variable("LONG", &"x".repeat(BYTES_MAX)).check_launch();
        assert_eq!(long, Err(SpecError::TooLong { bytes: BYTES_MAX + 13, limit: BYTES_MAX }));
        let secrets = [("KEY".to_owned(), Secret::new("1".to_owned()))].into();
        let twice = JobSpec { secrets, ..with_variable("KEY", "2") };
        assert_eq!(twice.check_launch(), Err(SpecError::VariableTwice("KEY".to_owned())));
    }

    #[test]
    fn secrets_are_shown_to_nobody() {
        let secrets = [("KEY".to_owned(), Secret::new("hunter2".to_owned()))].into();
        let spec = JobSpec { secrets, ..job(&["train"]) };
        assert!(!format!("{spec:?}").contains("hunter2"));
        let shown = spec.without_secrets();
        assert_eq!(shown.secrets["KEY"].reveal(), "***");
        assert_eq!(spec.without_launch().secrets, BTreeMap::new());
    }

    #[test]
    fn a_job_without_a_name_is_called_after_its_script_or_program() {
        let name = |command: &[&str]| JobSpec { name: String::new(), ..job(command) }.named().name;
        assert_eq!(name(&["/opt/train", "x.py"]), "train");
        assert_eq!(name(&["python3", "-u", "src/resnet.py", "--lr", "1"]), "resnet");
        assert_eq!(name(&["python3", "-m", "imagenet"]), "python3");
        assert_eq!(name(&["bash", "run.sh"]), "run");
        assert_eq!(name(&["/"]), "job");
        assert_eq!(job(&["train"]).named().name, "resnet");
    }
}
