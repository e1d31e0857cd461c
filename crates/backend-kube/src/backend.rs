use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use pollux_backend::{Backend, Checkpoints, Epoch, LogReader, Observer, ReplicaId, ReplicaOrder};
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::AbortHandle;
use tracing::error;

use crate::actor::{Actor, Command, Ordered};
use crate::checkpoints::KubeCheckpoints;
use crate::epoch_gate::EpochGate;
use crate::logs::KubeLogs;
use crate::{KubeError, KubeSettings, PodTemplates};

/// Replicas as pods of a cluster.
#[derive(Debug)]
pub struct KubeBackend {
    orders: UnboundedSender<Ordered>,
    logs: Arc<KubeLogs>,
    checkpoints: Arc<KubeCheckpoints>,
    actor: AbortHandle,
}

/// Threads that end with the last who uses them, and wait for nothing.
#[derive(Debug)]
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<Arc<Self>, KubeError> {
        let mut builder = runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).thread_name("kube").enable_all().build().map_err(KubeError::Thread)?;
        Ok(Arc::new(Self(Some(runtime))))
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken when it is dropped")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl KubeBackend {
    /// Uses the cluster that a client reaches, which is made on the backend's own threads.
    pub fn new(
        connect: impl FnOnce() -> Result<Client, kube::Error>,
        settings: KubeSettings,
        templates: Arc<dyn PodTemplates>,
        observer: Observer,
    ) -> Result<Self, KubeError> {
        let threads = Threads::start()?;
        let client = {
            let _entered = threads.runtime().enter();
            connect()?
        };
        let (orders, receiver) = mpsc::unbounded_channel();
        let logs = Arc::new(KubeLogs::new(client.clone(), &settings, Arc::clone(&threads)));
        let gate = EpochGate::new(client.clone(), &settings);
        let checkpoints = Arc::new(KubeCheckpoints::new(&settings, gate, Arc::clone(&threads)));
        let actor = Actor::new(client.clone(), settings, templates, Arc::new(observer));
        let actor = threads.runtime().spawn(actor.run(client, receiver)).abort_handle();
        Ok(Self { orders, logs, checkpoints, actor })
    }

    fn order(&self, epoch: Epoch, command: Command) {
        if self.orders.send((epoch, command)).is_err() {
            error!("the loop that speaks to the cluster has ended; nothing is carried out any more");
        }
    }
}

impl Drop for KubeBackend {
    /// What is under way ends where it is; pods run on, and logs can be read on.
    fn drop(&mut self) {
        self.actor.abort();
    }
}

impl Backend for KubeBackend {
    fn adopt(&mut self, epoch: Epoch, known: &[ReplicaId]) {
        self.order(epoch, Command::Adopt(known.iter().copied().collect()));
    }

    fn start(&mut self, order: &ReplicaOrder) {
        self.order(order.epoch, Command::Start(Box::new(order.clone())));
    }

    fn stop(&mut self, epoch: Epoch, replica: ReplicaId, grace: Duration) {
        self.order(epoch, Command::Stop(replica, grace));
    }

    fn forget(&mut self, epoch: Epoch, replica: ReplicaId) {
        self.order(epoch, Command::Forget(replica));
    }

    fn keep_only(&mut self, epoch: Epoch, replicas: &[ReplicaId]) {
        self.order(epoch, Command::KeepOnly(replicas.iter().copied().collect()));
    }

    fn logs(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.logs) as Arc<dyn LogReader>
    }

    fn checkpoints(&self) -> Arc<dyn Checkpoints> {
        Arc::clone(&self.checkpoints) as Arc<dyn Checkpoints>
    }
}
