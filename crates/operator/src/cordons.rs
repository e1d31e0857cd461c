//! Nodes that are cordoned, or kept for pods that no job has, are drained: nobody new goes there, and whoever is there leaves in
//! good order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Toleration};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use pollux_backend_kube::PodTemplates;
use pollux_job::JobId;
use pollux_server::{Handle, NodeAction, Refused};
use tracing::{info, warn};

use crate::controller::Templates;
use crate::taints::Access;

/// Before another attempt, for nodes that the scheduler has not heard of yet, and those that some jobs may use: these come and
/// go.
const AGAIN: Duration = Duration::from_secs(2);

/// Until the scheduler has ended.
pub(crate) async fn follow(
    client: Client,
    handle: Handle,
    templates: Arc<Templates>,
    gpu_resource: String,
) -> Result<(), Refused> {
    let mut nodes = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().boxed();
    let mut known: BTreeMap<String, Access> = BTreeMap::new();
    let mut is_settled = true;
    loop {
        tokio::select! {
            Some(event) = nodes.next() => match event {
                Ok(Event::Apply(node) | Event::InitApply(node)) => {
                    let access = Access::of(&node, &gpu_resource);
                    is_settled &= known.insert(node.name_any(), access.clone()) == Some(access);
                }
                Ok(Event::Delete(node)) => drop(known.remove(&node.name_any())),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => warn!(%error, "nodes cannot be watched; it is tried again"),
            },
            () = tokio::time::sleep(AGAIN), if !is_settled => {}
        }
        if !is_settled {
            is_settled = settle(&known, &handle, &templates).await?;
        }
    }
}

/// Has the scheduler drain what is closed, and nothing else; whether nothing is left to be looked at again.
async fn settle(known: &BTreeMap<String, Access>, handle: &Handle, templates: &Templates) -> Result<bool, Refused> {
    let seen = handle.look(|cluster| {
        let nodes = cluster.engine().nodes();
        let drained = nodes.map(|node| (cluster.node_name(node.id()).to_owned(), node.is_draining()));
        (drained.collect::<BTreeMap<_, _>>(), cluster.live_jobs().collect::<Vec<JobId>>())
    });
    let (drained, jobs) = seen.get().await?;
    let is_for_some = known.values().any(Access::is_for_some);
    let tolerations: Vec<Vec<Toleration>> = match is_for_some {
        true => jobs.into_iter().filter_map(|job| templates.of(job)?.template.spec?.tolerations).collect(),
        false => Vec::new(),
    };
    let mut is_settled = !is_for_some;
    for (node, access) in known {
        let is_closed = access.is_closed(tolerations.iter().map(Vec::as_slice));
        let Some(is_drained) = drained.get(node) else {
            // One that is not known may have GPUs later: it is looked for again.
            is_settled &= !is_closed;
            continue;
        };
        if *is_drained == is_closed {
            continue;
        }
        let action = if is_closed { NodeAction::Drain } else { NodeAction::Undrain };
        info!(node, is_closed, "a node was closed or opened: cordoned, or kept for others by a taint");
        if let Err(error) = handle.act_on_node(node, action).get().await {
            warn!(node, %error, "a node cannot be drained or used again; it is tried again");
            return Ok(false);
        }
    }
    Ok(is_settled)
}
