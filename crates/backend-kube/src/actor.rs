//! The loop between orders, the cluster's own news and what is asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, ResourceExt};
use pollux_backend::{Epoch, Exit, Observation, Observer, ReplicaId, ReplicaOrder};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tracing::{debug, error, warn};

use crate::bundle::Bundle;
use crate::epoch_gate::{EpochGate, Refused};
use crate::names::{EPOCH_ANNOTATION, INSTANCE_LABEL, epoch, first_replica, replicas_of};
use crate::node::{NodeState, Taken, is_used, state, taken_by};
use crate::steps::{Done, Steps};
use crate::{KubeSettings, PodTemplates};

/// Between attempts to hear whether an order may be carried out.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Orders that are admitted together.
const BATCH: usize = 1024;

/// What a scheduler asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Adopt(BTreeSet<ReplicaId>),
    Start(Box<ReplicaOrder>),
    Stop(ReplicaId, Duration),
    Forget(ReplicaId),
    KeepOnly(BTreeSet<ReplicaId>),
}

/// A command and whose it is.
pub(crate) type Ordered = (Epoch, Command);

pub(crate) struct Actor {
    settings: Arc<KubeSettings>,
    observer: Arc<Observer>,
    gate: EpochGate,
    steps: Arc<Steps>,
    /// The replicas of each pod, by the first of them.
    bundles: BTreeMap<ReplicaId, Bundle>,
    /// In which of these every replica is.
    homes: BTreeMap<ReplicaId, ReplicaId>,
    /// Those of which something is new, and those that are to be looked at later.
    changed: BTreeSet<ReplicaId>,
    wakes: BTreeSet<(Instant, ReplicaId)>,
    nodes: BTreeMap<String, Node>,
    /// Whether something of them, or of what others have there, is new.
    have_nodes_changed: bool,
    /// What was told of nodes.
    told: BTreeMap<String, Option<NodeState>>,
    /// Pods of others that take something, by namespace and name: their node and what it is.
    others: BTreeMap<String, (String, Taken)>,
    /// What a list that is being read has shown so far.
    listing: Option<BTreeSet<String>>,
    listing_nodes: Option<BTreeSet<String>>,
    /// Whether all pods, and all nodes, were seen once.
    has_pods: bool,
    has_nodes: bool,
    known: Option<BTreeSet<ReplicaId>>,
    /// In whose name orders are carried out.
    epoch: Epoch,
    working: JoinSet<(ReplicaId, Result<Done, kube::Error>)>,
}

impl Actor {
    pub(crate) fn new(
        client: Client,
        settings: KubeSettings,
        templates: Arc<dyn PodTemplates>,
        observer: Arc<Observer>,
    ) -> Self {
        let settings = Arc::new(settings);
        Self {
            gate: EpochGate::new(client.clone(), &settings),
            steps: Arc::new(Steps::new(client, Arc::clone(&settings), templates)),
            settings,
            observer,
            bundles: BTreeMap::new(),
            homes: BTreeMap::new(),
            changed: BTreeSet::new(),
            wakes: BTreeSet::new(),
            have_nodes_changed: false,
            nodes: BTreeMap::new(),
            told: BTreeMap::new(),
            others: BTreeMap::new(),
            listing: None,
            listing_nodes: None,
            has_pods: false,
            has_nodes: false,
            known: None,
            epoch: Epoch::default(),
            working: JoinSet::new(),
        }
    }

