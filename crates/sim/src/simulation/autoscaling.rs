//! Nodes that are bought and given back.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use pollux_engine::{Event, Node};
use pollux_model::GpuType;
use pollux_policy::{Autoscaler, AutoscalerSettingError, NodeId, NodePool, PolicySettings, Timestamp};

use super::queue::SimEvent;
use super::run::World;
use super::settings::Autoscale;
use crate::NodeGroup;

/// Who says how many nodes there should be, what is on its way, and the bill.
pub(super) struct Scaling {
    autoscale: Autoscale,
    autoscaler: Autoscaler,
    /// Nodes that are not up yet and not cancelled, by number.
    orders: BTreeSet<u64>,
    ordered: u64,
}

/// Counts what nodes cost that come and go, from a moment on.
pub(super) struct Meter {
    /// Node-seconds and GPU-seconds paid for.
    pub(super) node_s: f64,
    pub(super) gpu_s: f64,
    nodes: usize,
    gpus: u32,
    read: Timestamp,
}

impl Meter {
    pub(super) const fn from(start: Timestamp) -> Self {
        Self { node_s: 0.0, gpu_s: 0.0, nodes: 0, gpus: 0, read: start }
    }

    /// What there was until now is paid for; from now on it is what there is.
    fn read(&mut self, now: Timestamp, nodes: usize, gpus: u32) {
        let since_s = now.since_s(self.read);
        self.node_s += since_s * self.nodes as f64;
        self.gpu_s += since_s * f64::from(self.gpus);
        (self.nodes, self.gpus) = (nodes, gpus);
        self.read = self.read.max(now);
    }
}

impl Scaling {
    pub(super) fn new(autoscale: Autoscale, policy: &PolicySettings) -> Result<Self, AutoscalerSettingError> {
        let autoscaler = Autoscaler::new(autoscale.settings, policy)?;
        Ok(Self { autoscale, autoscaler, orders: BTreeSet::new(), ordered: 0 })
    }
}

impl World<'_> {
    /// Puts the autoscaler's next look on the calendar, where there is one.
    pub(super) fn look_again(&mut self) {
        if let Some(scaling) = &self.scaling {
            self.queue.push(self.now.after_s(scaling.autoscale.interval_s), SimEvent::Scales);
        }
    }

    pub(super) fn scale(&mut self) {
        self.look_again();
        let Some(scaling) = &mut self.scaling else { return };
        let staying = self.engine.nodes().filter(|node| !node.is_draining()).count();
        let nodes = (staying + scaling.orders.len()) as u32;
        let NodeGroup { gpus, cpus, memory, .. } = *self.settings.node();
        let pool = NodePool { nodes, gpus, gpu_type: GpuType::default(), cpus, memory };
        let wanted = self.engine.view(self.now, |view| scaling.autoscaler.advise(self.now, view, pool)).nodes;
        if wanted > nodes {
            self.grow(wanted - nodes);
        } else {
            self.shrink(nodes - wanted);
        }
    }

    /// Nodes that were about to leave stay; the others are ordered.
    fn grow(&mut self, nodes: u32) {
        let mut missing = nodes as usize;
        let leaving: Vec<NodeId> = self.engine.nodes().filter(|node| node.is_draining()).map(Node::id).collect();
        for &node in leaving.iter().take(missing) {
            missing -= 1;
            self.deliver(Event::NodeUndrain { node });
        }
        let Some(scaling) = &mut self.scaling else { return };
        for _ in 0..missing {
            scaling.ordered += 1;
            scaling.orders.insert(scaling.ordered);
            let up = self.now.after_s(scaling.autoscale.provision_s);
            self.queue.push(up, SimEvent::NodeArrives { order: scaling.ordered });
        }
    }

    /// What is not there yet is cancelled first; then those nodes leave that hold least, of those the newest.
    fn shrink(&mut self, nodes: u32) {
        let Some(scaling) = &mut self.scaling else { return };
        let mut excess = nodes as usize;
        while excess > 0 && scaling.orders.pop_last().is_some() {
            excess -= 1;
        }
        let mut staying: Vec<&Node> = self.engine.nodes().filter(|node| !node.is_draining()).collect();
        staying.sort_by_key(|node| (node.gpus_held(), Reverse(node.id())));
        let leaving: Vec<NodeId> = staying.into_iter().take(excess).map(Node::id).collect();
        for node in leaving {
            self.deliver(Event::NodeDrain { node });
        }
    }

    pub(super) fn arrive(&mut self, order: u64) {
        let awaited = self.scaling.as_mut().is_some_and(|scaling| scaling.orders.remove(&order));
        if awaited {
            self.add_node(self.settings.node());
        }
    }

    /// Lets nodes go that were drained and are empty by now, and pays for the others.
    pub(super) fn give_back(&mut self) {
        if self.meter.is_none() {
            return;
        }
        let empty = |node: &&Node| node.is_draining() && node.gpus_held() == 0;
        let leaving: Vec<NodeId> = self.engine.nodes().filter(empty).map(Node::id).collect();
        for node in leaving {
            self.deliver(Event::NodeLost { node });
        }
        let (nodes, gpus) = (self.engine.nodes().len(), self.engine.nodes().map(Node::gpus).sum());
        if let Some(meter) = &mut self.meter {
            meter.read(self.now, nodes, gpus);
        }
    }
}
