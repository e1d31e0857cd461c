use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pollux_backend::{Backend, Checkpoints, Epoch, LogReader, Observer, ReplicaId, ReplicaOrder};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::write;
use tracing::warn;

use crate::checkpoints::LocalCheckpoints;
use crate::epoch_gate::{self, EpochGate};
use crate::folder::Folder;
use crate::limits::raise_files_max;
use crate::log_reader::LocalLogs;
use crate::monitor::{Asked, ProcessMonitor, Request, all, left_behind};
use crate::nodes::{Node, NodeSummary, nodes};
use crate::{LocalError, LocalSettings};

/// Where replicas are kept, in the state folder.
const REPLICAS: &str = "replicas";

/// Runs replicas as processes of this machine. Dropping it stops none of them.
pub struct LocalBackend {
    nodes: Vec<NodeSummary>,
    state_dir: PathBuf,
    checkpoint_dir: PathBuf,
    logs: Arc<LocalLogs>,
    checkpoints: Arc<LocalCheckpoints>,
    gate: EpochGate,
    /// `None` only while it is dropped: the monitor ends when nobody can ask it for anything.
    requests: Option<Sender<Asked>>,
    wake: Arc<OwnedFd>,
    monitor: Option<JoinHandle<()>>,
}

/// Tells whether anything runs on a machine.
#[derive(Clone, Debug)]
pub struct Occupancy {
    replicas: PathBuf,
}

impl Occupancy {
    /// Whether every replica of which anything is kept has ended.
    pub fn is_idle(&self) -> io::Result<bool> {
        Ok(all(&self.replicas)?.into_iter().all(|replica| Folder::of(&self.replicas, replica).has_ended()))
    }
}

impl LocalBackend {
    /// Keeps replicas in folders below `state_dir`, and looks for those that are there. Everything that is seen of them
    /// and of the nodes is told to the `observer`.
    pub fn new(state_dir: &Path, settings: LocalSettings, observer: Observer) -> Result<Self, LocalError> {
        let replicas = make_folder(&state_dir.join(REPLICAS))
            .map_err(|source| LocalError::State { path: state_dir.join(REPLICAS), source })?;
        let state = |source| LocalError::State { path: replicas.clone(), source };
        let left_behind = left_behind(&replicas).map_err(state)?;
        let gate = EpochGate::open(state_dir).map_err(state)?;
        let path = settings.program;
        let program = path.canonicalize().map_err(|source| LocalError::Program { path, source })?;
        let path = settings.checkpoint_dir.unwrap_or_else(|| state_dir.join("checkpoints"));
        let folder = make_folder(&path).map_err(|source| LocalError::Checkpoints { path, source })?;
        let settings = LocalSettings { program, checkpoint_dir: Some(folder.clone()), ..settings };

        raise_files_max();
        let nodes = nodes(settings.nodes, &settings.identity)?;
        let summaries = nodes.iter().map(Node::summary).collect();
        let logs = Arc::new(LocalLogs::new(replicas.clone()).map_err(LocalError::Watch)?);
        let checkpoints = Arc::new(LocalCheckpoints::new(folder.clone(), gate.clone()).map_err(LocalError::Watch)?);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| LocalError::Watch(error.into()))?);
        let monitor =
            ProcessMonitor::new(replicas, settings, nodes, gate.clone(), observer).map_err(LocalError::Watch)?;
        let (requests, received) = mpsc::channel();
        let thread = thread::Builder::new().name("local-backend".to_owned());
        let woken = Arc::clone(&wake);
        let monitor = thread.spawn(move || monitor.run(&left_behind, &received, &woken)).map_err(LocalError::Watch)?;
        Ok(Self {
            nodes: summaries,
            state_dir: state_dir.to_owned(),
            checkpoint_dir: folder,
            logs,
            checkpoints,
            gate,
            requests: Some(requests),
            wake,
            monitor: Some(monitor),
        })
    }

    /// What this machine looks like to the scheduler.
    pub fn nodes(&self) -> &[NodeSummary] {
        &self.nodes
    }

    /// Replicas of which anything is kept, whether they have ended or not.
    pub fn replicas(&self) -> io::Result<Vec<ReplicaId>> {
        Ok(all(&self.state_dir.join(REPLICAS))?.into_iter().collect())
    }

    /// What tells whether anything runs, for any thread.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy { replicas: self.state_dir.join(REPLICAS) }
    }

    /// Fails if a scheduler of a higher epoch has given orders: for what is done here besides replicas.
    pub fn admit(&self, epoch: Epoch) -> io::Result<()> {
        Ok(self.gate.admit(epoch).map(drop)?)
    }

    /// Where jobs save, if no other is named: absolute.
    pub fn checkpoint_dir(&self) -> &Path {
        &self.checkpoint_dir
    }

    /// Says so if jobs that save can fill the disk of the state folder.
    pub fn warn_of_shared_disk(&self) {
        if shares_disk(&self.state_dir, &self.checkpoint_dir).unwrap_or(false) {
            warn!(
                checkpoints = %self.checkpoint_dir.display(),
                "checkpoints share a disk with the scheduler's journal: jobs that fill it stop the scheduler; \
                 --checkpoint-dir names a folder on another disk"
            );
        }
    }

    /// Ends it, and forgets whose orders it took, so that any scheduler may give some: nothing is left of a replica.
    pub fn hand_back(self) -> io::Result<()> {
        let state_dir = self.state_dir.clone();
        // It still does what it was asked for.
        drop(self);
        let left = all(&state_dir.join(REPLICAS))?.len();
        if left > 0 {
            return Err(io::Error::other(format!("{left} replicas are kept: expected none")));
        }
        epoch_gate::forget(&state_dir)
    }

    fn ask(&self, epoch: Epoch, request: Request) {
        let requests = self.requests.as_ref().expect("it is taken by drop only");
        requests.send(Asked { epoch, request }).expect("the monitor lives as long as somebody can ask it");
        self.wake();
    }

    fn wake(&self) {
        #[expect(
            clippy::let_underscore_must_use,
            reason = "it fails only if the monitor was woken so often that it does not matter"
        )]
        let _ = write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// Makes a folder for nobody else to read; returns where it really is.
