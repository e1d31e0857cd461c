//! The search for the best batch, exact over all integers.
//!
//! The cost of a choice is one over its goodput. What the search knows of it rests on the two promises of
//! [`ThroughputModel`](crate::ThroughputModel) alone:
//! - For a given number of micro-batches the cost is convex in one over the samples, because step times are convex and
//!   non-decreasing in the local batch.
//! - At given samples it does not fall with the number of micro-batches. So every choice of `fewest` micro-batches or
//!   more costs at least what its samples cost in `fewest` or, where these cannot hold them, in the fraction of a number
//!   that just can. This relaxed cost is convex in one over the samples, too, so a section finds its minimum: a bound of
//!   all those choices, and the best samples for `fewest`, or a sign that the largest local batch is best.
//!
//! Numbers of micro-batches go upwards, until a bound cannot win. They begin where more micro-batches of the largest
//! local batch stop to pay: up to there the relaxed cost falls, so fewer lose to it. Few numbers are tried, unless
//! nothing matters but which batch sizes have the right divisors. Then the search turns to the local batches as soon as
//! they are no more than the numbers tried; for each of them, the cost is convex in one over the number of
//! micro-batches, whatever the step times. The lesser factor of the samples is at most their root, which bounds the work.

use super::Goodput;
use crate::Shape;

/// A bound that promises to gain less than this is not worth a look.
const RELATIVE_TOLERANCE: f64 = 1e-12;
/// Two costs closer than this are the same: no more is left of the last bits of a few operations.
const ROUNDING: f64 = 1e-14;

pub(super) struct Search<'a> {
    goodput: &'a Goodput,
    shape: Shape,
    /// Samples per replica and step that the limits allow.
    samples_min: u64,
    samples_max: u64,
    local_min: u64,
    local_max: u64,
    /// Micro-batches that the limits allow; where a single replica needs two, all but those of its baseline batch.
    micro_batches_min: u64,
    micro_batches_max: u64,
    /// `K/M0`, from samples per replica to the batch scale.
    scale_per_sample: f64,
    signal_share: f64,
}

#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) local_batch: u64,
    pub(super) micro_batches: u64,
    cost: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(goodput: &'a Goodput, shape: Shape) -> Self {
        let limits = &goodput.limits;
        let replicas = u64::from(shape.replicas());
        let samples_min = u64::from(limits.batch_size_baseline()).div_ceil(replicas);
        let samples_max = u64::from(limits.batch_size_max()) / replicas;
        let (local_min, local_max) = (u64::from(limits.local_batch_min()), u64::from(limits.local_batch_max()));
        let fewest = if replicas == 1 { u64::from(limits.lone_replica().micro_batches_min()) } else { 1 };
        Self {
            goodput,
            shape,
            samples_min,
            samples_max,
            local_min,
            local_max,
            micro_batches_min: samples_min.div_ceil(local_max).max(fewest),
            micro_batches_max: samples_max / local_min,
            scale_per_sample: f64::from(shape.replicas()) / f64::from(limits.batch_size_baseline()),
            signal_share: goodput.noise.signal_share(),
        }
    }

    /// `None` where no batch keeps the limits.
    pub(super) fn run(&self) -> Option<Candidate> {
        let mut best = self.single_baseline();
        if self.samples_min > self.samples_max {
            return best;
        }
        let start = self.start();
        for (tried, micro_batches) in (0..).zip(start..=self.micro_batches_max) {
            // What takes more than one above `start` costs more the more it takes.
            let (samples, bound) = self.relaxed(micro_batches, micro_batches.max(start + 1));
            if best.is_some_and(|best| bound >= best.cost * (1.0 - RELATIVE_TOLERANCE)) {
                break;
            }
            let local_high = self.local_max.min(self.samples_max / micro_batches);
            if self.local_min + tried > local_high {
                (self.local_min..=local_high).for_each(|local_batch| self.visit(local_batch, micro_batches, &mut best));
                break;
            }
            let local_low = self.local_min.max(self.samples_min.div_ceil(micro_batches));
            if local_low <= local_high {
                let below = (samples / micro_batches).clamp(local_low, local_high);
                offer(self.candidate(below, micro_batches), &mut best);
                offer(self.candidate((below + 1).min(local_high), micro_batches), &mut best);
            }
        }
        best
    }

    /// On one replica the baseline batch may always run whole.
    fn single_baseline(&self) -> Option<Candidate> {
        let whole = self.shape.replicas() == 1 && (self.local_min..=self.local_max).contains(&self.samples_min);
        whole.then(|| self.candidate(self.samples_min, 1))
    }

    /// The number of micro-batches that is best with the largest local batch.
    fn start(&self) -> u64 {
        let most = self.samples_max / self.local_max;
        if most <= self.micro_batches_min {
            return self.micro_batches_min;
        }
        minimum(self.micro_batches_min, most, |micro_batches| self.candidate(self.local_max, micro_batches).cost).0
    }

    /// The best samples if they ran in `fewest` micro-batches or, where they must, a fraction more up to `most`; and what
    /// they cost.
    fn relaxed(&self, fewest: u64, most: u64) -> (u64, f64) {
        let low = self.samples_min.max(self.local_min * fewest);
        let high = self.samples_max.min(self.local_max * most);
        let held = self.local_max * fewest;
        minimum(low, high, |samples| {
            let micro_batches = if samples <= held { fewest as f64 } else { samples as f64 / self.local_max as f64 };
            self.cost(samples as f64, micro_batches)
        })
    }

    /// Tries a local batch with its best number of micro-batches from `fewest` on.
    fn visit(&self, local_batch: u64, fewest: u64, best: &mut Option<Candidate>) {
        let fewest = fewest.max(self.samples_min.div_ceil(local_batch));
        let most = self.samples_max / local_batch;
        if fewest <= most {
            let cost = |micro_batches| self.candidate(local_batch, micro_batches).cost;
            offer(self.candidate(local_batch, minimum(fewest, most, cost).0), best);
        }
    }

    fn candidate(&self, local_batch: u64, micro_batches: u64) -> Candidate {
        let cost = self.cost((local_batch * micro_batches) as f64, micro_batches as f64);
        Candidate { local_batch, micro_batches, cost }
    }

    /// The inverse of goodput up to a factor that is the same for every choice.
    fn cost(&self, samples: f64, micro_batches: f64) -> f64 {
        let step_s = self.goodput.throughput.step_s(self.shape, samples / micro_batches, micro_batches - 1.0);
        step_s * (1.0 + self.signal_share * (self.scale_per_sample * samples - 1.0)) / samples
    }
}

