//! What a cluster needs of this machine; what is missing is installed where that is possible.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::error::{TestbedError, run};
use crate::process::quiet;

/// How much of a cluster is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The control plane and fake nodes, on the loopback network, as any user.
    ControlPlane,
    /// Real nodes with containers; needs root.
    Nodes,
}

/// What a node needs beside Kubernetes: a file, and the Debian package that has it.
const PACKAGES: [(&str, &str); 6] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/bin/ip", "iproute2"),
    ("/usr/sbin/iptables", "iptables"),
    (BUSYBOX, "busybox-static"),
];
/// The shell and tools of images without a distribution.
pub(crate) const BUSYBOX: &str = "/bin/busybox";
/// A node's machine has folders of its own there.
const HIDDEN_FOLDERS: [&str; 3] = ["/run", "/var/lib", "/var/log"];

/// Installs what is missing and returns the folder of the programs; the first time that takes many minutes.
///
/// # Errors
///
/// [`TestbedError::Unavailable`] where such a cluster cannot run.
pub fn prepare(tier: Tier) -> Result<PathBuf, TestbedError> {
    if tier == Tier::Nodes {
        check_system()?;
        install_packages()?;
    }
    let programs = build_programs()?;
    for folder in [programs.as_path(), &env::temp_dir()] {
        if tier == Tier::Nodes && HIDDEN_FOLDERS.iter().any(|hidden| folder.starts_with(hidden)) {
            let hidden = HIDDEN_FOLDERS.join(", ");
            return Err(TestbedError::Unavailable(format!(
                "{}: expected a folder not below {hidden}",
                folder.display()
            )));
        }
    }
    Ok(programs)
}

fn check_system() -> Result<(), TestbedError> {
    let unavailable = |why: &str| Err(TestbedError::Unavailable(why.to_owned()));
    if !geteuid().is_root() {
        return unavailable("real nodes need root");
    }
    if !Path::new("/sys/fs/cgroup/cpuset/cpuset.cpus").exists() {
        return unavailable("real nodes need cgroup v1: there is no /sys/fs/cgroup/cpuset");
    }
    match run(quiet("unshare").args(["--net", "--mount", "--pid", "--fork", "true"])) {
        Ok(_) => Ok(()),
        Err(error) => unavailable(&format!("real nodes need namespaces: {error}")),
    }
}

fn install_packages() -> Result<(), TestbedError> {
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let install = "apt-get update -qq && exec apt-get install -y -qq --no-install-recommends \"$@\"";
    run(quiet("sh").env("DEBIAN_FRONTEND", "noninteractive").args(["-c", install, "sh"]).args(&missing))
        .map_err(|error| TestbedError::Unavailable(format!("install the packages {}: {error}", missing.join(", "))))?;
    Ok(())
}

/// Runs the script that builds what is not in the user's cache yet, and passes on what it says.
fn build_programs() -> Result<PathBuf, TestbedError> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/install.sh");
    let failure = |output: String| TestbedError::Command { command: script.to_owned(), output };
    let mut command = Command::new(script);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failure(error.to_string()))?;
    let mut last = String::new();
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
        last = line.map_err(|error| failure(error.to_string()))?;
        // Where nobody reads it, nobody misses it.
        let _ = writeln!(io::stderr(), "{last}");
    }
    let output = child.wait_with_output().map_err(|error| failure(error.to_string()))?;
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        Some(3) => Err(TestbedError::Unavailable(last)),
        _ => Err(failure(format!("{} ({})", last, output.status))),
    }
}
