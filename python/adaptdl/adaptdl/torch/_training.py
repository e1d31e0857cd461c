"""The one training of this process: what AdaptDL's names stand for in `pollux.torch`.

AdaptDL counts loops: the n-th loop over any loader within an epoch is the same loop in every process and after every
restart. Here that count is saved with the training, so that loops that are over are skipped.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pollux.torch as px
from pollux.torch._process import current
from pollux.torch._session import Session

from .. import _replay, checkpoint, collective

if TYPE_CHECKING:
    from .accumulator import AccumulatorState
    from .data import AdaptiveDataLoaderHelper
    from .parallel import AdaptiveDataParallel

Epoch = int | None
"""`None` outside of a loop over epochs."""


class Record:
    """How far the training is, in AdaptDL's count."""

    def __init__(self) -> None:
        self.finished_epochs = 0
        self.current_epoch: Epoch = None
        self.done: collections.Counter[Epoch] = collections.Counter()
        """Loops over loaders that are over, by epoch."""
        self.seen: collections.Counter[Epoch] = collections.Counter()
        """Those that this process has come to, be it to skip them."""
        self.left: tuple[Epoch, int] | None = None
        """A loop that the user has left before its end."""
        self.has_left_epoch = False
        """Whether the user has left the loop over epochs before its end."""
        self._resumed_epoch: Epoch = None

    def state_dict(self) -> dict[str, Any]:
        """With all states of the user's own."""
        return {
            "finished_epochs": self.finished_epochs,
            "current_epoch": self.current_epoch,
            "done": dict(self.done),
            "states": checkpoint.capture(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up what `state_dict` gave: from now on this process repeats, until it is where the training is."""
        self.finished_epochs = state["finished_epochs"]
        self._resumed_epoch = state["current_epoch"]
        self.done = collections.Counter(state["done"])
        checkpoint.restore(state["states"])
        _replay.is_replaying = True

    def begin_epoch(self) -> int:
        """The next epoch begins, or the one that was at hand goes on."""
        self.current_epoch = self.finished_epochs
        if self.current_epoch != self._resumed_epoch:
            _replay.is_replaying = False
        return self.current_epoch

    def end_epoch(self) -> None:
        """Its loops and accumulators will never be asked for again."""
        del self.done[self.current_epoch], self.seen[self.current_epoch]
        self.finished_epochs += 1
        self.current_epoch = self._resumed_epoch = None
        self.has_left_epoch = False


record = Record()
model: AdaptiveDataParallel | None = None
loaders: list[AdaptiveDataLoaderHelper] = []
"""In the order in which they were made."""
trained: AdaptiveDataLoaderHelper | None = None
"""The one that trains, once that is known."""
looping: AdaptiveDataLoaderHelper | None = None


class _Accumulated:
    """Sums of accumulators, which every rank has a part of, and states of the user's own."""

    def share(self) -> None:
        accumulators = _accumulators()
        totals: dict[str, dict[Any, Any]] = {}
        for parts in collective._gather({name: state.updates for name, state in accumulators.items()}):
            for name, updates in parts.items():
                add(totals.setdefault(name, {}), updates)
        for name, state in accumulators.items():
            add(state.results, totals[name])
            state.updates.clear()
        for other in checkpoint.states():
            if other not in accumulators.values():
                other.sync()

    def is_shared(self) -> bool:
        return not any(state.updates for state in _accumulators().values())


def _accumulators() -> dict[str, AccumulatorState]:
    from .accumulator import AccumulatorState

    return {state.name: state for state in checkpoint.states() if isinstance(state, AccumulatorState)}


def add(totals: dict[Any, Any], updates: dict[Any, Any]) -> None:
    """Adds up, by key."""
    for key, value in updates.items():
        totals[key] = totals[key] + value if key in totals else value


def adopt(session: Session) -> None:
    """This is the training from now on."""
    session.archive.shared.append(_Accumulated())
    px.checkpoint_state(adaptdl=record)


def session() -> Session:
    """The training of `pollux.torch`."""
    if model is None:
        raise RuntimeError("a loop before there is a model; make the AdaptiveDataParallel first")
    return current()


def begin() -> None:
    """A loop begins; with the first one this process meets the others and takes the training up where it is."""
    settle()
    training = session()
    if training.in_epochs:
        return
    training.begin_epochs(_trained().source)
    _replay.catches_up = _replay.is_replaying and training.membership.is_late


def finish() -> None:
    """The last epoch is over."""
    training = session()
    training.in_epochs = False
    training.finish()


def save() -> None:
    """Saves the training, once the step at hand is done."""
    settle()
    training = session()
    if training.in_loop:
        # Everybody checks in after this step, and rank 0 saves then.
        training.terms.check_every = 1
        training.archive.hasten()
        return
    training.archive.share_metrics()
    training.archive.save()


def _trained() -> AdaptiveDataLoaderHelper:
    """The loader that trains, or the likeliest one as long as none has: it has to be known before the first loop."""
    global trained
    if trained is None:
        if not loaders:
            raise RuntimeError("a loop over epochs before there is an AdaptiveDataLoader; make the loader first")
        trained = next((loader for loader in loaders if loader.is_shuffled), loaders[0])
    return trained


def loop(loader: AdaptiveDataLoaderHelper, batches: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """A loop over a loader, which gives nothing if it was over before this process came to it."""
    global looping
    if looping is not None:
        raise RuntimeError("overlapping dataloader iterations detected; end one loop before the next")
    begin()
    epoch = record.current_epoch
    number = record.seen[epoch]
    record.seen[epoch] += 1
    if number < record.done[epoch]:
        return
    _replay.is_replaying = _replay.catches_up = False
    looping = loader
    try:
        yield from batches()
    except GeneratorExit:
        record.left = epoch, number
        raise
    finally:
        looping = None
    _end_loop(epoch, number)


def settle() -> None:
    """The script goes on. Loops that it has left are over then; left by an error, which looks the same until here, they
    are not: what is saved because of it goes on in them."""
    from .accumulator import forget_finished

    if record.left is not None:
        _end_loop(*record.left)
        record.left = None
    if record.has_left_epoch:
        forget_finished(record.current_epoch)
        record.end_epoch()


def _end_loop(epoch: Epoch, number: int) -> None:
    record.done[epoch] = number + 1
    session().end_epoch()


_NO_BACKWARD = (
    "a loop over an AdaptiveDataLoader in training mode without a backward(); to evaluate, call model.eval() or "
    "torch.no_grad() before the loop"
)


def train(loader: AdaptiveDataLoaderHelper) -> Iterator[Any]:
    """Batches to the end of the epoch: one pass over the data, or as many as the progress of one takes."""
    training = session()
    until = loader.progress_max(record.current_epoch)
    while True:
        backwards, samples = training.backwards, training.position.samples
        try:
            yield from loader.source._epoch(training, until)
        except px.UsageError as error:
            if training.backwards > backwards:
                raise
            raise RuntimeError(_NO_BACKWARD) from error
        if training.position.samples > samples and training.backwards == backwards:
            raise RuntimeError(_NO_BACKWARD)
        if not training.position.is_ended:
            training.position.is_ended, training.is_training = True, False
            training.check_in(0, ends_epoch=True)
        if until == math.inf or training.terms.baseline_steps >= until:
            return
        training.end_epoch()
