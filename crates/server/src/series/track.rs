use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Points of a job's life at most; one that is over keeps a quarter.
const POINTS_MAX: usize = 480;

/// Something that was so at some time.
pub(super) trait Moment {
    fn at_ms(&self) -> u64;

    /// Whether it is told however soon it comes after the one before.
    fn is_turn(&self, before: &Self) -> bool;
}

/// The last moments, one per step: of several in a step the newest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ring<M> {
    step_s: u64,
    length: usize,
    moments: VecDeque<M>,
}

impl<M: Moment> Ring<M> {
    pub(super) fn new(step_s: u64, length: usize) -> Self {
        Self { step_s, length, moments: VecDeque::new() }
    }

    pub(super) const fn step_s(&self) -> u64 {
        self.step_s
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }

    pub(super) const fn span_s(&self) -> u64 {
        self.step_s * self.length as u64
    }

    pub(super) fn last(&self) -> Option<&M> {
        self.moments.back()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &M> {
        self.moments.iter()
    }

    pub(super) fn push(&mut self, moment: M) {
        let step = |moment: &M| moment.at_ms() / (self.step_s * 1_000);
        if self.moments.back().is_some_and(|last| step(last) == step(&moment)) {
            self.moments.pop_back();
        } else if self.moments.len() == self.length {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
    }
}

/// A whole life, however long: when there are too many points every other one goes, and later ones come less often.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Track<M> {
    gap_ms: u64,
    points: Vec<M>,
}

impl<M: Moment> Track<M> {
    pub(super) fn starting_with(moment: M) -> Self {
        Self { gap_ms: 0, points: vec![moment] }
    }

    pub(super) fn last(&self) -> Option<&M> {
        self.points.last()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &M> {
        self.points.iter()
    }

    pub(super) fn push(&mut self, moment: M) {
        let is_soon = |last: &M| moment.at_ms() < last.at_ms().saturating_add(self.gap_ms) && !moment.is_turn(last);
        if self.points.last().is_some_and(is_soon) {
            return;
        }
        self.points.push(moment);
        if self.points.len() > POINTS_MAX {
            self.halve();
        }
    }

    /// What is enough for a life that is over.
    pub(super) fn shorten(&mut self) {
        while self.points.len() > POINTS_MAX / 4 {
            self.halve();
        }
        self.points.shrink_to_fit();
    }

    fn halve(&mut self) {
        let span_ms = self.points.last().map_or(0, M::at_ms) - self.points.first().map_or(0, M::at_ms);
        self.gap_ms = span_ms / (POINTS_MAX as u64 / 2);
        let last = self.points.len() - 1;
        let mut idx = 0;
        self.points.retain(|_| {
            idx += 1;
            (idx - 1) % 2 == 0 || idx - 1 == last
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Moment for (u64, bool) {
        fn at_ms(&self) -> u64 {
            self.0
        }

        fn is_turn(&self, before: &Self) -> bool {
            self.1 != before.1
        }
    }

    #[test]
    fn a_long_life_is_told_from_end_to_end_in_few_points_and_turns_are_told_at_once() {
        let mut track = Track::starting_with((0, false));
        for at in 1..100_000_u64 {
            track.push((at, false));
        }
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&track.points.len()), "{}", track.points.len());
        let (first, last) = (track.points[0].0, track.last().unwrap().0);
        assert!(first == 0 && last > 99_000, "{first} to {last}");
        let before = track.points.len();
        track.push((100_000, true));
        track.push((100_001, true));
        assert_eq!(track.points.len(), before + 1);
        track.shorten();
        assert!(track.points.len() <= POINTS_MAX / 4 && track.last() == Some(&(100_000, true)));
    }
}
