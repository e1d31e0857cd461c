"""How long a step takes, and how much of it the ranks wait for each other's gradients."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from ._gradients import GradientReader


@dataclass(frozen=True)
class Times:
    """Of one step."""

    compute_s: float
    """All of it but the wait."""
    sync_s: float
    """From the last gradient of this rank to the mean of all."""

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.sync_s


class StepClock:
    """Measures steps. On a GPU the wait is read from its own events one step later, so that nobody waits for it."""

    def __init__(self, device: torch.device):
        self._events = _Events() if device.type == "cuda" else None
        self._ended: float | None = None
        self._begun = 0.0
        self._fetch_s = 0.0

    def forget(self) -> None:
        """The next step follows a pause."""
        self._ended = None

    def begin(self) -> None:
        """The first micro-batch of a step is here."""
        now = time.perf_counter()
        self._fetch_s = now - self._ended if self._ended is not None else 0.0
        self._begun = now

    def end(self, reader: GradientReader) -> Times:
        """The loop is done with a step."""
        now = time.perf_counter()
        self._ended = now
        total = now - self._begun + self._fetch_s
        sync = 0.0
        if self._events is not None:
            sync = self._events.wait_s()
        elif reader.synced_at is not None and reader.computed_at is not None:
            sync = reader.synced_at - reader.computed_at
        sync = min(max(sync, 0.0), total)
        return Times(total - sync, sync)

    def leave_out(self, seconds: float) -> None:
        """So much of the step at hand was not training."""
        self._begun += seconds

    def computed(self) -> None:
        """This rank has its own gradients."""
        if self._events is not None:
            self._events.computed()

    def synced(self) -> None:
        """The mean of all gradients is there."""
        if self._events is not None:
            self._events.synced()


class _Events:
    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._open: Any = None
        self._last_s = 0.0

    def computed(self) -> None:
        self._open = torch.cuda.Event(enable_timing=True)
        self._open.record()

    def synced(self) -> None:
        if self._open is None:
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._pairs.append((self._open, event))
        self._open = None

    def wait_s(self) -> float:
        """Of the newest step that the GPU is through with."""
        while self._pairs and self._pairs[0][1].query():
            begun, ended = self._pairs.pop(0)
            self._last_s = begun.elapsed_time(ended) / 1000.0
        return self._last_s
