use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::binary::{Run, fresh_folder, pollux, run};

/// What anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// `pollux up` of a test; it is killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    /// A scheduler that answers, in a fresh folder.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_with(test, &[])
    }

    /// The same with more arguments.
    pub(crate) fn start_with(test: &str, arguments: &[&str]) -> Self {
        let folder = fresh_folder("up", test);
        let mut daemon = Self { child: spawn(&folder, &[&["--slots", "2"], arguments].concat()), folder };
        daemon.wait_for_answer();
        daemon
    }

    /// One that was started with variables of its own.
    pub(crate) fn start_in(test: &str, variables: &[(&str, &str)]) -> Self {
        let folder = fresh_folder("up", test);
        let child = command(&folder, &["--slots", "2"]).envs(variables.iter().copied()).spawn().unwrap();
        let mut daemon = Self { child, folder };
        daemon.wait_for_answer();
        daemon
    }

    /// One on a machine whose driver lists two GPUs of one kind and two of another.
    pub(crate) fn start_on_gpus(test: &str, arguments: &[&str]) -> Self {
        let folder = fresh_folder("up", test);
        install_driver(&folder);
        let mut daemon = Self { child: spawn(&folder, arguments), folder };
        daemon.wait_for_answer();
        daemon
    }

    /// Another one on the same folder, after the end of the first, on that machine.
    pub(crate) fn start_again_on_gpus(&mut self) {
        install_driver(&self.folder);
        self.child = spawn(&self.folder, &[]);
        self.wait_for_answer();
    }

    /// Another one on the same folder, after the end of the first.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.folder, &["--slots", "2"]);
        self.wait_for_answer();
    }

    fn wait_for_answer(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.pollux(&["nodes"]).code != Some(0) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "no server: {ended:?}\n{}", self.said("stderr"));
        }
    }

    /// Runs a command that speaks to it.
    pub(crate) fn pollux(&self, args: &[&str]) -> Run {
        run(&mut self.command(args), b"")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = plain(args[0]);
        command.args(&args[1..]).env("POLLUX_STATE", self.state());
        command
    }

    /// Waits until a job has written something.
    pub(crate) fn wait_for_log(&self, job: &str, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.pollux(&["logs", job]).stdout.contains(text) {
            assert!(Instant::now() < deadline, "job {job} has not written {text:?}");
        }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// What it has said on `stdout` or `stderr`.
    pub(crate) fn said(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap()
    }

    /// Sends it a signal, and waits for its end.
    pub(crate) fn end(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, arguments: &[&str]) -> Child {
    command(folder, arguments).spawn().unwrap()
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let talk = |name| File::create(folder.join(name)).unwrap();
    let mut command = plain("up");
    command.args(["--listen", "127.0.0.1:0"]).args(arguments).env("POLLUX_STATE", folder.join("state"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [folder.join("driver")].into_iter().chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(folders).unwrap()).env_remove("CUDA_VISIBLE_DEVICES");
    command.stdin(Stdio::null()).stdout(talk("stdout")).stderr(talk("stderr"));
    command
}

/// A stand-in for `nvidia-smi` that a daemon of this folder finds first.
pub(crate) fn install_driver(folder: &Path) {
    let driver = folder.join("driver");
    fs::create_dir_all(&driver).unwrap();
    let gpus = ["Tesla V100", "NVIDIA A100", "NVIDIA A100", "Tesla V100"].into_iter().enumerate();
    let listed: String = gpus.map(|(idx, kind)| format!("{idx}, GPU-{idx}, {kind}\\n")).collect();
    let program = driver.join("nvidia-smi");
    fs::write(&program, format!("#!/bin/sh\nprintf '{listed}'\n")).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// `pollux SUBCOMMAND` that knows of no server.
pub(crate) fn plain(subcommand: &str) -> Command {
    let mut command = pollux(subcommand);
    for name in ["POLLUX_URL", "POLLUX_STATE", "POLLUX_TOKEN", "POLLUX_CA", "POLLUX_LOG"] {
        command.env_remove(name);
    }
    command
}
