//! What goes wrong in the world: nodes that fail, jobs that slow each other down.

use std::collections::BTreeMap;

use pollux_engine::Event;
use pollux_policy::NodeId;

use super::job::SimJob;
use super::queue::SimEvent;
use super::run::World;
use crate::NodeGroup;
use crate::sharing::shared_speeds;

const DAY_S: f64 = 86_400.0;

impl<'a> World<'a> {
    /// Multi-node jobs that meet on a node slow each other down, and so do a host and its guest.
    pub(super) fn interfere(&mut self) {
        if self.settings.interference == 0.0 && self.sharing.is_none() {
            return;
        }
        let shared_speeds = self.shared_speeds();
        let mut spanning = vec![0u32; self.next_node().0 as usize];
        let multi_node = |job: &SimJob<'_>| job.is_training() && job.allocation.is_multi_node();
        let live: Vec<usize> = self.live.iter().copied().collect();
        for job in live.iter().map(|&idx| &self.jobs[idx]).filter(|job| multi_node(job)) {
            for (node, _) in job.allocation.iter() {
                spanning[node.0 as usize] += 1;
            }
        }
        for idx in live {
            let job = &mut self.jobs[idx];
            let met = multi_node(job) && job.allocation.iter().any(|(node, _)| spanning[node.0 as usize] > 1);
            let changes = job.changes;
            let slowdown = if met { self.settings.interference } else { 0.0 };
            job.slow_down(self.now, slowdown, shared_speeds.get(&idx).copied());
            if job.changes != changes {
                self.predict(idx);
            }
        }
    }

    /// Whether another job trains on GPUs of this one.
    pub(super) fn shares(&self, job: usize) -> bool {
        let partner = self.engine.job(self.jobs[job].id).and_then(|job| job.guest_of().or(job.guest()));
        partner.is_some_and(|partner| self.jobs[self.index_of(partner)].is_training())
    }

    /// Of all jobs that train beside another.
    fn shared_speeds(&self) -> BTreeMap<usize, f64> {
        let Some(sharing) = self.sharing else { return BTreeMap::new() };
        let pairs =
            self.engine.jobs().filter_map(|job| Some((self.index_of(job.guest_of()?), self.index_of(job.id()))));
        let speeds = pairs.filter_map(|(host, guest)| {
            let [of_host, of_guest] = shared_speeds(sharing, self.jobs[host].duty()?, self.jobs[guest].duty()?);
            Some([(host, of_host), (guest, of_guest)])
        });
        speeds.flatten().collect()
    }

    /// A node that was not there before.
    pub(super) fn add_node(&mut self, group: &'a NodeGroup) {
        self.nodes.push((NodeId(0), group));
        self.join(self.nodes.len() - 1);
    }

    /// The number of the next node that joins.
    pub(super) fn next_node(&self) -> NodeId {
        NodeId(self.engine.last_node().map_or(0, |last| last.0 + 1))
    }

    pub(super) fn join(&mut self, node: usize) {
        let id = self.next_node();
        self.nodes[node].0 = id;
        let NodeGroup { gpus, cpus, memory, .. } = *self.nodes[node].1;
        let gpu_type = self.nodes[node].1.type_name();
        self.deliver(Event::NodeJoined { node: id, gpus, gpu_type, cpus, memory });
        if self.settings.failures.per_node_day > 0.0 {
            let mean_s = DAY_S / self.settings.failures.per_node_day;
            let after_s = -mean_s * (1.0 - self.failures.unit()).ln();
            self.queue.push(self.now.after_s(after_s), SimEvent::NodeFails { node });
        }
    }

    pub(super) fn fail(&mut self, node: usize) {
        // It may have been given back. One that was bought is not waited for: the autoscaler orders another.
        if self.lose(node) && self.scaling.is_none() {
            let back = self.now.after_s(self.settings.failures.repair_s);
            self.queue.push(back, SimEvent::NodeReturns { node });
        }
    }

    /// A node goes with all that is on it, if it is there.
    pub(super) fn lose(&mut self, node: usize) -> bool {
        let id = self.nodes[node].0;
        if self.engine.node(id).is_none() {
            return false;
        }
        for &idx in &self.live {
            let job = &mut self.jobs[idx];
            if job.allocation.replicas_on(id) > 0 {
                job.crash(self.now);
                job.allocation = job.allocation.without(id);
            }
            job.additions = job.additions.without(id);
        }
        self.deliver(Event::NodeLost { node: id });
        self.interfere();
        true
    }
}
