//! Requests to the cluster.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, LogParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use pollux_backend::{ReplicaId, ReplicaOrder};
use pollux_supervisor::{BundleLine, Ending, STOP_ANNOTATION, bundle_line};
use serde_json::json;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::bundle::Step;
use crate::logs::read_log;
use crate::names::{FINALIZER, GATE, MANAGER};
use crate::pod::{pod, secret};
use crate::stage::is_gated;
use crate::{KubeSettings, PodTemplates};

/// Steps at a time: the API server has other clients, and a plan may ask for thousands of pods.
const STEPS_MAX: usize = 16;

/// A supervisor says again and again who has ended: within the last so many lines.
const ENDS_WITHIN: i64 = 6_000;
/// Lines may be long: of those, the newest.
const ENDS_BYTES_MAX: usize = 4 << 20;
/// Longest look who has ended. Nothing else is asked of its pod meanwhile.
const LOOK_TAKES_MAX: Duration = Duration::from_secs(10);

/// What came of a request.
#[derive(Debug)]
pub(crate) enum Done {
    /// The pod is like this now.
    Pod(Box<Pod>),
    /// These have ended while others of the pod run.
    Ends(Vec<(ReplicaId, Ending)>),
    /// There is no such pod.
    Gone,
    /// It cannot be done yet: what its pods are made from is still to be heard of.
    Later,
    /// It cannot be done.
    Failed { reason: String, retryable: bool },
}

/// Asks the cluster for single things.
pub(crate) struct Steps {
    client: Client,
    settings: Arc<KubeSettings>,
    templates: Arc<dyn PodTemplates>,
    under_way: Semaphore,
}

impl Steps {
    pub(crate) fn new(client: Client, settings: Arc<KubeSettings>, templates: Arc<dyn PodTemplates>) -> Self {
        Self { client, settings, templates, under_way: Semaphore::new(STEPS_MAX) }
    }

