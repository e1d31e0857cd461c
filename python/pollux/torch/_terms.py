"""What ranks tell each other at a check-in, as rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pollux._elastic.terms import Action

from ._deal import Tuning, part
from ._errors import UsageError
from ._gradients import Norms
from ._group import Group
from ._likeness import other_order_of

NORM_GROUPS = 16
"""What was measured between two check-ins is told as so many averages: how far they differ says how sure they are."""


def grouped(values: Sequence[float]) -> list[float]:
    """Averages over that many parts of what was measured, or over each value where there are fewer."""
    count = min(len(values), NORM_GROUPS)
    spans = (part(len(values), count, idx) for idx in range(count))
    return [sum(values[first : first + size]) / size for first, size in spans]


@dataclass
class Terms:
    """How all ranks train until the next check-in."""

    tuning: Tuning = Tuning(1, 0)
    learning_rate_factor: float = 1.0
    gain: float = 1.0
    """Steps of the user's batch that a step is worth."""
    baseline_steps: float = 0.0
    check_every: int = 1
    measure_every: int = 1
    local_batch_max: int = 1

    def values(self) -> list[float]:
        """As numbers."""
        tuning = self.tuning
        return [
            float(tuning.local_batch),
            float(tuning.accumulation_steps),
            self.learning_rate_factor,
            self.gain,
            self.baseline_steps,
            float(self.check_every),
            float(self.measure_every),
            float(self.local_batch_max),
        ]

    @classmethod
    def of(cls, values: Sequence[float]) -> Terms:
        """From numbers."""
        local_batch, accumulation_steps, factor, gain, baseline_steps, check, measure, local_batch_max = values
        tuning = Tuning(int(local_batch), int(accumulation_steps))
        return cls(tuning, factor, gain, baseline_steps, int(check), int(measure), int(local_batch_max))


@dataclass(frozen=True)
class Measured:
    """Squared norms of gradients since the last check-in, as averages over parts of it."""

    steps: int
    own_sqr: tuple[float, ...]
    mean_sqr: tuple[float, ...]

    @classmethod
    def of(cls, norms: Norms) -> Measured:
        """As they were measured."""
        return cls(len(norms.own_sqr), tuple(grouped(norms.own_sqr)), tuple(grouped(norms.mean_sqr)))

    def over_shards(self, group: Group) -> Measured:
        """Those of a whole copy of the model: the sums over its shards."""
        if group.shards == 1:
            return self
        padding = [0.0] * (NORM_GROUPS - len(self.own_sqr))
        sums = group.sum_of_shards([float(self.steps), *self.own_sqr, *padding, *self.mean_sqr, *padding])
        if sums[0] != self.steps * group.shards:
            raise UsageError(
                f"{self.steps} steps were measured here, and {sums[0]:.0f} by all {group.shards} processes that share "
                "this model; expected all to skip a batch, or none"
            )
        count = len(self.own_sqr)
        return Measured(self.steps, tuple(sums[1 : 1 + count]), tuple(sums[1 + NORM_GROUPS :][:count]))


@dataclass(frozen=True)
class Row:
    """What one rank has to say."""

    heard: int
    """Newest generation it knows of, 0 if it is the one that trains."""
    wish: int
    """0 to train, 1 if all are to stop, 2 if it has to leave."""
    steps: int
    """Whose gradients were measured."""
    updates: int
    """Of the optimiser."""
    order: int
    """What the order of its samples is told from others by."""
    settings: int
    """The same of the optimiser's settings."""
    own_sqr: tuple[float, ...]
    is_whole: bool
    """Whether it had its share in all steps that were measured."""
    is_complete: bool
    """Whether the newcomers of that generation are at its door."""

    def values(self) -> list[float]:
        """As numbers."""
        own_sqr = [*self.own_sqr, *[0.0] * (NORM_GROUPS - len(self.own_sqr))]
        told = (self.order, self.settings, self.is_whole, self.is_complete)
        facts = (self.heard, self.wish, self.steps, self.updates, *told)
        return [*map(float, facts), *own_sqr]

    @classmethod
    def of(cls, values: Sequence[float]) -> Row:
        """From numbers."""
        facts, own_sqr = values[:-NORM_GROUPS], values[-NORM_GROUPS:]
        heard, wish, steps, updates, order, settings, *flags = map(int, facts)
        is_whole, is_complete = map(bool, flags)
        return cls(heard, wish, steps, updates, order, settings, tuple(own_sqr[:steps]), is_whole, is_complete)

    @classmethod
    def of_copy(cls, rows: Sequence[Row]) -> Row:
        """What the processes say that share a copy of the model: the first of them hears of groups."""
        return replace(rows[0], wish=max(row.wish for row in rows), is_whole=all(row.is_whole for row in rows))


def check_alike(rows: Sequence[Row]) -> None:
    """Processes that use other samples or make other steps train other models, and nobody would notice."""
    for rank, row in enumerate(rows):
        if row.order != rows[0].order:
            raise UsageError(other_order_of(f"rank {rank}", "rank 0"))
        if row.settings != rows[0].settings:
            raise UsageError(
                f"the optimiser of rank {rank} has other settings than that of rank 0, such as the learning rate; "
                "decide them from a value that all have, such as px.Mean"
            )
    counts = [row.updates for row in rows]
    if min(counts) != max(counts):
        fewest = counts.index(min(counts))
        raise UsageError(
            f"rank {fewest} has made {counts[fewest]} steps where others have made {max(counts)}; expected all "
            "processes to skip a batch or none: decide it from a value that all have, such as the all-reduced loss"
        )


@dataclass(frozen=True)
class Decision:
    """What rank 0 makes of all rows."""

    action: Action = Action.TRAIN
    generation: int = 0
    saves: bool = False
    terms: Terms = field(default_factory=Terms)

    def values(self) -> list[float]:
        """As numbers."""
        return [float(self.action.value), float(self.generation), float(self.saves), *self.terms.values()]

    @classmethod
    def of(cls, values: Sequence[float]) -> Decision:
        """From numbers."""
        action, generation, saves, *terms = values
        return cls(Action(int(action)), int(generation), bool(saves), Terms.of(terms))
