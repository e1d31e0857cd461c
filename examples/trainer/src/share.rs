use std::ops::Range;

use pollux_agent::Tuning;
use serde::{Deserialize, Serialize};

/// How far the training is: the next sample is number `cursor` in the order of `epoch`. All ranks move it together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Position {
    pub(crate) epoch: u32,
    pub(crate) cursor: u32,
}

/// How a step's samples are dealt out: micro-batch by micro-batch, in each of them rank by rank. The last step of an
/// epoch takes what is left, so that some shares are smaller or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deal {
    pub(crate) cursor: u32,
    /// Samples of the epoch.
    pub(crate) end: u32,
    pub(crate) world_size: u32,
    pub(crate) tuning: Tuning,
}

impl Deal {
    /// Samples of a step that is not cut short.
    pub(crate) fn batch_size(&self) -> u64 {
        let Tuning { local_batch, accumulation_steps } = self.tuning;
        u64::from(self.world_size) * u64::from(local_batch) * (u64::from(accumulation_steps) + 1)
    }

    /// Samples of this step.
    pub(crate) fn samples(&self) -> u32 {
        let left = self.end - self.cursor;
        u32::try_from(self.batch_size()).map_or(left, |batch_size| left.min(batch_size))
    }

    /// Whether the end of the epoch cuts this step short.
    pub(crate) fn is_cut(&self) -> bool {
        u64::from(self.samples()) < self.batch_size()
    }

    /// The places in the order that a rank works on, one range a micro-batch.
    pub(crate) fn of_rank(&self, rank: u32) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self { cursor, world_size, .. } = *self;
        let local_batch = u64::from(self.tuning.local_batch);
        let end = u64::from(cursor) + u64::from(self.samples());
        (0..=u64::from(self.tuning.accumulation_steps))
            .map(move |micro_batch| {
                let start = u64::from(cursor) + (micro_batch * u64::from(world_size) + u64::from(rank)) * local_batch;
                start.min(end) as usize..(start + local_batch).min(end) as usize
            })
            .filter(|range| !range.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_of_an_epoch_is_dealt_once_whatever_the_group_and_batch() {
        let end = 1000;
        let mut cursor = 0;
        let mut seen = vec![0; end as usize];
        let shapes = [(2, 8, 0), (4, 8, 3), (1, 64, 1), (3, 7, 2), (5, 1, 0), (8, 32, 3)];
        for (world_size, local_batch, accumulation_steps) in shapes.into_iter().cycle() {
            let deal = Deal { cursor, end, world_size, tuning: Tuning { local_batch, accumulation_steps } };
            for rank in 0..world_size {
                for range in deal.of_rank(rank) {
                    assert!(range.len() <= local_batch as usize);
                    range.for_each(|place| seen[place] += 1);
                }
            }
            assert_eq!(deal.is_cut(), deal.batch_size() > u64::from(end - cursor));
            cursor += deal.samples();
            if cursor == end {
                break;
            }
        }
        assert_eq!(seen, vec![1; end as usize]);
    }

    #[test]
    fn a_batch_beyond_every_bound_is_what_is_left() {
        let tuning = Tuning { local_batch: u32::MAX, accumulation_steps: 3 };
        let deal = Deal { cursor: 90, end: 100, world_size: 4, tuning };
        assert_eq!((deal.samples(), deal.is_cut()), (10, true));
        assert_eq!((deal.of_rank(0).next(), deal.of_rank(0).count()), (Some(90..100), 1));
        assert_eq!(deal.of_rank(1).count(), 0);
    }
}
