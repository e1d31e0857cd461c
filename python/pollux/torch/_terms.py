"""What ranks tell each other at a check-in, as rows of numbers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from ._deal import Tuning, part
from ._errors import UsageError

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
    own_sqr: tuple[float, ...]
    is_whole: bool
    """Whether it had its share in all steps that were measured."""
    is_complete: bool
    """Whether the newcomers of that generation are at its door."""

    def values(self) -> list[float]:
        """As numbers."""
        own_sqr = [*self.own_sqr, *[0.0] * (NORM_GROUPS - len(self.own_sqr))]
        facts = (self.heard, self.wish, self.steps, self.updates, self.is_whole, self.is_complete)
        return [*map(float, facts), *own_sqr]

    @classmethod
    def of(cls, values: Sequence[float]) -> Row:
        """From numbers."""
        facts, own_sqr = values[:-NORM_GROUPS], values[-NORM_GROUPS:]
        heard, wish, steps, updates, is_whole, is_complete = map(int, facts)
        return cls(heard, wish, steps, updates, tuple(own_sqr[:steps]), bool(is_whole), bool(is_complete))


def check_updates(rows: Sequence[Row]) -> None:
    """Models that have made other steps are other models, and nobody would notice."""
    counts = [row.updates for row in rows]
    if min(counts) != max(counts):
        fewest = counts.index(min(counts))
        raise UsageError(
            f"rank {fewest} has made {counts[fewest]} steps where others have made {max(counts)}; expected is that all "
            "processes skip a batch or none: decide it from a value that all have, such as the all-reduced loss"
        )


class Action(enum.Enum):
    """How everybody goes on."""

    TRAIN = 0
    SHRINK = 1
    """Without those who are not in the next generation."""
    GROW = 2
    """With those who have come."""
    STOP = 3
    CUT = 4
    """A process leaves, and the group ends with it."""
    DIVERGED = 5


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
