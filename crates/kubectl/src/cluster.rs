use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use pollux_operator::PolluxJob;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::{Access, KubectlError};

/// A cluster, as one user may use it. Calls wait for the answer.
pub struct Cluster {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    namespace: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster of a kubeconfig; nothing is asked yet.
    pub fn connect(access: &Access) -> Result<Self, KubectlError> {
        let refused = |reason| KubectlError::System { what: "threads", reason };
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("kubectl").enable_all().build();
        let runtime = runtime.map_err(refused)?;
        let options = KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
        let mut config = runtime.block_on(async {
            match &access.kubeconfig {
                Some(file) => Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await,
                None => Config::from_kubeconfig(&options).await,
            }
        })?;
        // Whoever waits is told at once that nobody answers.
        config.default_retry = false;
        let namespace = access.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = {
            let _entered = runtime.enter();
            Client::try_from(config)?
        };
        Ok(Self { runtime, client, namespace })
    }

    /// Where jobs are made and looked for.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn jobs(&self) -> Api<PolluxJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a job; it is durable when this returns.
    pub fn create(&self, job: &PolluxJob) -> Result<PolluxJob, KubectlError> {
        Ok(self.runtime.block_on(self.jobs().create(&PostParams::default(), job))?)
    }

    /// Sets a job aside, or lets it go on.
    pub fn suspend(&self, name: &str, suspend: bool) -> Result<(), KubectlError> {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        self.runtime.block_on(self.jobs().patch(name, &PatchParams::default(), &patch))?;
        Ok(())
    }

    /// Deletes a job, which ends it.
    pub fn delete(&self, name: &str) -> Result<(), KubectlError> {
        self.runtime.block_on(self.jobs().delete(name, &DeleteParams::default()))?;
        Ok(())
    }
}
