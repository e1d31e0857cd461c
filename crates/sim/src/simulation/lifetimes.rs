//! Nodes that are there for a time, each followed by another.

use pollux_engine::Event;
use pollux_policy::NodeEnd;

use super::queue::SimEvent;
use super::run::World;
use crate::Lifetime;

impl World<'_> {
    /// The first nodes begin to live; those that are staggered have lived for a while.
    pub(super) fn begin_first_lives(&mut self) {
        let groups = self.settings.cluster.groups().iter();
        let places = groups.flat_map(|group| (1..=group.count).map(move |place| (group, place)));
        for (node, (group, place)) in places.enumerate() {
            let Some(lifetime) = group.lifetime else { continue };
            let used_s = (lifetime.time_limit_s - lifetime.drain_before_s) as f64;
            let share = if lifetime.staggered { f64::from(place) / f64::from(group.count) } else { 1.0 };
            self.begin_life(node, used_s * share, lifetime);
        }
    }

    /// A node is to be empty after so long.
    fn begin_life(&mut self, node: usize, used_s: f64, lifetime: Lifetime) {
        let drains_at = self.now.after_s(used_s);
        let ends_at = drains_at.after_s(lifetime.drain_before_s as f64);
        let end = Some(NodeEnd { drains_at, ends_at: Some(ends_at) });
        self.deliver(Event::NodeEnds { node: self.nodes[node].0, end });
        self.queue.push(drains_at.after_s(lifetime.wait_s as f64), SimEvent::NodeFollows { node });
        self.queue.push(ends_at, SimEvent::NodeEnds { node });
    }

    /// Another node comes in the place of one that ends.
    pub(super) fn follow_up(&mut self, node: usize) {
        let group = self.nodes[node].1;
        let Some(lifetime) = group.lifetime else { return };
        self.add_node(group);
        self.begin_life(self.nodes.len() - 1, (lifetime.time_limit_s - lifetime.drain_before_s) as f64, lifetime);
    }
}
