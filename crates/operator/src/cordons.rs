//! Nodes that are cordoned are drained: nobody new goes there, and whoever is there leaves in good order.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use pollux_server::{Handle, NodeAction, Refused};
use tracing::{info, warn};

/// Before another attempt, for nodes that the scheduler has not heard of yet.
const AGAIN: Duration = Duration::from_secs(2);

/// Until the scheduler has ended.
pub(crate) async fn follow(client: Client, handle: Handle) -> Result<(), Refused> {
    let mut nodes = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().boxed();
    let mut cordons: BTreeMap<String, bool> = BTreeMap::new();
    let mut is_settled = true;
    loop {
        tokio::select! {
            Some(event) = nodes.next() => match event {
                Ok(Event::Apply(node) | Event::InitApply(node)) => {
                    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
                    is_settled &= cordons.insert(node.name_any(), is_cordoned) == Some(is_cordoned);
                }
                Ok(Event::Delete(node)) => drop(cordons.remove(&node.name_any())),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => warn!(%error, "nodes cannot be watched; it is tried again"),
            },
            () = tokio::time::sleep(AGAIN), if !is_settled => {}
        }
        if !is_settled {
            is_settled = settle(&cordons, &handle).await?;
        }
    }
}

/// Has the scheduler drain what is cordoned, and nothing else; whether it knows all these nodes.
async fn settle(cordons: &BTreeMap<String, bool>, handle: &Handle) -> Result<bool, Refused> {
    let seen = handle.look(|cluster| {
        let nodes = cluster.engine().nodes();
        nodes.map(|node| (cluster.node_name(node.id()).to_owned(), node.is_draining())).collect::<BTreeMap<_, _>>()
    });
    let drained = seen.get().await?;
    for (node, is_cordoned) in cordons {
        if drained.get(node).is_none_or(|is_drained| is_drained == is_cordoned) {
            continue;
        }
        let action = if *is_cordoned { NodeAction::Drain } else { NodeAction::Undrain };
        info!(node, is_cordoned, "a node was cordoned or uncordoned");
        if let Err(error) = handle.act_on_node(node, action).get().await {
            warn!(node, %error, "a node cannot be drained or used again; it is tried again");
            return Ok(false);
        }
    }
    // One that is not known may have GPUs later: it is looked for again.
    Ok(cordons.iter().all(|(node, is_cordoned)| !is_cordoned || drained.contains_key(node)))
}
