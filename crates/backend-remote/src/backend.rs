use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pollux_backend::{
    Backend, CheckpointAnswer, Checkpoints, Epoch, LogAnswer, LogReader, LogStart, Observer, ReplicaId, ReplicaOrder,
    SavedCheckpoints,
};
use pollux_backend_local::LocalBackend;
use pollux_policy::JobId;

use crate::members::{Members, write};
use crate::nodes::{Nodes, NodesError, random};
use crate::protocol::SharedFolder;
use crate::routes::{Routes, Shared};

/// How long machines from before a restart of the scheduler may take to come back before they count as unreachable.
const RETURN_MAX: Duration = Duration::from_secs(5);

/// Replicas of the scheduler's own machine and of all that have joined. Dropping it stops none of them.
#[derive(Debug)]
pub struct RemoteBackend {
    shared: Shared,
    checkpoints: Arc<dyn Checkpoints>,
}

impl RemoteBackend {
    /// Carries on with the machines that have joined the scheduler of a state folder. `own` makes the backend of its own
    /// machine.
    pub fn open<E: From<NodesError>>(
        nodes: &Nodes,
        state_dir: &Path,
        own: impl FnOnce(Observer) -> Result<LocalBackend, E>,
        observer: Observer,
    ) -> Result<Self, E> {
        let shared = nodes.shared().clone();
        let members = Members::open(state_dir).map_err(NodesError::State)?;
        let here = shared.clone();
        // What is seen before there are routes is told again when it is asked for.
        let own = own(Box::new(move |seen| {
            here.with(|routes| routes.saw_here(seen));
        }))?;
        let folder = shared_folder(own.checkpoint_dir()).map_err(NodesError::State)?;
        let checkpoints = Arc::new(SavedEverywhere { here: own.checkpoints(), shared: shared.clone() });
        let routes = Routes::new(members, state_dir, folder, own, observer, shared.downgrade());
        shared.open(routes.map_err(NodesError::State)?);
        let waiting = shared.clone();
        let wait = move || {
            thread::sleep(RETURN_MAX);
            waiting.with(Routes::stop_waiting);
        };
        thread::Builder::new().name("return-of-nodes".to_owned()).spawn(wait).map_err(NodesError::State)?;
        Ok(Self { shared, checkpoints })
    }

    fn act(&self, act: impl FnOnce(&mut Routes)) {
        self.shared.with(act).expect("they are there since it was opened");
    }
}

/// Marks a folder, so that another machine can tell whether it sees the same one.
fn shared_folder(path: &Path) -> io::Result<SharedFolder> {
    let file = path.join(SharedFolder::MARK);
    let mark = match fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mark = random()?;
            write(&file, &mark)?;
            mark
        }
        Err(error) => return Err(error),
    };
    Ok(SharedFolder { path: path.to_string_lossy().into_owned(), mark })
}

impl Backend for RemoteBackend {
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]) {
        self.act(|routes| routes.adopt(epoch, known));
    }

    fn start(&mut self, order: &ReplicaOrder) {
        self.act(|routes| routes.start(order));
    }

    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration) {
        self.act(|routes| routes.stop(epoch, replica, grace));
    }

    fn forget(&mut self, epoch: Epoch, replica: ReplicaId) {
        self.act(|routes| routes.forget(epoch, replica));
    }

    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]) {
        self.act(|routes| routes.keep_only(epoch, replicas));
    }

    fn logs(&self) -> Arc<dyn LogReader> {
        Arc::new(Logs(self.shared.clone()))
    }

    fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        Arc::clone(&self.checkpoints)
    }
}

impl Drop for RemoteBackend {
    fn drop(&mut self) {
        // What the own machine still has to say, it says while nobody holds the routes.
        drop(self.shared.with(|routes| (routes.own.take(), routes.observer.take())));
    }
}

#[derive(Debug)]
struct Logs(Shared);

impl LogReader for Logs {
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        self.0.with(|routes| routes.read(replica, from, bytes_max, answer));
    }
}

/// Checkpoints are where the scheduler's own are; other machines have copies, or what is to be copied.
#[derive(Debug)]
struct SavedEverywhere {
    here: Arc<dyn Checkpoints>,
    shared: Shared,
}

impl Checkpoints for SavedEverywhere {
    fn location(&self, job: JobId) -> String {
        self.here.location(job)
    }

    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>) {
        self.here.list(answer);
    }

    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>) {
        let shared = self.shared.clone();
        let deleted = move |freed: io::Result<u64>| {
            if freed.is_ok() {
                shared.with(|routes| routes.drop_saved(epoch, job));
            }
            answer(freed);
        };
        self.here.delete(epoch, job, Box::new(deleted));
    }
}
