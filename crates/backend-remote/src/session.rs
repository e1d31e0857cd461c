//! The scheduler's end of a connection.

use std::io::{self, ErrorKind};

use pollux_backend::Epoch;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use crate::members::NodeCaller;
use crate::nodes::Doorway;
use crate::protocol::{self, FromNode, GREETING_MAX, HEARTBEAT, Hello, PROTOCOL, PROTOCOL_MIN, SILENCE_MAX, ToNode};
use crate::routes::{Routes, Shared};

const NAME_BYTES_MAX: usize = 63;
/// Nodes of one machine: no more kinds of GPUs are in any.
const NODES_MAX: usize = 64;
const ADDRESS_BYTES_MAX: usize = 253;
const MACHINES_MAX: usize = 10_000;

pub(crate) async fn serve(
    shared: &Shared,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    caller: &NodeCaller,
    doorway: &Doorway,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let greeting = timeout(GREETING_MAX, protocol::read::<FromNode>(&mut reader)).await;
    let Ok(Ok(Some(FromNode::Hello(hello)))) = greeting else {
        return info!(peer = %doorway.peer, "a machine connected and did not say who it is");
    };
    let (to, orders) = mpsc::unbounded_channel();
    let entered = shared.with(|routes| match refusal(routes, caller, &hello, doorway) {
        // In whose name it is to end what it runs is not known yet: it tries again.
        Some(ToNode::Refused { removed: Some(_), .. }) if routes.epoch() == Epoch::default() => Err(ToNode::Unknown),
        Some(refused) => Err(refused),
        None => match routes.connect(&hello, to) {
            Ok(id) => Ok((id, welcome(routes, &hello))),
            Err(error) => {
                let reason = format!("the scheduler cannot write down that it joins: {error}");
                Err(ToNode::Refused { reason, removed: None })
            }
        },
    });
    let (id, welcome) = match entered {
        Some(Ok(entered)) => entered,
        Some(Err(refused)) => {
            if let ToNode::Refused { reason, .. } = &refused {
                warn!(machine = hello.name, peer = %doorway.peer, reason, "machine is refused");
            }
            if let Err(error) = protocol::write(&mut writer, &refused).await {
                info!(machine = hello.name, %error, "it was not told");
            }
            return;
        }
        None => return,
    };
    let machine = &hello.name;
    // Whatever ends this task ends the connection for everybody.
    let _guard = Disconnect { shared, machine, id };
    let told = async {
        loop {
            match timeout(SILENCE_MAX, protocol::read(&mut reader)).await {
                Ok(Ok(Some(message))) => drop(shared.with(|routes| routes.told(machine, id, message))),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => return error,
                Err(_) => return io::Error::new(ErrorKind::TimedOut, "nothing heard"),
            }
        }
    };
    let reason = tokio::select! {
        error = told => error.to_string(),
        ended = give_orders(&mut writer, welcome, orders, &*doorway.certificate) => match ended {
            Ok(()) => "another connection has taken its place".to_owned(),
            Err(error) => error.to_string(),
        },
    };
    shared.with(|routes| routes.disconnect(machine, id, &reason));
}

fn welcome(routes: &Routes, hello: &Hello) -> ToNode {
    ToNode::Welcome {
        protocol: PROTOCOL.min(hello.protocol),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster: routes.members.cluster().to_owned(),
        checkpoints: Some(routes.folder.clone()),
    }
}

/// Writes until nothing more will come.
async fn give_orders(
    writer: &mut (impl AsyncWrite + Unpin),
    welcome: ToNode,
    mut orders: UnboundedReceiver<ToNode>,
    certificate: &(dyn Fn() -> Option<String> + Send + Sync),
) -> io::Result<()> {
    protocol::write(writer, &welcome).await?;
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => protocol::write(writer, &order).await?,
                None => return Ok(()),
            },
            _ = heartbeat.tick() => {
                protocol::write(writer, &ToNode::Alive { certificate: certificate() }).await?;
            }
        }
    }
}

struct Disconnect<'a> {
    shared: &'a Shared,
    machine: &'a str,
    id: u64,
}

impl Drop for Disconnect<'_> {
    fn drop(&mut self) {
        self.shared.with(|routes| routes.disconnect(self.machine, self.id, "the scheduler ends"));
    }
}

