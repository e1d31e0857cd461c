//! Where programs of a cluster run: this machine itself, or one made of namespaces.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::error::{TestbedError, run};
use crate::process::{Daemon, Process, quiet};

/// The daemon that is the first process of a machine.
const INIT: &str = "machine-init";

/// Processes, mounts and network of its own, all of which end with its first process.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    /// No other than this one.
    Host,
    /// Namespaces, held by their first process.
    Namespaces(Process),
}

impl Machine {
    /// Makes a machine that belongs to a folder.
    pub(crate) fn start(programs: &Path, folder: &Path) -> Result<Self, TestbedError> {
        let mut command = quiet("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--propagation", "private", "--mount-proc", "--"]);
        command.arg(programs.join(INIT));
        Ok(Self::Namespaces(Daemon::new(folder, INIT).start_inside(&mut command)?))
    }

    /// The machine of a folder: this one if none was made.
    pub(crate) fn open(folder: &Path) -> Result<Self, TestbedError> {
        Ok(Daemon::new(folder, INIT).process()?.map_or(Self::Host, Self::Namespaces))
    }

    pub(crate) fn is_running(&self) -> bool {
        match self {
            Self::Host => true,
            Self::Namespaces(init) => init.is_running().unwrap_or(false),
        }
    }

    /// A command that runs on it.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.enter(&["--net", "--mount", "--pid"], program.as_ref())
    }

    /// Starts a program on it and leaves it running.
    pub(crate) fn start_daemon(&self, daemon: &Daemon, command: &mut Command) -> Result<Process, TestbedError> {
        match self {
            Self::Host => daemon.start(command),
            Self::Namespaces(_) => daemon.start_inside(command),
        }
    }

    /// Runs a shell script with its network, but the processes and files of this machine.
    pub(crate) fn network_script(&self, script: &str, arguments: &[&str]) -> Result<(), TestbedError> {
        run(self.enter(&["--net"], OsStr::new("sh")).args(["-euc", script, "sh"]).args(arguments))?;
        Ok(())
    }

    /// Runs a shell script on it.
    pub(crate) fn script(&self, script: &str, arguments: &[&str]) -> Result<(), TestbedError> {
        run(self.command("sh").args(["-euc", script, "sh"]).args(arguments))?;
        Ok(())
    }

    /// The number of its first process, which names its namespaces.
    pub(crate) fn init(&self) -> Option<i32> {
        match self {
            Self::Host => None,
            Self::Namespaces(init) => Some(init.pid()),
        }
    }

    fn enter(&self, namespaces: &[&str], program: &OsStr) -> Command {
        match self {
            Self::Host => quiet(program),
            Self::Namespaces(init) => {
                let mut command = quiet("nsenter");
                command.arg("--target").arg(init.pid().to_string()).args(namespaces).arg("--").arg(program);
                command
            }
        }
    }
}
