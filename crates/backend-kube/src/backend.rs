use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use pollux_backend::{Backend, Checkpoints, Epoch, LogReader, Observer, ReplicaId, ReplicaOrder};
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc::{self, UnboundedSender};
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
    /// `None` once it is being dropped.
    runtime: Option<Runtime>,
}

impl KubeBackend {
    /// Uses the cluster that a client reaches.
    pub fn new(
        config: kube::Config,
        settings: KubeSettings,
        templates: Arc<dyn PodTemplates>,
        observer: Observer,
    ) -> Result<Self, KubeError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("kube")
            .enable_all()
            .build()
            .map_err(KubeError::Thread)?;
        let client = {
            let _entered = runtime.enter();
            Client::try_from(config)?
        };
        let (orders, receiver) = mpsc::unbounded_channel();
        let logs = Arc::new(KubeLogs::new(client.clone(), &settings, runtime.handle().clone()));
        let gate = EpochGate::new(client.clone(), &settings);
        let checkpoints = Arc::new(KubeCheckpoints::new(&settings, gate, runtime.handle().clone()));
        let actor = Actor::new(client.clone(), settings, templates, Arc::new(observer));
        runtime.spawn(actor.run(client, receiver));
        Ok(Self { orders, logs, checkpoints, runtime: Some(runtime) })
    }

    fn order(&self, epoch: Epoch, command: Command) {
        if self.orders.send((epoch, command)).is_err() {
            error!("the loop that speaks to the cluster has ended; nothing is carried out any more");
        }
    }
}

impl Drop for KubeBackend {
    /// What is under way ends where it is; pods run on.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
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