    /// Until whoever gives orders is gone.
    pub(crate) async fn run(mut self, client: Client, mut orders: UnboundedReceiver<Ordered>) {
        let mut pods = watch(Api::<Pod>::all(client.clone()));
        let mut nodes = watch(Api::<Node>::all(client));
        loop {
            let wake = self.advance();
            let timer = async {
                match wake {
                    Some(at) => sleep_until(at.into()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(done) = self.working.join_next(), if !self.working.is_empty() => self.finish(done),
                Some(event) = pods.next() => self.see_pods(event),
                Some(event) = nodes.next() => self.see_nodes(event),
                batch = next_batch(&mut orders), if self.has_pods => match batch {
                    Some(batch) => self.apply(batch).await,
                    None => return,
                },
                () = timer => {}
            }
        }
    }

    /// Tells what is news and asks for what is to be done; when to look again. Of what nobody has asked for nothing is told.
    fn advance(&mut self) -> Option<Instant> {
        self.known.as_ref()?;
        let now = Instant::now();
        while let Some(&(at, id)) = self.wakes.first().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, id));
            self.changed.insert(id);
        }
        if std::mem::take(&mut self.have_nodes_changed) {
            self.report_nodes();
        }
        while let Some(first) = self.changed.pop_first() {
            let Some(bundle) = self.bundles.get_mut(&first) else { continue };
            let is_anothers = bundle.pod.as_ref().is_some_and(|pod| epoch_of(pod) > self.epoch);
            let next = if is_anothers { Ok(None) } else { bundle.next(now) };
            match next {
                Ok(None) => {}
                Err(at) => {
                    self.wakes.insert((at, first));
                }
                Ok(Some(step)) => {
                    bundle.is_busy = true;
                    let (steps, pod) = (Arc::clone(&self.steps), bundle.pod.clone());
                    self.working.spawn(async move { (first, steps.take(step, pod).await) });
                }
            }
            while let Some(news) = bundle.news() {
                (self.observer)(news);
            }
            if bundle.is_over() {
                let over = self.bundles.remove(&first);
                for id in over.iter().flat_map(Bundle::replicas) {
                    self.homes.remove(&id);
                }
            }
        }
        self.wakes.first().map(|(at, _)| *at)
    }

    fn finish(&mut self, done: Result<(ReplicaId, Result<Done, kube::Error>), tokio::task::JoinError>) {
        let (first, outcome) = match done {
            Ok(done) => done,
            Err(error) => return error!(%error, "a request to the cluster has panicked"),
        };
        let Some(bundle) = self.bundles.get_mut(&first) else { return };
        self.changed.insert(first);
        bundle.is_busy = false;
        match outcome {
            Ok(Done::Pod(pod)) => {
                bundle.worked();
                bundle.see(*pod);
            }
            Ok(Done::Ends(ends)) => {
                bundle.worked();
                bundle.learn(ends, Instant::now());
            }
            Ok(Done::Gone) => {
                bundle.worked();
                bundle.lose();
            }
            Ok(Done::Later) => bundle.failed(Instant::now()),
            Ok(Done::Failed { reason, retryable }) => {
                bundle.worked();
                bundle.fail(reason, retryable);
            }
            Err(error) => {
                warn!(replica = first.0, %error, "the cluster has refused something; it is tried again");
                bundle.failed(Instant::now());
            }
        }
    }

    /// Carries out what was ordered, unless another scheduler has taken over.
    async fn apply(&mut self, batch: Vec<Ordered>) {
        let mut admitted = None;
        for (epoch, command) in batch {
            if admitted != Some(epoch) {
                match self.admit(epoch).await {
                    Ok(()) => (admitted, self.epoch) = (Some(epoch), epoch),
                    Err(by) => {
                        (self.observer)(Observation::Superseded { by });
                        continue;
                    }
                }
            }
            self.carry_out(command);
        }
    }

    /// Asks until it is known; the epoch of the other scheduler if there is one.
    async fn admit(&self, epoch: Epoch) -> Result<(), Epoch> {
        let mut is_first = true;
        loop {
            match self.gate.pass(epoch).await {
                Ok(()) => return Ok(()),
                Err(Refused::Superseded(by)) => return Err(by),
                Err(error) => {
                    if is_first {
                        warn!(%error, "whether this scheduler may act is not known; orders wait");
                    }
                    is_first = false;
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Adopt(known) => self.adopt(known),
            Command::Start(order) if order.shares_with.is_some() => {
                let reason = "pods do not share GPUs; expected a policy that gives a GPU to one job".to_owned();
                self.ordered(&order).fail(reason, false);
            }
            Command::Start(order) => self.ordered(&order).start(&order),
            Command::Stop(id, grace) => match self.home(id) {
                Some(bundle) => bundle.stop(id, grace, now),
                None => (self.observer)(Observation::Exited { replica: id, exit: Exit::Lost }),
            },
            Command::Forget(id) => {
                if let Some(bundle) = self.home(id) {
                    bundle.forget(id);
                }
            }
            Command::KeepOnly(kept) => {
                let unkept: Vec<ReplicaId> = self.homes.keys().filter(|id| !kept.contains(id)).copied().collect();
                for id in unkept {
                    if let Some(bundle) = self.home(id) {
                        bundle.forget(id);
                    }
                }
            }
        }
        // Whoever gives orders knows what there is.
        self.known.get_or_insert_default();
    }

    /// The bundle of a replica, of which something is new then.
    fn home(&mut self, id: ReplicaId) -> Option<&mut Bundle> {
        let first = *self.homes.get(&id)?;
        self.changed.insert(first);
        self.bundles.get_mut(&first)
    }

    /// The bundle of an order, be it only that it is known.
    fn ordered(&mut self, order: &ReplicaOrder) -> &mut Bundle {
        let known = self.homes.get(&order.replica).copied();
        let first = known.or_else(|| order.bundle.iter().copied().min()).unwrap_or(order.replica);
        self.bundle(first, order.bundle.iter().copied().chain([order.replica]))
    }

    /// A bundle of which something is new, be it only that it is known.
    fn bundle(&mut self, first: ReplicaId, replicas: impl IntoIterator<Item = ReplicaId>) -> &mut Bundle {
        self.changed.insert(first);
        let bundle = self.bundles.entry(first).or_default();
        let homes = &mut self.homes;
        bundle.expect(replicas.into_iter().filter(|id| *homes.entry(*id).or_insert(first) == first));
        bundle
    }

    fn adopt(&mut self, known: BTreeSet<ReplicaId>) {
        for id in known.iter().filter(|id| !self.homes.contains_key(id)) {
            (self.observer)(Observation::Exited { replica: *id, exit: Exit::Lost });
        }
        for (first, bundle) in &mut self.bundles {
            self.changed.insert(*first);
            if bundle.adopt(&known, self.settings.grace, Instant::now()) {
                debug!(replica = first.0, "a pod that nobody knows is told to end");
            }
        }
        self.told.clear();
        self.have_nodes_changed = true;
        self.known = Some(known);
    }

    fn see_pods(&mut self, event: watcher::Result<Event<Pod>>) {
        match event {
            Ok(Event::Init) => self.listing = Some(BTreeSet::new()),
            Ok(Event::InitApply(pod)) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(key(&pod));
                }
                self.see_pod(pod);
            }
            Ok(Event::InitDone) => {
                let seen = self.listing.take().unwrap_or_default();
                self.others.retain(|key, _| seen.contains(key));
                for (first, bundle) in &mut self.bundles {
                    if !bundle.is_busy && bundle.pod.as_ref().is_some_and(|pod| !seen.contains(&key(pod))) {
                        self.changed.insert(*first);
                        bundle.lose();
                    }
                }
                (self.has_pods, self.have_nodes_changed) = (true, true);
            }
            Ok(Event::Apply(pod)) => self.see_pod(pod),
            Ok(Event::Delete(pod)) => {
                self.have_nodes_changed |= self.others.remove(&key(&pod)).is_some();
                if let Some(first) = self.first_of(&pod).filter(|first| self.bundles.contains_key(first)) {
                    let bundle = self.bundle(first, None);
                    bundle.see(pod);
                    bundle.lose();
                }
            }
            Err(error) => warn!(%error, "pods cannot be watched; it is tried again"),
        }
    }

    fn see_pod(&mut self, pod: Pod) {
        if let Some(first) = self.first_of(&pod) {
            // A scheduler that was superseded may have had one more on its way.
            let is_stray = self.known.is_some() && !self.bundles.contains_key(&first) && epoch_of(&pod) < self.epoch;
            let grace = self.settings.grace;
            let bundle = self.bundle(first, replicas_of(&pod));
            bundle.see(pod);
            if is_stray {
                warn!(replica = first.0, "a pod of an earlier scheduler has come late; it is ended");
                bundle.disown(grace, Instant::now());
            }
            return;
        }
        let (key, taken) = (key(&pod), taken_by(&pod, &self.settings));
        let now = pod.spec.and_then(|spec| spec.node_name).filter(|_| taken != Taken::default());
        let now = now.map(|node| (node, taken));
        if self.others.get(&key) != now.as_ref() {
            self.have_nodes_changed = true;
            match now {
                Some(now) => drop(self.others.insert(key, now)),
                None => drop(self.others.remove(&key)),
            }
        }
    }

    /// The first replica of a pod, if it is one of ours.
    fn first_of(&self, pod: &Pod) -> Option<ReplicaId> {
        let is_ours = pod.labels().get(INSTANCE_LABEL) == Some(&self.settings.instance);
        is_ours.then(|| first_replica(pod)).flatten()
    }

    fn see_nodes(&mut self, event: watcher::Result<Event<Node>>) {
        self.have_nodes_changed = true;
        match event {
            Ok(Event::Init) => self.listing_nodes = Some(BTreeSet::new()),
            Ok(Event::InitApply(node)) => {
                if let Some(listing) = &mut self.listing_nodes {
                    listing.insert(node.name_any());
                }
                self.nodes.insert(node.name_any(), node);
            }
            Ok(Event::InitDone) => {
                let seen = self.listing_nodes.take().unwrap_or_default();
                self.nodes.retain(|name, _| seen.contains(name));
                self.has_nodes = true;
            }
            Ok(Event::Apply(node)) => {
                self.nodes.insert(node.name_any(), node);
            }
            Ok(Event::Delete(node)) => {
                self.nodes.remove(&node.name_any());
            }
            Err(error) => warn!(%error, "nodes cannot be watched; it is tried again"),
        }
    }

    /// Tells of nodes that are new, changed or gone.
    fn report_nodes(&mut self) {
        if !(self.has_pods && self.has_nodes) || self.known.is_none() {
            return;
        }
        let mut taken: BTreeMap<&str, Taken> = BTreeMap::new();
        for (node, amount) in self.others.values() {
            let sum = taken.entry(node).or_default();
            *sum = sum.and(*amount);
        }
        for (name, node) in &self.nodes {
            let was = self.told.get(name);
            let now = match is_used(node, &self.settings) {
                true => state(node, taken.get(name.as_str()).copied().unwrap_or_default(), &self.settings),
                // Its GPUs may be back in a moment: their plugin starts again.
                false if was.is_some() => NodeState::Unreachable,
                false => continue,
            };
            if was == Some(&Some(now.clone())) {
                continue;
            }
            // Of a node that answers again it is told what runs there.
            if was == Some(&Some(NodeState::Unreachable)) {
                for (first, bundle) in &mut self.bundles {
                    if node_of(bundle) == Some(name.as_str()) {
                        self.changed.insert(*first);
                        bundle.report_again();
                    }
                }
            }
            (self.observer)(match now.clone() {
                NodeState::Up(info) => Observation::NodeUp(info),
                NodeState::Unreachable => Observation::NodeUnreachable { node: name.clone() },
            });
            self.told.insert(name.clone(), Some(now));
        }
        let vanished: Vec<String> = self.told.keys().filter(|name| !self.nodes.contains_key(*name)).cloned().collect();
        for node in vanished {
            // Whoever deletes the object of a node says that its machine is gone.
            for (first, bundle) in &mut self.bundles {
                if !bundle.has_ended() && node_of(bundle) == Some(node.as_str()) {
                    self.changed.insert(*first);
                    bundle.abandon();
                }
            }
            self.told.remove(&node);
            (self.observer)(Observation::NodeGone { node });
        }
    }
}

fn node_of(bundle: &Bundle) -> Option<&str> {
    bundle.pod.as_ref()?.spec.as_ref()?.node_name.as_deref()
}

/// In whose name a pod was made.
fn epoch_of(pod: &Pod) -> Epoch {
    epoch(pod.annotations().get(EPOCH_ANNOTATION)).unwrap_or_default()
}

fn key(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// What is there and what changes, for ever.
fn watch<K>(api: Api<K>) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let slim = |object: &mut K| object.meta_mut().managed_fields = None;
    watcher(api, Config::default()).default_backoff().modify(slim).boxed()
}

/// All that was ordered since; none if nobody can order any more.
async fn next_batch(orders: &mut UnboundedReceiver<Ordered>) -> Option<Vec<Ordered>> {
    let mut batch = Vec::new();
    (orders.recv_many(&mut batch, BATCH).await > 0).then_some(batch)
}
