"""What ranks tell each other at a check-in."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from .deal import Tuning


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

    @classmethod
    def of(cls, values: dict[str, Any]) -> Terms:
        """As they were told."""
        return cls(**{**values, "tuning": Tuning(**values["tuning"])})


@dataclass(frozen=True)
class Row:
    """What one rank has to say."""

    heard: int
    """Newest generation it knows of, 0 if it is the one that trains."""
    wish: int
    """0 to train, 1 if all are to stop, 2 if it has to leave."""
    updates: int
    """Steps that it has made since the last check-in."""
    own_sqr: list[float]
    """Squared norms of its own gradients, of the steps that were measured."""
    is_complete: bool
    """Whether the newcomers of that generation have connected to it."""


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

    def told(self) -> dict[str, Any]:
        """As others hear it."""
        return {**asdict(self), "action": self.action.value}

    @classmethod
    def of(cls, told: dict[str, Any]) -> Decision:
        """As it was told."""
        return cls(Action(told["action"]), told["generation"], told["saves"], Terms.of(told["terms"]))
