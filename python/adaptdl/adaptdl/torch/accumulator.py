"""Sums over all processes that survive restarts and resizes."""

from __future__ import annotations

import collections
import copy
import pickle
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from .. import checkpoint
from . import _training


class Accumulator(MutableMapping[Any, Any]):
    """A dict of sums. Outside of `synchronized()` it only takes updates, `accumulator[key] += value`, and seems empty.

    Inside, on all processes at once, it is a plain dict of the sums over all of them. What it held is kept for the
    epoch, so that code that is run again after a restart sees it again.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._state = AccumulatorState(self, dict(*args, **kwargs))
        self._synchronizations: collections.Counter[_training.Epoch] = collections.Counter()
        self._open: dict[Any, Any] | None = None
        checkpoint.load_state(self._state)

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Adds up what all processes have. All of them have to come here."""
        if self._open is not None:
            yield self
            return
        _training.begin()
        state, epoch = self._state, _training.record.current_epoch
        state.forget_before(epoch)
        number = self._synchronizations[epoch]
        self._synchronizations[epoch] += 1
        history = state.history[epoch]
        if number < len(history):
            state.updates.clear()
            self._open = history[number]
        else:
            state.sync()
            if _training.looping is None:
                history.append(copy.deepcopy(state.results))
            self._open = state.results
        try:
            yield self
        finally:
            self._open = None

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Adds several values."""
        for key, value in dict(*args, **kwargs).items():
            self[key] += value

    def subtract(self, *args: Any, **kwargs: Any) -> None:
        """Subtracts several values."""
        for key, value in dict(*args, **kwargs).items():
            self[key] -= value

    def __iadd__(self, other: Any) -> Accumulator:
        self.update(other)
        return self

    def __isub__(self, other: Any) -> Accumulator:
        self.subtract(other)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self._open[key] if self._open is not None else _Update(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._open is not None:
            self._open[key] = value
            return
        if not isinstance(value, _Update):
            raise TypeError(
                f"a {type(value).__name__} set outside of synchronized(); expected accumulator[key] += value and -="
            )
        if value.owner is not self or value.key != key:
            raise ValueError(f"an update of {value.key!r} set as {key!r}; expected accumulator[key] += value and -=")
        _training.add(self._state.updates, {key: value.value})

    def __delitem__(self, key: Any) -> None:
        del self._seen()[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._seen()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._seen())

    def __len__(self) -> int:
        return len(self._seen())

    def __repr__(self) -> str:
        return repr(self._seen())

    def _seen(self) -> dict[Any, Any]:
        return {} if self._open is None else self._open


class _Update:
    """What stands between `accumulator[key]` and `+= value`."""

    def __init__(self, owner: Accumulator, key: Any):
        self.owner, self.key, self.value = owner, key, 0

    def __add__(self, value: Any) -> _Update:
        self.value = self.value + _value(value)
        return self

    def __sub__(self, value: Any) -> _Update:
        self.value = self.value - _value(value)
        return self


def _value(value: Any) -> Any:
    if isinstance(value, _Update):
        raise TypeError("a value of an accumulator, which is known inside of synchronized() only")
    return value


class AccumulatorState(checkpoint.State):
    """Named by the order in which accumulators are made within an epoch."""

    _made: collections.Counter[_training.Epoch] = collections.Counter()

    def __init__(self, owner: Accumulator, results: dict[Any, Any]):
        if _training.looping is not None:
            raise RuntimeError("an Accumulator made inside of a loop over a loader; make it before the loop")
        _training.settle()
        self.epoch = _training.record.current_epoch
        self.name = f"adaptdl-accumulator-epoch{self.epoch}-{self._made[self.epoch]}"
        super().__init__(self.name)
        self._made[self.epoch] += 1
        self._owner = weakref.ref(owner)
        self.history: collections.defaultdict[_training.Epoch, list[dict[Any, Any]]] = collections.defaultdict(list)
        self.results = results
        self.updates: dict[Any, Any] = {}

    @property
    def is_used(self) -> bool:
        """Whether anybody could still add to it."""
        return self._owner() is not None

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump((dict(self.history), self.results), fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        history, self.results = pickle.load(fileobj)
        self.history = collections.defaultdict(list, history)

    def sync(self) -> None:
        from .. import collective

        for updates in collective._gather(self.updates):
            _training.add(self.results, updates)
        self.updates.clear()

    def forget_before(self, epoch: _training.Epoch) -> None:
        """What epochs that are over held is never asked for again."""
        for known in list(self.history):
            if known is not None and epoch is not None and known < epoch:
                del self.history[known]


def forget_finished(epoch: _training.Epoch) -> None:
    """An epoch is over: accumulators that were made in it, and that nobody has kept, are done with."""
    for state in checkpoint.states():
        if isinstance(state, AccumulatorState) and state.epoch is not None and not state.is_used:
            checkpoint.forget(state)
    prefix = f"adaptdl-accumulator-epoch{epoch}-"
    checkpoint.forget_saved({name for name in checkpoint.waiting() if name.startswith(prefix)})
