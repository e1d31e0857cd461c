use super::buckets::Buckets;
use super::prices::Prices;
use super::problem::{Problem, ProblemNode};
use crate::{NodeResources, ReplicaResources};

const NOBODY: u32 = u32::MAX;
/// A job that is not part of the problem.
const STRANGER: u32 = u32::MAX - 1;

/// Where every job's replicas are, and what is free.
#[derive(Clone, Debug)]
pub(super) struct Packing<'a> {
    problem: &'a Problem,
    pub(super) places: Vec<Vec<(usize, u32)>>,
    pub(super) values: Vec<f64>,
    free: Vec<NodeResources>,
    /// Free GPUs of each kind.
    free_gpus: Vec<u32>,
    /// The same of all kinds.
    free_total: u32,
    /// The multi-node job on each node; with the rule off nobody is ever noted.
    multi_host: Vec<u32>,
    /// Jobs with replicas on each node, in no order.
    pub(super) tenants: Vec<Vec<u32>>,
    buckets: Buckets,
    /// Free GPUs of each kind on nodes that may take a multi-node job.
    multi_free: Vec<u32>,
}

/// One way to run a job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    pub(super) value: f64,
    pub(super) replicas: u32,
    placement: OfferPlacement,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum OfferPlacement {
    Nothing,
    Keep,
    Single { kind: usize },
    Multi { kind: usize },
}

