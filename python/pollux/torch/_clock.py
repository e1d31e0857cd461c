"""How long a step takes, and how much of it the ranks wait for each other's gradients.

On a processor a mark is the time. A GPU runs behind the program that feeds it, so there a mark is an event of its own,
which is read once the GPU is through with it: nobody waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from pollux._elastic.brain import Times

T = TypeVar("T")


class Mark(Protocol):
    """A moment."""

    def is_past(self) -> bool:
        """Whether its time can be read without waiting."""

    def seconds_since(self, earlier: Mark) -> float:
        """From another mark of the same kind to this one; both are past."""


class HostMark:
    """Now, on a processor."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def is_past(self) -> bool:
        """Always."""
        return True

    def seconds_since(self, earlier: Mark) -> float:
        """From another one to this."""
        assert isinstance(earlier, HostMark)
        return self._at - earlier._at


class GpuMark:
    """When the current stream of the GPU gets to what it is told next."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def is_past(self) -> bool:
        """Whether the GPU is there."""
        return bool(self._event.query())

    def seconds_since(self, earlier: Mark) -> float:
        """As the GPU counts it."""
        assert isinstance(earlier, GpuMark)
        return float(earlier._event.elapsed_time(self._event)) / 1000.0


def marks_of(device: torch.device) -> type[GpuMark] | type[HostMark]:
    """What tells the time as a device counts it."""
    return GpuMark if device.type == "cuda" else HostMark


class _Marks(NamedTuple):
    begun: Mark
    ended: Mark
    waits: list[tuple[Mark, Mark]]
    left_out_s: float

    def times(self) -> Times:
        total = max(self.ended.seconds_since(self.begun) - self.left_out_s, 0.0)
        sync = sum(max(synced.seconds_since(computed), 0.0) for computed, synced in self.waits)
        sync = min(sync, total)
        return Times(total - sync, sync)


class StepClock(Generic[T]):
    """Measures steps. A step on a GPU is told of when the GPU is through with it, which may be some steps later."""

    def __init__(self) -> None:
        self._mark: type[GpuMark] | type[HostMark] = HostMark
        self._waiting: deque[tuple[T, _Marks]] = deque()
        self._begun: Mark | None = None
        self._computed: Mark | None = None
        self._waits: list[tuple[Mark, Mark]] = []
        """One for each backward pass that had gradients of others to wait for."""
        self._left_out_s = 0.0
        self._ended: Mark | None = None

    def use(self, device: torch.device) -> None:
        """Steps run there from now on."""
        self._mark = marks_of(device)
        self.restart()

    def restart(self) -> None:
        """Another group trains: what is not known yet of steps before is of no use."""
        self._waiting.clear()
        self.forget()

    def forget(self) -> None:
        """The next step follows a pause."""
        self._ended = None

    def begin(self) -> None:
        """The first micro-batch of a step is here."""
        self._begun = self._mark()
        self._computed, self._waits, self._left_out_s = None, [], 0.0

    def leave_out(self, seconds: float) -> None:
        """So much of the step at hand was not training."""
        self._left_out_s += seconds

    def computed(self) -> None:
        """This rank has its own gradients; of several models, those of the first."""
        if self._computed is None:
            self._computed = self._mark()

    def forget_computed(self) -> None:
        """It has to compute more of them."""
        self._computed = None

    def synced(self) -> Mark:
        """The mean of all gradients is there: when."""
        now = self._mark()
        if self._computed is not None:
            self._waits.append((self._computed, now))
            self._computed = None
        return now

    def end(self, step: T) -> None:
        """The loop is done with a step. Fetching its batch counts, unless there was a pause before."""
        assert self._begun is not None
        ended = self._mark()
        self._waiting.append((step, _Marks(self._ended or self._begun, ended, self._waits, self._left_out_s)))
        self._ended = ended

    def known(self) -> Iterator[tuple[T, Times]]:
        """Steps whose times are known by now, each of them once."""
        while self._waiting and self._waiting[0][1].ended.is_past():
            step, marks = self._waiting.popleft()
            yield step, marks.times()


class CostMeter:
    """What some of the work costs, on the device that does it."""

    def __init__(self) -> None:
        self._spans: deque[tuple[Mark, Mark]] = deque()

    @contextmanager
    def span(self, device: torch.device) -> Iterator[None]:
        """The work within counts."""
        mark = marks_of(device)
        begun = mark()
        yield
        self._spans.append((begun, mark()))

    def take_s(self) -> float:
        """What is known of it by now, since it was asked last."""
        cost_s = 0.0
        while self._spans and self._spans[0][1].is_past():
            begun, ended = self._spans.popleft()
            cost_s += ended.seconds_since(begun)
        return cost_s