/// Why a machine is not let in.
fn refusal(routes: &Routes, caller: &NodeCaller, hello: &Hello, doorway: &Doorway) -> Option<ToNode> {
    if let NodeCaller::Removed(name) = caller {
        let reason = format!("{name} was removed from this cluster: it may join anew with another token");
        return Some(ToNode::Refused { reason, removed: Some(routes.last_leave()) });
    }
    let reason = not_understood(hello)
        .or_else(|| not_its_own(routes, caller, hello))
        .or_else(|| not_reachable(routes, hello, doorway))?;
    Some(ToNode::Refused { reason, removed: None })
}

/// What a machine says that makes no sense here.
fn not_understood(hello: &Hello) -> Option<String> {
    let Hello { protocol, version, name, address, nodes, .. } = hello;
    let ours = env!("CARGO_PKG_VERSION");
    if *protocol < PROTOCOL_MIN {
        return Some(format!(
            "pollux {version} on {name} speaks protocol {protocol}: this scheduler, pollux {ours}, expects {PROTOCOL_MIN} \
             or later; take a newer pollux there"
        ));
    }
    let is_name = |name: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter)
    };
    if let Some(bad) = std::iter::once(name).chain(nodes).find(|name| !is_name(name)) {
        return Some(format!("name {bad:?}: expected 1 to {NAME_BYTES_MAX} letters, digits, -, _ or ."));
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if !(1..=ADDRESS_BYTES_MAX).contains(&address.len()) || !address.bytes().all(is_letter) {
        return Some(format!("address {address:?}: expected a host name or an address"));
    }
    let is_few = (1..=NODES_MAX).contains(&nodes.len());
    (!is_few).then(|| format!("{} nodes of one machine: expected 1 to {NODES_MAX}", nodes.len()))
}

/// What a machine claims that belongs to another, or what it belongs to.
fn not_its_own(routes: &Routes, caller: &NodeCaller, hello: &Hello) -> Option<String> {
    let Hello { name, credential, cluster, nodes, .. } = hello;
    if cluster.as_ref().is_some_and(|cluster| cluster != routes.members.cluster()) {
        return Some(format!(
            "{name} has joined another scheduler: remove it there first, or give it an empty folder by --state once \
             nothing runs there any more"
        ));
    }
    if let NodeCaller::Joined(known) = caller
        && known != name
    {
        return Some(format!(
            "this machine has joined as {known}: start it with --name {known}, or remove {known} first"
        ));
    }
    let taken = |node: &String| {
        let of_other = routes.members.machine_of(node).is_some_and(|machine| machine != name);
        of_other || routes.has_own_node(node)
    };
    if !routes.members.may_be(name, credential) || nodes.iter().any(taken) {
        return Some(format!(
            "{name} is the name of another machine: give another by --name, or free it by `pollux nodes remove {name}`"
        ));
    }
    if routes.members.machine(name).is_none() && routes.members.machines().len() >= MACHINES_MAX {
        return Some(format!("{MACHINES_MAX} machines have joined: expected no more"));
    }
    None
}

/// Why others would not find a machine, or it would not find them.
fn not_reachable(routes: &Routes, hello: &Hello, doorway: &Doorway) -> Option<String> {
    let Hello { name, address, .. } = hello;
    // Nodes of one address are taken for parts of one machine.
    if routes.has_own_address(address) {
        return Some(format!(
            "{address} is the address of the scheduler's own slots: give {name} another by --address, or start `pollux up` \
             with --slots 0"
        ));
    }
    let same = routes.members.machines().iter().find(|it| it.address == *address && it.name != *name);
    if let Some(other) = same.map(|it| &it.name) {
        return Some(format!(
            "{address} is the address of {other}: give {name} another by --address, or free it by `pollux nodes remove \
             {other}`"
        ));
    }
    if !doorway.peer.is_loopback() && is_local(&doorway.worker_url) {
        return Some(format!(
            "workers would look for the scheduler at {}, which only its own machine reaches: start `pollux up` with \
             --worker-url https://HOST:PORT",
            doorway.worker_url
        ));
    }
    None
}

fn is_local(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|local| host.starts_with(local))
}