impl<'a> Packing<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let kinds = problem.kinds();
        let mut multi_free = vec![0; kinds];
        let mut free_gpus = vec![0; kinds];
        for node in &problem.nodes {
            free_gpus[node.kind] += node.resources.gpus;
            if !node.hosts_multi {
                multi_free[node.kind] += node.resources.gpus;
            }
        }
        let host = |node: &ProblemNode| if node.hosts_multi { STRANGER } else { NOBODY };
        Self {
            problem,
            places: vec![Vec::new(); problem.jobs.len()],
            values: problem.jobs.iter().map(|options| options.none).collect(),
            free: problem.nodes.iter().map(|node| node.resources).collect(),
            free_gpus,
            free_total: problem.nodes.iter().map(|node| node.resources.gpus).sum(),
            multi_host: problem.nodes.iter().map(host).collect(),
            tenants: vec![Vec::new(); problem.nodes.len()],
            buckets: Buckets::new(&problem.nodes, kinds),
            multi_free,
        }
    }

    pub(super) fn replicas(&self, job: usize) -> u32 {
        self.places[job].iter().map(|&(_, replicas)| replicas).sum()
    }

    /// Free GPUs of each kind.
    pub(super) fn free_gpus(&self) -> &[u32] {
        &self.free_gpus
    }

    pub(super) fn is_full(&self) -> bool {
        self.free_total == 0
    }

    pub(super) fn into_places(self) -> Vec<Vec<(usize, u32)>> {
        self.places
    }

    pub(super) fn total(&self) -> f64 {
        self.values.iter().sum()
    }

    /// The option that is worth most after paying for its GPUs, among those that fit now; at infinite prices, the best of
    /// the smallest.
    pub(super) fn best_offer(&self, job: usize, prices: Prices<'_>) -> Offer {
        let options = &self.problem.jobs[job];
        let (prices, most) = if prices.are_infinite() { (Prices::NONE, options.fewest()) } else { (prices, u32::MAX) };
        let mut best = Offer { value: options.none, replicas: 0, placement: OfferPlacement::Nothing };
        let mut best_net = options.none;
        if let Some(keep) = &options.keep
            && keep.replicas() <= most
            && self.fits(job, &keep.places)
        {
            let price = self.kind_of(&keep.places).map_or(0.0, |kind| prices.of(kind));
            let net = keep.value - price * options.gpus(keep.replicas());
            if net > best_net {
                best_net = net;
                best = Offer { value: keep.value, replicas: keep.replicas(), placement: OfferPlacement::Keep };
            }
        }
        if self.is_full() {
            return best;
        }
        let gpus = f64::from(options.replica.gpus);
        let mut consider = |values: &[f64], room: u32, placement: OfferPlacement, price: f64| {
            let values = &values[..values.len().min(room.min(most) as usize)];
            if let Some((idx, net)) = best_size(values, price, gpus, best_net) {
                best_net = net;
                best = Offer { value: values[idx], replicas: idx as u32 + 1, placement };
            }
        };
        for kind in 0..self.free_gpus.len() {
            let (single, _) = options.sizes.of_kind(kind);
            let room = if single.is_empty() || self.free_gpus[kind] == 0 {
                0
            } else {
                self.room_on_one(kind, options.replica)
            };
            consider(single, room, OfferPlacement::Single { kind }, prices.of(kind));
        }
        for kind in 0..self.free_gpus.len() {
            let (_, multi) = options.sizes.of_kind(kind);
            let room = if multi.is_empty() || self.multi_free[kind] == 0 {
                0
            } else {
                self.room_on_several(kind, options.replica)
            };
            consider(multi, room, OfferPlacement::Multi { kind }, prices.of(kind));
        }
        best
    }

    /// Gives a job what was offered.
    pub(super) fn accept(&mut self, job: usize, offer: &Offer) {
        let replica = self.problem.jobs[job].replica;
        let places = match offer.placement {
            OfferPlacement::Nothing => Vec::new(),
            OfferPlacement::Keep => {
                self.problem.jobs[job].keep.as_ref().map_or_else(Vec::new, |keep| keep.places.clone())
            }
            OfferPlacement::Single { kind } => vec![(self.best_fit(kind, replica, offer.replicas), offer.replicas)],
            OfferPlacement::Multi { kind } if replica.fits_any_gpu() => self.spread(kind, offer.replicas),
            OfferPlacement::Multi { kind } => self.spread_wide(kind, replica, offer.replicas),
        };
        self.place(job, places, offer.value);
    }

    /// Puts a job on the given places, which have room for it.
    pub(super) fn place(&mut self, job: usize, places: Vec<(usize, u32)>, value: f64) {
        let multi = places.len() > 1 && self.problem.one_multi_node_job_per_node;
        let replica = self.problem.jobs[job].replica;
        for &(node, replicas) in &places {
            self.update(node, |packing| {
                packing.free[node].take(replica, replicas);
                packing.tenants[node].push(job as u32);
                if multi {
                    packing.multi_host[node] = job as u32;
                }
            });
        }
        self.places[job] = places;
        self.values[job] = value;
    }

    /// The kind of GPU that places are on.
    pub(super) fn kind_of(&self, places: &[(usize, u32)]) -> Option<usize> {
        places.first().map(|&(node, _)| self.problem.nodes[node].kind)
    }

    /// Takes everything from a job.
    pub(super) fn remove(&mut self, job: usize) -> (Vec<(usize, u32)>, f64) {
        let places = std::mem::take(&mut self.places[job]);
        let replica = self.problem.jobs[job].replica;
        for &(node, replicas) in &places {
            self.update(node, |packing| {
                packing.free[node].give_back(replica, replicas);
                let tenants = &mut packing.tenants[node];
                let at = tenants.iter().position(|&tenant| tenant == job as u32).expect("it was placed there");
                tenants.swap_remove(at);
                if packing.multi_host[node] == job as u32 {
                    packing.multi_host[node] = NOBODY;
                }
            });
        }
        (places, std::mem::replace(&mut self.values[job], self.problem.jobs[job].none))
    }

    pub(super) fn fits(&self, job: usize, places: &[(usize, u32)]) -> bool {
        let multi = places.len() > 1;
        let replica = self.problem.jobs[job].replica;
        places.iter().all(|&(node, replicas)| {
            self.free[node].has_room(replica, replicas) && !(multi && self.multi_host[node] != NOBODY)
        })
    }

    /// The most replicas of a kind that fit on one node.
    fn room_on_one(&self, kind: usize, replica: ReplicaResources) -> u32 {
        if replica.fits_any_gpu() {
            return self.buckets.largest_free(kind);
        }
        self.rooms(kind, replica).map(|(_, room)| room).max().unwrap_or(0)
    }

    /// The most replicas of a kind that fit on nodes that may take a multi-node job; 0 if only one of them has room.
    fn room_on_several(&self, kind: usize, replica: ReplicaResources) -> u32 {
        let (total, largest) = if replica.fits_any_gpu() {
            (self.multi_free[kind], self.buckets.largest_free_without_multi(kind))
        } else {
            let rooms = self.rooms(kind, replica).filter(|&(node, _)| self.multi_host[node] == NOBODY);
            rooms.fold((0, 0), |(total, largest): (u32, u32), (_, room)| (total + room, largest.max(room)))
        };
        if total > largest { total } else { 0 }
    }

    /// Nodes of a kind and how many replicas fit there: for replicas that do not fit wherever a GPU is free.
    fn rooms(&self, kind: usize, replica: ReplicaResources) -> impl Iterator<Item = (usize, u32)> + '_ {
        let of_kind = self.problem.nodes.iter().enumerate().filter(move |(_, node)| node.kind == kind);
        of_kind.map(move |(node, _)| (node, self.free[node].fits(replica))).filter(|&(_, room)| room > 0)
    }

    /// The node with the fewest free GPUs that has room, one that hosts a multi-node job before one that could still
    /// take it.
    fn best_fit(&self, kind: usize, replica: ReplicaResources, replicas: u32) -> usize {
        if replica.fits_any_gpu() {
            return self.buckets.best_fit(kind, replicas);
        }
        let fitting = self.rooms(kind, replica).filter(|&(_, room)| room >= replicas).map(|(node, _)| node);
        fitting
            .min_by_key(|&node| (self.free[node].gpus, self.multi_host[node] == NOBODY, node))
            .expect("an offer is only made where a node has room")
    }

    /// Like [`Self::spread`], for replicas that do not fit wherever a GPU is free.
    fn spread_wide(&self, kind: usize, replica: ReplicaResources, replicas: u32) -> Vec<(usize, u32)> {
        let rooms = self.rooms(kind, replica).filter(|&(node, _)| self.multi_host[node] == NOBODY);
        let mut rooms: Vec<(usize, u32)> = rooms.collect();
        rooms.sort_by_key(|&(node, room)| (std::cmp::Reverse(room), node));
        let mut places: Vec<(usize, u32)> = Vec::new();
        let mut missing = replicas;
        for (idx, &(node, room)) in rooms.iter().enumerate() {
            if missing == 0 {
                break;
            }
            // The last of those with just enough room, once there are two nodes.
            let tightest = rooms[idx..].iter().rev().find(|&&(_, room)| !places.is_empty() && room >= missing);
            if let Some(&(node, _)) = tightest {
                places.push((node, missing));
                break;
            }
            let taken = if places.is_empty() { room.min(missing - 1) } else { room.min(missing) };
            places.push((node, taken));
            missing -= taken;
        }
        places
    }

    fn update(&mut self, node: usize, change: impl FnOnce(&mut Self)) {
        let kind = self.problem.nodes[node].kind;
        let before = (self.free[node].gpus, self.multi_host[node] != NOBODY);
        change(self);
        let after = (self.free[node].gpus, self.multi_host[node] != NOBODY);
        self.free_gpus[kind] = self.free_gpus[kind] + after.0 - before.0;
        self.free_total = self.free_total + after.0 - before.0;
        if !before.1 {
            self.multi_free[kind] -= before.0;
        }
        if !after.1 {
            self.multi_free[kind] += after.0;
        }
        self.buckets.remove(node, kind, before);
        self.buckets.insert(node, kind, after);
    }

    /// Two nodes or more: the emptiest first, and what is left over where it fits best.
    fn spread(&self, kind: usize, replicas: u32) -> Vec<(usize, u32)> {
        let mut places = Vec::new();
        let mut missing = replicas;
        for free in (1..=self.buckets.gpus_max).rev() {
            for node in self.buckets.iter(kind, free, false) {
                if missing == 0 {
                    return places;
                }
                if missing < free
                    && !places.is_empty()
                    && let Some(node) = self.buckets.tightest(kind, missing, free, &places)
                {
                    places.push((node, missing));
                    return places;
                }
                let taken = if places.is_empty() { free.min(missing - 1) } else { free.min(missing) };
                places.push((node, taken));
                missing -= taken;
            }
        }
        places
    }
}

/// The first of the sizes, from one replica on, that leaves most after paying, and what it leaves; nothing if that is no
/// more than `least`.
fn best_size(values: &[f64], price: f64, gpus_each: f64, least: f64) -> Option<(usize, f64)> {
    let (mut best, mut gpus) = ((None, least), 0.0);
    for (idx, value) in values.iter().enumerate() {
        gpus += gpus_each;
        let net = value - price * gpus;
        if net > best.1 {
            best = (Some(idx), net);
        }
    }
    best.0.map(|idx| (idx, best.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_sizes_that_leave_as_much_the_smallest_is_best_and_none_if_nothing_is_left() {
        let values = [f64::NEG_INFINITY, 5.0, 6.0, 7.0];
        assert_eq!(best_size(&values, 0.0, 2.0, 1.0), Some((3, 7.0)));
        assert_eq!(best_size(&values, 0.5, 2.0, 1.0), Some((1, 3.0)));
        assert_eq!(best_size(&values, 0.5, 2.0, 3.0), None);
        assert_eq!(best_size(&[f64::NEG_INFINITY], 0.0, 1.0, f64::NEG_INFINITY), None);
    }
}
