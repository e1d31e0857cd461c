//! The folder of a cluster, and who removes it.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::geteuid;

use crate::error::{TestbedError, at, run};
use crate::process::{Daemon, boot, quiet};

/// Says in which boot of the machine a cluster was left running on purpose.
const KEPT: &str = "kept";

/// Everything a cluster has is below its folder, so that another process can go on with it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

/// Removes a cluster when this is dropped, or when this process dies.
#[derive(Debug)]
pub(crate) struct Janitor {
    process: Child,
}

impl Instance {
    /// Makes a folder with a name that nobody else has, after what dead processes left was removed.
    pub(crate) fn create(name: Option<&str>, programs: &Path) -> Result<(Self, Janitor), TestbedError> {
        let root = root()?;
        let lock = root.join("lock");
        let held = File::options().create(true).append(true).open(&lock).map_err(at(&lock))?;
        held.lock().map_err(at(&lock))?;
        for instance in Self::all()? {
            if instance.is_abandoned()? {
                instance.remove(programs)?;
            }
        }
        let own = || (0..).map(|n| format!("{}-{n}", std::process::id())).find(|name| !root.join(name).exists());
        let name = name.map(str::to_owned).or_else(own).expect("numbers do not run out");
        if name.is_empty()
            || name.len() > 20
            || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        {
            let expected = "expected up to 20 lower-case letters, digits and hyphens";
            return Err(TestbedError::Name(format!("cluster {name:?}: {expected}")));
        }
        let folder = root.join(&name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(TestbedError::Name(format!("cluster {name} runs already")))
            }
            other => other.map_err(at(&folder)),
        }?;
        let instance = Self { name, folder };
        let janitor = instance.janitor(programs)?;
        Ok((instance, janitor))
    }

    pub(crate) fn open(name: &str) -> Result<Self, TestbedError> {
        let found = Self::all()?.into_iter().find(|instance| instance.name == name);
        found.ok_or_else(|| TestbedError::Name(format!("cluster {name} does not run")))
    }

    pub(crate) fn all() -> Result<Vec<Self>, TestbedError> {
        let root = root()?;
        let mut instances = Vec::new();
        for entry in fs::read_dir(&root).map_err(at(&root))? {
            let entry = entry.map_err(at(&root))?;
            if let Ok(name) = entry.file_name().into_string()
                && entry.path().is_dir()
            {
                instances.push(Self { name, folder: entry.path() });
            }
        }
        instances.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(instances)
    }

    /// Whether nobody will ever remove it: it was not kept, or before the machine started anew, and has no janitor.
    fn is_abandoned(&self) -> Result<bool, TestbedError> {
        match fs::read_to_string(self.folder.join(KEPT)) {
            Ok(kept) => Ok(kept != boot().map_err(at(Path::new("/proc")))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(!self.janitor_daemon().is_running()?),
            Err(error) => Err(at(&self.folder)(error)),
        }
    }

    fn janitor_daemon(&self) -> Daemon {
        Daemon::new(&self.folder, "janitor")
    }

    fn janitor(&self, programs: &Path) -> Result<Janitor, TestbedError> {
        let mut command = janitor_command(programs, &self.folder);
        let process = self.janitor_daemon().start_child(command.stdin(Stdio::piped()))?;
        Ok(Janitor { process })
    }

    /// Leaves the cluster running after the end of this process.
    pub(crate) fn keep(&self, mut janitor: Janitor) -> Result<(), TestbedError> {
        let path = self.folder.join(KEPT);
        fs::write(&path, boot().map_err(at(Path::new("/proc")))?).map_err(at(&path))?;
        janitor.process.kill().map_err(at(&path))
    }

    /// Ends and removes everything of the cluster, whoever started it.
    pub(crate) fn remove(&self, programs: &Path) -> Result<(), TestbedError> {
        remove(programs, &self.folder)
    }
}

/// Ends every process of a folder of the test bed and removes its cgroups and files.
pub(crate) fn remove(programs: &Path, folder: &Path) -> Result<(), TestbedError> {
    run(janitor_command(programs, folder).stdin(Stdio::null()))?;
    Ok(())
}

fn janitor_command(programs: &Path, folder: &Path) -> Command {
    let mut command = quiet(programs.join("janitor"));
    command.arg("-folder").arg(folder).arg("-cgroup").arg(cgroup(folder));
    command
}

/// The group of a folder's containers below every cgroup hierarchy. Clusters share none, so each is removed whole.
pub(crate) fn cgroup(folder: &Path) -> PathBuf {
    let path = folder.strip_prefix(env::temp_dir()).unwrap_or(folder).display().to_string();
    PathBuf::from(format!("/{}", path.trim_start_matches('/').replacen('/', "-", 1)))
}

/// Where the folders of all clusters of this user are.
fn root() -> Result<PathBuf, TestbedError> {
    let user = geteuid().as_raw();
    let root = env::temp_dir().join(format!("pollux-kube-{user}"));
    match DirBuilder::new().mode(0o700).create(&root) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&root)(error)),
        _ => {}
    }
    // Others may write to the folder above.
    let found = fs::symlink_metadata(&root).map_err(at(&root))?;
    if !found.is_dir() || found.uid() != user {
        return Err(TestbedError::Name(format!("{}: expected a folder of this user", root.display())));
    }
    Ok(root)
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It tells what it could not remove itself, and there is nobody to return it to.
        let _ = self.process.wait();
    }
}
