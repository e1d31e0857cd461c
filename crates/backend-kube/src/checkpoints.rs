use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pollux_backend::{CheckpointAnswer, CheckpointFolder, Checkpoints, Epoch, SavedCheckpoints};
use pollux_policy::JobId;
use tracing::warn;

use crate::KubeSettings;
use crate::backend::Threads;
use crate::epoch_gate::EpochGate;

/// Checkpoints on a volume that pods have. What is on it can be seen where the scheduler has it, too.
#[derive(Clone)]
pub(crate) struct KubeCheckpoints {
    in_pods: PathBuf,
    mounted: Option<CheckpointFolder>,
    gate: EpochGate,
    threads: Arc<Threads>,
}

impl std::fmt::Debug for KubeCheckpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeCheckpoints").field("in_pods", &self.in_pods).finish_non_exhaustive()
    }
}

impl KubeCheckpoints {
    pub(crate) fn new(settings: &KubeSettings, gate: EpochGate, threads: Arc<Threads>) -> Self {
        let mounted = settings.checkpoints_mounted.clone().map(CheckpointFolder::new);
        Self { in_pods: settings.checkpoint_dir.clone(), mounted, gate, threads }
    }
}

impl Checkpoints for KubeCheckpoints {
    fn location(&self, job: JobId) -> String {
        self.in_pods.join(job.0.to_string()).to_string_lossy().into_owned()
    }

    fn list(&self, answer: CheckpointAnswer<Vec<SavedCheckpoints>>) {
        match self.mounted.clone() {
            None => answer(Ok(Vec::new())),
            Some(folder) => {
                self.threads.runtime().spawn_blocking(move || {
                    answer(folder.list(|path, error| {
                        warn!(folder = %path.display(), %error, "checkpoints that were deleted still take room");
                    }));
                });
            }
        }
    }

    fn delete(&self, epoch: Epoch, job: JobId, answer: CheckpointAnswer<u64>) {
        let Some(folder) = self.mounted.clone() else { return answer(Ok(0)) };
        let (gate, runtime) = (self.gate.clone(), self.threads.runtime().handle().clone());
        self.threads.runtime().spawn_blocking(move || {
            let admit = || runtime.block_on(gate.pass(epoch)).map_err(io::Error::other);
            answer(folder.delete(job, admit));
        });
    }
}
