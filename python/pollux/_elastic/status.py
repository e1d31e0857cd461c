"""How a training runs at the moment, for people."""

from __future__ import annotations

from dataclasses import dataclass


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
    noise_scale: float | None = None
    """Samples at which noise and signal of a gradient are equal, most likely; `None` until it was measured often
    enough, infinite where no signal was found. Known to rank 0."""
    efficiency: float | None = None
    """Progress per sample against the batch size that was asked for; known to rank 0."""
    samples_per_s: float | None = None
    """Known to rank 0."""