impl Candidate {
    /// Of equals the smallest batch is preferred, then the fewest micro-batches.
    const fn preference(&self) -> (u64, u64) {
        (self.local_batch * self.micro_batches, self.micro_batches)
    }
}

fn offer(candidate: Candidate, best: &mut Option<Candidate>) {
    let Some(current) = best else {
        *best = Some(candidate);
        return;
    };
    if is_lower(candidate.cost, current.cost) {
        *current = candidate;
    } else if !is_lower(current.cost, candidate.cost) && candidate.preference() < current.preference() {
        // The lower of the two costs stays, or many equals in a row could add up to a difference.
        *current = Candidate { cost: current.cost.min(candidate.cost), ..candidate };
    }
}

/// Whether a cost beats another by more than rounding. Plain `<` would let the last bit choose among equals, as all
/// accumulations are where nothing is synchronised and every sample counts in full.
fn is_lower(cost: f64, than: f64) -> bool {
    cost < than * (1.0 - ROUNDING)
}

/// Golden section over the integers `low..=high` of a function that falls, then rises; of equals the smallest.
fn minimum(mut low: u64, mut high: u64, f: impl Fn(u64) -> f64) -> (u64, f64) {
    let section = |low: u64, high: u64| ((high - low) as f64 * 0.381_966_011_250_105_1) as u64;
    let mut inner = low + section(low, high);
    let mut f_inner = f(inner);
    while high - low > 4 {
        let inner_is_left = inner - low <= high - inner;
        let other = if inner_is_left {
            (high - section(low, high)).max(inner + 1)
        } else {
            (low + section(low, high)).min(inner - 1)
        };
        let f_other = f(other);
        let (left, f_left, right, f_right) =
            if inner_is_left { (inner, f_inner, other, f_other) } else { (other, f_other, inner, f_inner) };
        if is_lower(f_right, f_left) {
            low = left + 1;
            (inner, f_inner) = (right, f_right);
        } else {
            high = right - 1;
            (inner, f_inner) = (left, f_left);
        }
    }
    let value = |at: u64| if at == inner { f_inner } else { f(at) };
    let mut best = (low, value(low));
    for at in low + 1..=high {
        let found = value(at);
        if is_lower(found, best.1) {
            best = (at, found);
        }
    }
    best
}