    pub(crate) async fn take(&self, step: Step, pod: Option<Pod>) -> Result<Done, kube::Error> {
        let _permit = self.under_way.acquire().await.expect("nobody closes it");
        match (step, pod) {
            (Step::Create(orders), _) => self.create(&orders).await,
            (Step::Release { order }, Some(pod)) => self.release(order.as_deref(), &pod).await,
            (Step::Stop { text }, Some(pod)) => {
                let patch = json!({"metadata": {"annotations": {STOP_ANNOTATION: text}}});
                self.patch(&pod, &patch).await
            }
            (Step::ReadEnds, Some(pod)) => Ok(Done::Ends(self.look(&pod).await)),
            (Step::Delete { grace_s }, Some(pod)) => self.delete(&pod, grace_s).await,
            (Step::Unpin, Some(pod)) => {
                let finalizers = pod.finalizers().iter().filter(|name| *name != FINALIZER);
                let finalizers: Vec<&String> = finalizers.collect();
                let version = pod.resource_version();
                self.patch(&pod, &json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}})).await
            }
            (_, None) => Ok(Done::Gone),
        }
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn create(&self, orders: &[ReplicaOrder]) -> Result<Done, kube::Error> {
        let Some(job) = orders.first().and_then(|order| self.templates.of(order.job)) else {
            return Ok(Done::Later);
        };
        let Some(wanted) = pod(orders, &job, &self.settings) else {
            return Ok(Done::Failed { reason: "its template has no container".to_owned(), retryable: false });
        };
        let pods = self.pods(&job.namespace);
        match pods.create(&params(), &wanted).await {
            Ok(pod) => Ok(Done::Pod(Box::new(pod))),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(pods.get_opt(&wanted.name_any()).await?.map_or(Done::Gone, |pod| Done::Pod(Box::new(pod))))
            }
            // What is wrong with it stays wrong; a quota or a missing account may change.
            Err(kube::Error::Api(status)) if [400, 403, 404, 422].contains(&status.code) => {
                let retryable = status.code == 403 || status.code == 404;
                Ok(Done::Failed { reason: status.message.replace('\n', " "), retryable })
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the secret if the pod has one, then takes the gate away.
    async fn release(&self, order: Option<&ReplicaOrder>, pod: &Pod) -> Result<Done, kube::Error> {
        if needs_secret(pod) {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let is_there = match order {
                Some(order) => match secrets.create(&params(), &secret(order, pod)).await {
                    Ok(_) => true,
                    Err(kube::Error::Api(status)) if status.code == 409 => true,
                    Err(error) => return Err(error),
                },
                None => secrets.get_metadata_opt(&pod.name_any()).await?.is_some(),
            };
            if !is_there {
                // Only the scheduler that died before knew it: the replica never runs, and may be ordered anew.
                return self.delete(pod, 0).await;
            }
        }
        if !is_gated(pod) {
            return Ok(Done::Pod(Box::new(pod.clone())));
        }
        let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.clone()).unwrap_or_default();
        let gates: Vec<_> = gates.into_iter().filter(|gate| gate.name != GATE).collect();
        let version = pod.resource_version();
        // Strategic patches would merge the list with itself.
        self.patch(pod, &json!({"metadata": {"resourceVersion": version}, "spec": {"schedulingGates": gates}})).await
    }

    /// Who has ended as far as that can be told now. It is looked again: nothing waits for what went wrong.
    async fn look(&self, pod: &Pod) -> Vec<(ReplicaId, Ending)> {
        match tokio::time::timeout(LOOK_TAKES_MAX, self.read_ends(pod)).await {
            Ok(Ok(ends)) => return ends,
            Ok(Err(error)) => warn!(pod = pod.name_any(), %error, "who has ended cannot be read; it is tried again"),
            Err(_) => warn!(pod = pod.name_any(), "who has ended was not read within 10 s; it is tried again"),
        }
        Vec::new()
    }

    /// What its supervisor says of those that have ended.
    async fn read_ends(&self, pod: &Pod) -> Result<Vec<(ReplicaId, Ending)>, kube::Error> {
        let main = pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|main| main.name.clone());
        let params = LogParams { container: main, tail_lines: Some(ENDS_WITHIN), ..LogParams::default() };
        let pods = self.pods(&pod.namespace().unwrap_or_default());
        match read_log(&pods, &pod.name_any(), &params, ENDS_BYTES_MAX).await {
            Ok(log) => Ok(ends(&log)),
            // It is about to vanish, which is told otherwise.
            Err(kube::Error::Api(status)) if [400, 404].contains(&status.code) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn patch(&self, pod: &Pod, patch: &serde_json::Value) -> Result<Done, kube::Error> {
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let pods = self.pods(&pod.namespace().unwrap_or_default());
        match pods.patch(&pod.name_any(), &params, &Patch::Merge(patch)).await {
            Ok(pod) => Ok(Done::Pod(Box::new(pod))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Done::Gone),
            // It has changed since: what is to be done follows from how it is now.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(pods.get_opt(&pod.name_any()).await?.map_or(Done::Gone, |pod| Done::Pod(Box::new(pod))))
            }
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, pod: &Pod, grace_s: u32) -> Result<Done, kube::Error> {
        let params = DeleteParams {
            grace_period_seconds: Some(grace_s),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        let pods = self.pods(&pod.namespace().unwrap_or_default());
        match pods.delete(&pod.name_any(), &params).await {
            Ok(_) => Ok(pods.get_opt(&pod.name_any()).await?.map_or(Done::Gone, |pod| Done::Pod(Box::new(pod)))),
            // Another pod has the name: ours is gone.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(Done::Gone),
            Err(error) => Err(error),
        }
    }
}

/// Who has ended, as a supervisor's log says.
fn ends(log: &[u8]) -> Vec<(ReplicaId, Ending)> {
    let end = |line: &[u8]| match bundle_line(line)? {
        (replica, BundleLine::Ended(_, ending)) => Some((replica, ending)),
        (_, BundleLine::Text(_) | BundleLine::Written(_)) => None,
    };
    log.split_inclusive(|byte| *byte == b'\n').filter_map(end).collect()
}

/// Whether its own secret must be there before it runs.
fn needs_secret(pod: &Pod) -> bool {
    let main = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let sources = main.and_then(|main| main.env_from.as_deref()).unwrap_or_default();
    let name = pod.name_any();
    sources.iter().any(|source| source.secret_ref.as_ref().is_some_and(|secret| secret.name == name))
}

fn params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use pollux_backend::Exit;

    use super::*;

    #[test]
    fn ends_are_found_among_bytes_that_are_no_text_and_characters_cut_in_two() {
        let log = b"lf a l\xc3\n[replica 7] \xff\xfe\n[replica 7+] caf\xc3\n[replica 8] \xa9\n[replica 7] \xa9\n\
            [pollux: replica 8 has ended after 4 bytes: {\"exited\":{\"code\":1}}]\n[replica 7+] \xe2\x82";
        assert_eq!(ends(log), [(ReplicaId(8), Ending::Exited(Exit::Code(1)))]);
    }
}