fn make_folder(path: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).and_then(|()| path.canonicalize())
}

/// Whether what fills one folder leaves no room in the other.
fn shares_disk(one: &Path, other: &Path) -> io::Result<bool> {
    Ok(one.metadata()?.dev() == other.metadata()?.dev())
}

impl Backend for LocalBackend {
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]) {
        self.ask(epoch, Request::Adopt(known.to_vec()));
    }

    fn start(&mut self, order: &ReplicaOrder) {
        self.ask(order.epoch, Request::Start(Box::new(order.clone())));
    }

    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration) {
        self.ask(epoch, Request::Stop(replica, grace));
    }

    fn forget(&mut self, epoch: Epoch, replica: ReplicaId) {
        self.ask(epoch, Request::Forget(replica));
    }

    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]) {
        self.ask(epoch, Request::KeepOnly(replicas.to_vec()));
    }

    fn logs(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.logs) as Arc<dyn LogReader>
    }

    fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        Arc::clone(&self.checkpoints) as Arc<dyn Checkpoints>
    }
}

impl Drop for LocalBackend {
    /// Carries out what was asked for before, then observes no more.
    fn drop(&mut self) {
        self.requests = None;
        self.wake();
        if let Some(monitor) = self.monitor.take() {
            #[expect(clippy::let_underscore_must_use, reason = "a monitor that panicked has said so")]
            let _ = monitor.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    #[test]
    fn folders_of_one_device_share_a_disk() {
        let folder = TestFolder::new("shares-disk");
        let inside = make_folder(&folder.path().join("checkpoints")).unwrap();
        assert!(shares_disk(folder.path(), &inside).unwrap());
        assert!(!shares_disk(folder.path(), Path::new("/proc")).unwrap());
    }
}
