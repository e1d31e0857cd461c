"""Means over all ranks that survive restarts and resizes."""

from __future__ import annotations

from typing import Any

from ._errors import LostError, UsageError
from ._group import Group, Meeting


class Mean:
    """A weighted mean over the samples of all ranks.

    It goes on where it was after a restart, and loses nothing when the group changes.

    >>> accuracy = px.Mean("accuracy")
    >>> accuracy.update(correct, len(target))
    >>> accuracy.compute()      # on every rank, with the same result
    """

    def __init__(self, name: str):
        from ._process import current

        self.name = name
        self._shared = [0.0, 0.0]
        self._own = [0.0, 0.0]
        self._session = current()
        self._session.archive.add_metric(self)

    def update(self, total: Any, count: float = 1.0) -> None:
        """Adds a sum over `count` samples of this rank."""
        self._own[0] += float(total)
        self._own[1] += float(count)

    def compute(self) -> float:
        """The mean over all ranks so far, NaN where there is nothing. Every rank has to ask for it."""
        group = self._session.group
        if group is not None:
            try:
                group.meet(Meeting.MEAN)
            except LostError as error:
                if self._session.has_left:
                    raise UsageError(
                        "Mean.compute() after the loops, where another process has ended already; call it on every "
                        "rank, not under `if px.rank() == 0`"
                    ) from error
                raise
        share([self], group)
        return self._shared[0] / self._shared[1] if self._shared[1] else float("nan")

    def reset(self) -> None:
        """Begins anew, on every rank."""
        self._shared, self._own = [0.0, 0.0], [0.0, 0.0]


def share(metrics: list[Mean], group: Group | None) -> None:
    """Adds up what the ranks have; all of them know the sums then."""
    own = [value for metric in metrics for value in metric._own]
    sums = group.sum(own) if group else own
    for idx, metric in enumerate(metrics):
        metric._shared = [known + new for known, new in zip(metric._shared, sums[2 * idx : 2 * idx + 2])]
        metric._own = [0.0, 0.0]


def capture(metrics: list[Mean]) -> dict[str, list[float]]:
    """What all ranks know of."""
    return {metric.name: list(metric._shared) for metric in metrics}


def restore(metric: Mean, state: list[float]) -> None:
    """Takes up what was saved."""
    metric._shared = list(state)


def is_shared(metrics: list[Mean]) -> bool:
    """Whether no rank holds anything that the others do not know."""
    return all(metric._own == [0.0, 0.0] for metric in metrics)
