"""What a framework and its user say of a training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .brain import Limits


class Content(Protocol):
    """What a framework keeps of a training: parameters, optimiser, whatever else a step changes."""

    def capture(self) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays by name, as of the last whole step."""

    def restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Puts back what was captured, here or in another process."""

    def share(self) -> None:
        """Gives rank 0 all that ranks count by themselves, before it saves, before a group changes and after an epoch.
        Every rank is in it at the same time."""

    def regroup(self, rank: int) -> None:
        """This process has a place in another group."""


@dataclass(frozen=True)
class Options:
    """What the user said."""

    limits: Limits
    samples: int
    shuffle: bool
    seed: int
    scaling: str | Callable[[Any], float]
    warmup_epochs: float
    settling_steps: int
    """So many steps are not measured: what gradients are compared by has yet to be learned."""
    checkpoint_dir: str | os.PathLike[str] | None
    checkpoint_every_s: float
