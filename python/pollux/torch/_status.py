"""What `px.status` tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._session import Session


@dataclass(frozen=True)
class Status:
    """How the training runs at the moment."""

    epoch: int
    batch_size: int
    """Samples of a step, over all processes."""
    local_batch: int
    """Samples of a micro-batch on one GPU."""
    accumulation_steps: int
    """Micro-batches of a step before the last one."""
    world_size: int
    learning_rate_factor: float
    samples: int
    """Since the training began."""
    baseline_steps: float
    """Progress, in steps of the batch size that was asked for."""
    noise_scale: float | None
    """Samples at which noise and signal of a gradient are equal, most likely; `None` until it was measured often
    enough, infinite where no signal was found. Known to rank 0."""
    efficiency: float | None
    """Progress per sample against the batch size that was asked for; known to rank 0."""
    samples_per_s: float | None
    """Known to rank 0."""

    @classmethod
    def of(cls, session: Session) -> Status:
        """Of a training that has begun."""
        world_size, terms = session.joined().world_size, session.terms
        figures = session.brain.figures() if session.brain else {}
        return cls(
            epoch=session.position.epoch,
            batch_size=terms.tuning.batch_size(world_size),
            local_batch=terms.tuning.local_batch,
            accumulation_steps=terms.tuning.accumulation_steps,
            world_size=world_size,
            learning_rate_factor=terms.learning_rate_factor,
            samples=session.position.samples,
            baseline_steps=terms.baseline_steps,
            noise_scale=figures.get("noise_scale"),
            efficiency=figures.get("efficiency"),
            samples_per_s=figures.get("samples_per_s"),
        )
