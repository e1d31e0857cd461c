use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pollux_backend::{Backend, Observer, ReplicaId, ReplicaOrder};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::write;

use crate::folder::Folder;
use crate::limits::raise_files_max;
use crate::monitor::{ProcessMonitor, Request, left_behind};
use crate::nodes::{Node, NodeSummary, nodes};
use crate::{LocalError, LocalSettings};

/// Runs replicas as processes of this machine. Dropping it stops none of them.
pub struct LocalBackend {
    replicas: PathBuf,
    nodes: Vec<NodeSummary>,
    /// `None` only while it is dropped: the monitor ends when nobody can ask it for anything.
    requests: Option<Sender<Request>>,
    wake: Arc<OwnedFd>,
    monitor: Option<JoinHandle<()>>,
}

impl LocalBackend {
    /// Keeps replicas in folders below `state_dir`, and looks for those that are there. Everything that is seen of them
    /// and of the nodes is told to the `observer`.
    pub fn new(state_dir: &Path, settings: LocalSettings, observer: Observer) -> Result<Self, LocalError> {
        let path = state_dir.join("replicas");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path).and_then(|()| path.canonicalize());
        let read = made.and_then(|replicas| Ok((left_behind(&replicas)?, replicas)));
        let (left_behind, replicas) = read.map_err(|source| LocalError::State { path, source })?;
        let path = settings.program;
        let program = path.canonicalize().map_err(|source| LocalError::Program { path, source })?;
        let settings = LocalSettings { program, ..settings };

        raise_files_max();
        let nodes = nodes(settings.nodes)?;
        let summaries = nodes.iter().map(Node::summary).collect();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| LocalError::Watch(error.into()))?);
        let monitor = ProcessMonitor::new(replicas.clone(), settings, nodes, observer).map_err(LocalError::Watch)?;
        let (requests, received) = mpsc::channel();
        let thread = thread::Builder::new().name("local-backend".to_owned());
        let woken = Arc::clone(&wake);
        let monitor = thread.spawn(move || monitor.run(&left_behind, &received, &woken)).map_err(LocalError::Watch)?;
        Ok(Self { replicas, nodes: summaries, requests: Some(requests), wake, monitor: Some(monitor) })
    }

    /// What this machine looks like to the scheduler.
    pub fn nodes(&self) -> &[NodeSummary] {
        &self.nodes
    }

    fn ask(&self, request: Request) {
        let requests = self.requests.as_ref().expect("it is taken by drop only");
        requests.send(request).expect("the monitor lives as long as somebody can ask it");
        self.wake();
    }

    fn wake(&self) {
        // It fails only if the monitor was woken so often that it does not matter.
        let _ = write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Backend for LocalBackend {
    fn adopt(&mut self, known: &[ReplicaId]) {
        self.ask(Request::Adopt(known.to_vec()));
    }

    fn start(&mut self, order: &ReplicaOrder) {
        self.ask(Request::Start(order.clone()));
    }

    fn stop(&mut self, replica: ReplicaId, grace: Duration) {
        self.ask(Request::Stop(replica, grace));
    }

    fn log_files(&self, replica: ReplicaId) -> Vec<PathBuf> {
        Folder::of(&self.replicas, replica).logs()
    }

    fn forget(&mut self, replica: ReplicaId) {
        self.ask(Request::Forget(replica));
    }

    fn keep_only(&mut self, replicas: &[ReplicaId]) {
        self.ask(Request::KeepOnly(replicas.to_vec()));
    }
}

impl Drop for LocalBackend {
    /// Carries out what was asked for before, then observes no more.
    fn drop(&mut self) {
        self.requests = None;
        self.wake();
        if let Some(monitor) = self.monitor.take() {
            // A monitor that panicked has said so.
            let _ = monitor.join();
        }
    }
}
