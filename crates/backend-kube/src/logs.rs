use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::KubeSettings;
use crate::backend::Threads;
use crate::log_text::LogText;
use crate::names::{INSTANCE_LABEL, REPLICA_LABEL};
use crate::stage::{Stage, may_have_run, report, stage};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt};
use pollux_backend::{LogAnswer, LogChunk, LogReader, LogStart, ReplicaId};

/// How often a log is read of which the end has not come yet, and how soon again.
const LOOKS_MAX: u32 = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Reads what the kubelets keep of what pods wrote.
#[derive(Clone)]
pub(crate) struct KubeLogs {
    client: Client,
    instance: String,
    threads: Arc<Threads>,
}

impl std::fmt::Debug for KubeLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeLogs").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl KubeLogs {
    pub(crate) fn new(client: Client, settings: &KubeSettings, threads: Arc<Threads>) -> Self {
        Self { client, instance: settings.instance.clone(), threads }
    }

    async fn look(&self, replica: ReplicaId, from: LogStart, bytes_max: usize) -> Result<LogChunk, kube::Error> {
        let labels = format!("{INSTANCE_LABEL}={},{REPLICA_LABEL}={}", self.instance, replica.0);
        let found = Api::<Pod>::all(self.client.clone()).list(&ListParams::default().labels(&labels)).await?;
        let position = match from {
            LogStart::At(position) => position,
            LogStart::LastLines(_) => 0,
        };
        let nothing = LogChunk { next: position, ..LogChunk::default() };
        let Some(pod) = found.items.into_iter().next() else { return Ok(nothing) };
        let has_ended = matches!(stage(&pod), Stage::Ended(_));
        if !may_have_run(&pod) {
            return Ok(LogChunk { ended: has_ended, ..nothing });
        }
        let main = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|main| main.name.clone());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let params = LogParams { container: main, ..LogParams::default() };
        let written = report(&pod).and_then(|report| report.written);
        let mut looks = 0;
        loop {
            let kept = match pods.logs(&pod.name_any(), &params).await {
                Ok(kept) => kept,
                // It was forgotten just now.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(nothing),
                Err(error) => return Err(error),
            };
            // Where it is will be known with the next mark.
            let Some(text) = LogText::read(kept.as_bytes(), written) else { return Ok(nothing) };
            looks += 1;
            // What a program wrote last is on its way when its end is told already.
            if written.is_none_or(|written| text.end() >= written) || looks == LOOKS_MAX {
                return Ok(text.chunk(from, bytes_max, has_ended));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl LogReader for KubeLogs {
    fn read(&self, replica: ReplicaId, from: LogStart, bytes_max: usize, answer: LogAnswer) {
        let logs = self.clone();
        self.threads.runtime().spawn(async move {
            answer(logs.look(replica, from, bytes_max).await.map_err(io::Error::other));
        });
    }
}
