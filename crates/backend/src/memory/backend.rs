use std::io::{self, ErrorKind};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use pollux_policy::JobId;

use super::MemoryCluster;
use super::state::{State, Todo};
use crate::{
    Backend, CheckpointAnswer, Checkpoints, Epoch, LogAnswer, LogReader, LogStart, Observation, Observer, ReplicaId,
    ReplicaOrder, SavedCheckpoints,
};

/// The way to a cluster that one scheduler has.
pub(super) struct MemoryBackend {
    pub(super) cluster: MemoryCluster,
    pub(super) observer: Arc<Observer>,
}

/// The state, unless another scheduler has taken over.
fn admit(cluster: &MemoryCluster, epoch: Epoch) -> Result<MutexGuard<'_, State>, Epoch> {
    let mut state = cluster.lock();
    if epoch < state.epoch {
        return Err(state.epoch);
    }
    state.epoch = epoch;
    Ok(state)
}

impl MemoryBackend {
    fn act(&self, epoch: Epoch, act: impl FnOnce(&mut State) -> Vec<Todo>) {
        match admit(&self.cluster, epoch) {
            Ok(mut state) => {
                let todo = act(&mut state);
                drop(state);
                self.cluster.carry_out(todo);
            }
            Err(by) => (self.observer)(Observation::Superseded { by }),
        }
    }
}

impl Backend for MemoryBackend {
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]) {
        self.act(epoch, |state| state.adopt(known));
    }

    fn start(&mut self, order: &ReplicaOrder) {
        self.act(order.epoch, |state| state.order(order));
    }

    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration) {
        self.act(epoch, |state| state.stop(replica, grace).into_iter().collect());
    }

    fn forget(&mut self, epoch: Epoch, replica: ReplicaId) {
        self.act(epoch, |state| {
            state.forget(|id| id == replica);
            Vec::new()
        });
    }

    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]) {
        self.act(epoch, |state| {
            state.forget(|id| !replicas.contains(&id));
            Vec::new()
        });
    }

    fn logs(&self) -> Arc<dyn LogReader> {
        Arc::new(self.cluster.clone())
    }

    fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        Arc::new(self.cluster.clone())
    }
}

impl LogReader for MemoryCluster {
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        let chunk = self.lock().read_log(replica, from, bytes_max);
        answer(Ok(chunk));
    }
}

impl Checkpoints for MemoryCluster {
    fn location(&self, job: JobId) -> String {
        self.programs.location(job)
    }

    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>) {
        answer(Ok(self.programs.saved()));
    }

    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>) {
        let admitted = admit(self, epoch).map(drop);
        answer(match admitted {
            Ok(()) => Ok(self.programs.delete(job)),
            Err(by) => Err(io::Error::new(ErrorKind::PermissionDenied, format!("{epoch} is superseded by {by}"))),
        });
    }
}
