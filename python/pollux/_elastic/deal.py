"""Who gets which samples of a step.

All ranks move one cursor through an epoch. A step takes as many samples as the batch has; what is left at the end and
would not give every rank two samples, which batch norms need, goes with the step before it. So each sample is used
once, whoever trains since when.
"""

from __future__ import annotations

from dataclasses import dataclass

SPLIT_EVERY, SPLIT_EVERY_LATER = 4, 32
"""A process that is alone runs one of so many steps in two halves: their gradients tell noise from signal."""
EARLY_STEPS = 128
"""For so many steps of its batch a training is young: little is known of its noise, and it changes fast."""


@dataclass(frozen=True)
class Tuning:
    """How a step runs: samples of a micro-batch on one rank, and micro-batches before the last one."""

    local_batch: int
    accumulation_steps: int

    def batch_size(self, world_size: int) -> int:
        """Samples of a whole step."""
        return world_size * self.local_batch * (self.accumulation_steps + 1)


@dataclass(frozen=True)
class Deal:
    """The samples of one step: where they begin in the order of the epoch, and how they are split."""

    start: int
    samples: int
    world_size: int
    micro_batches: int
    """Of rank 0, whose share is never the smallest."""
    is_whole: bool

    @property
    def stop(self) -> int:
        """Where the next step begins."""
        return self.start + self.samples

    @property
    def is_common(self) -> bool:
        """Whether there are too few samples to go round, so that every rank gets all of them."""
        return self.samples < self.world_size

    def share(self, rank: int) -> int:
        """Samples of one rank."""
        if self.is_common:
            return self.samples
        return part(self.samples, self.world_size, rank)[1]

    def parts(self, rank: int) -> list[range]:
        """Places, in the order of the epoch, of each micro-batch of one rank."""
        first, share = (0, self.samples) if self.is_common else part(self.samples, self.world_size, rank)
        count = min(self.micro_batches, share)
        spans = (part(share, count, idx) for idx in range(count))
        return [range(self.start + first + offset, self.start + first + offset + size) for offset, size in spans]

    def weight(self, rank: int) -> float:
        """What the sum of a rank's micro-batch gradients counts for in the mean over all samples."""
        share = self.share(rank)
        count = min(self.micro_batches, share)
        return 1 / (self.world_size * count) if self.is_common else share / (self.samples * count)

    def scale(self, rank: int) -> float:
        """What that sum is multiplied by before the mean over ranks is taken: 1 where all have as many samples, in one
        micro-batch each."""
        share = self.share(rank)
        count = min(self.micro_batches, share)
        return 1 / count if self.is_common else share * self.world_size / (self.samples * count)

    def emphasis(self, rank: int, idx: int) -> float:
        """What a micro-batch counts for against the mean one of its rank."""
        share = self.share(rank)
        count = min(self.micro_batches, share)
        return part(share, count, idx)[1] * count / share


def deal(
    cursor: int,
    end: int,
    world_size: int,
    tuning: Tuning,
    local_batch_max: int,
    shards: int = 1,
    before: int = 0,
    knows_end: bool = True,
) -> Deal:
    """The next step from `cursor` on, with so many samples of epochs `before`. What a rank gets may be split once more,
    over the shards of a model. Of a stream `end` is only as far as was read."""
    batch = tuning.batch_size(world_size)
    samples = step_samples(batch, end - cursor, world_size * shards)
    longest = samples if samples < world_size else -(-samples // world_size)
    micro_batches = tuning.accumulation_steps + 1
    if samples < batch or -(-longest // micro_batches) > local_batch_max:
        micro_batches = -(-longest // tuning.local_batch)
    if world_size == 1 and micro_batches == 1 and samples == batch >= 4 * shards:
        second = step_samples(batch, end - batch, shards) if knows_end else batch
        micro_batches += _is_split(before, cursor, batch, second)
    return Deal(cursor, samples, world_size, micro_batches, is_whole=samples == batch)


def _is_split(before: int, cursor: int, batch: int, second: int) -> bool:
    """Whether the whole step after so many samples runs in halves. It follows from what is saved alone, so that a
    training that is taken up goes on as it would have. The first step of an epoch leaves its turn to the second: a loop
    that is left after one batch has made a step. If that has too few samples to be whole, the first takes its turn."""
    if cursor > 0:
        return _is_turn(before + cursor, batch) or (cursor <= batch and _is_turn(before, batch))
    if second == batch:
        return False
    return _is_turn(before, batch) or (second > 0 and _is_turn(before + batch, batch))


def _is_turn(trained: int, batch: int) -> bool:
    steps = trained // batch
    return steps % (SPLIT_EVERY if steps < EARLY_STEPS else SPLIT_EVERY_LATER) == 0


def step_samples(batch: int, left: int, world_size: int) -> int:
    """Samples of the next step, with so many left of the epoch."""
    return left if left - batch < rest_min(world_size) else batch


def step_count(batch: int, samples: int, world_size: int) -> int:
    """Steps of an epoch of so many samples."""
    return max((samples - rest_min(world_size)) // batch, 0) + 1 if samples else 0


def rest_min(world_size: int) -> int:
    """Samples that a step leaves for another one, or none at all."""
    return 2 * world_size


def part(total: int, parts: int, idx: int) -> tuple[int, int]:
    """Begin and length of one of `parts` nearly equal parts."""
    size, longer = divmod(total, parts)
    return idx * size + min(idx, longer), size + (idx < longer)


def share_of(span: range, shards: int, shard: int) -> range:
    """The samples of a micro-batch that one of the shards of a model gets; all of them where there are too few."""
    if len(span) < shards:
        return span
    first, size = part(len(span), shards, shard)
    return span[first : first + size]


def shard_weight(span: range, shards: int, shard: int) -> float:
    """What its gradient counts for in the mean over the shards, which is 1 where all have as many samples."""
    return 1.0 if len(span) < shards else part(len(span), shards, shard)[1] * shards / len(span)
