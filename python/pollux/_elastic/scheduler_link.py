"""What a process hears of its scheduler, whatever framework it trains with."""

from __future__ import annotations

import functools

from pollux._native import Termination, Worker

from .assignment import DEFAULT_GPU_TYPE, Assignment, Conditions

STOPPED = 143
"""Exit code of a process that left as it was told to."""
RESTART = 75
"""Exit code of a process whose group is to be started again."""
FIRST_ANSWER_S = 60.0
"""A scheduler that was just killed is back within seconds."""


class SchedulerLink:
    """The scheduler, if there is one, and whether this process is to end."""

    def __init__(self, worker: Worker | None, replica: int) -> None:
        self.worker = worker
        self.replica = worker.replica if worker else replica
        """The number that this process has for life."""
        self.generation = worker.generation if worker else 0
        self._termination = _termination() if worker is None else None

    @property
    def is_terminated(self) -> bool:
        """Whether this process was asked to end."""
        return self.worker.terminated() if self.worker else bool(self._termination and self._termination.requested())

    def wish(self) -> int:
        """0 to train, 1 if all are to stop, 2 if this process must leave and nobody said why."""
        if self.worker is None:
            return 2 if self.is_terminated else 0
        return {"train": 0, "stop": 1, "leave": 2}[self.worker.orders()]

    def conditions(self) -> Conditions:
        """What the scheduler says of the training at the moment, besides who belongs to it."""
        heard = self.worker.assignment() if self.worker else None
        if heard is None:
            return Conditions()
        own = [item["gpu_type"] for item in heard["replicas"] if item["replica"] == self.replica]
        batch = heard["batch"]
        return Conditions(
            gpu_type=own[0] if own else DEFAULT_GPU_TYPE,
            adapts_batch=batch["mode"] != "fixed",
            batch_size=batch.get("batch_size"),
            shares_gpus=heard["shares_gpus"],
        )

    def can_follow(self, later: Assignment) -> bool:
        """Whether this process knows all it has to know to change over to a generation."""
        return later.rank_of(self.replica) in (0, None) or later.endpoint is not None


@functools.cache
def _termination() -> Termination:
    """Once for all trainings of a process."""
    return Termination.install()
