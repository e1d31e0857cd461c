"""The loops that a training script writes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NoReturn

from pollux._elastic.brain import Limits

from ._errors import UsageError
from ._process import current
from ._session import Session
from ._sources import Batches, source_of


class DataLoader:
    """Batches of a data set, as large as they should be at the moment, dealt out to all processes.

    `batch_size` is that of the whole training, the one its learning rate was chosen for. It may grow up to
    `max_batch_size`; one GPU gets between `per_gpu[0]` and `per_gpu[1]` samples at a time. All other options are those
    of `torch.utils.data.DataLoader`. Within an epoch every sample is used once, however often batch and group change.

    >>> loader = px.DataLoader(dataset, batch_size=128, max_batch_size=4096, per_gpu=(16, 512), shuffle=True)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        max_batch_size: int | None = None,
        per_gpu: tuple[int, int] | None = None,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        seed: int = 0,
        **options: Any,
    ):
        self.dataset = dataset
        self.limits = _limits(batch_size, max_batch_size, per_gpu)
        self._source = source_of("px.DataLoader", dataset, sampler, shuffle, seed, options)
        self.epoch_samples = self._source.samples()
        if self.epoch_samples is not None and self.epoch_samples < batch_size:
            raise UsageError(
                f"a dataset of {self.epoch_samples} samples is smaller than batch_size={batch_size}; "
                f"expected a batch_size up to {self.epoch_samples}"
            )
        if self.epoch_samples is not None:
            self.limits = self.limits.within(self.epoch_samples)
        global _latest
        _latest = weakref.ref(self)

    def __len__(self) -> int:
        """Steps of `batch_size` samples in an epoch, which is what progress and schedules are counted in."""
        if self.epoch_samples is None:
            raise TypeError("a stream has no length; nobody knows how many samples its epoch has")
        return -(-self.epoch_samples // self.limits.batch_size)

    @property
    def sampler(self) -> NoReturn:
        """Refused: scripts for DDP tell it the epoch."""
        raise UsageError("the sampler of a px.DataLoader; leave set_epoch() out, epochs are told by px.epochs")

    def left(self, epoch: int, cursor: int) -> int:
        """Samples of an epoch behind the cursor; as many as anybody may need where nobody knows."""
        return self._source.left(epoch, cursor)

    def order(self, epoch: int) -> int:
        """What the order of an epoch is told from others by."""
        return self._source.order(epoch)

    def __iter__(self) -> Iterator[Any]:
        session = current()
        if not session.in_epochs:
            raise UsageError("a loop over px.DataLoader without epochs; write `for epoch in px.epochs(N)` around it")
        yield from self._epoch(session)

    def _epoch(self, session: Session, until: float = math.inf) -> Iterator[Any]:
        """Batches to the end of the epoch, or until so much progress is made."""
        if session.in_loop:
            raise UsageError("a loop over px.DataLoader within another; use torch.utils.data.DataLoader to evaluate")
        session.start(self)
        session.begin_epoch()
        session.in_loop = True
        backwards, has_batches = session.backwards, False
        try:
            if session.is_pressed:
                session.check_in(self.left(session.position.epoch, session.position.cursor))
            while not session.position.is_ended:
                # Every pass lasts until batch or group change.
                for step, idx, count, batch in self._deal(session):
                    session.begin_micro_batch(step, idx, count)
                    has_batches = True
                    yield batch
                    session.end_micro_batch(count)
                    if idx < count - 1:
                        continue
                    session.end_step(step)
                    if session.terms.baseline_steps >= until:
                        return
                    if not session.is_due():
                        continue
                    left = self.left(session.position.epoch, step.stop)
                    # After the last step of an epoch everybody checks in anyway.
                    if left > 0 and session.check_in(left):
                        break
                else:
                    if has_batches and session.backwards == backwards:
                        raise UsageError(
                            "a loop over px.DataLoader without a backward(), whose batches count as trained; use "
                            "torch.utils.data.DataLoader to evaluate"
                        )
                    session.position.is_ended, session.is_training = True, False
                    session.end_data()
                    session.check_in(0, ends_epoch=True)
        except GeneratorExit:
            # The user has left in the middle of a batch. The step is done or it is not.
            session.leave_step()
            raise
        finally:
            session.end_loop()

    def _deal(self, session: Session) -> Batches:
        """Micro-batches from where the training is."""
        position, seat = session.position, session.seat()
        return self._source.batches(position.epoch, position.cursor, seat)


def epochs(total: int) -> Generator[int, None, None]:
    """Numbers of the epochs that are still to be trained, from 0 to `total`.

    After a restart, and in a process that joins a training, it begins with the epoch that was at hand.

    >>> for epoch in px.epochs(90):
    ...     for batch in loader:
    ...         ...
    """
    session = current()
    session.begin_epochs(_newest(session))
    try:
        while session.position.epoch < total:
            yield session.position.epoch
            session.end_epoch()
    except GeneratorExit:
        session.break_off()
        raise
    finally:
        session.in_epochs = False
    session.finish()


def steps(total: float, loader: DataLoader) -> Iterator[Any]:
    """Batches until the training has made the progress of `total` steps of `batch_size` samples, for as many epochs as
    that takes.

    A step of a larger batch counts for more than one, by as much as it really helps.

    >>> for batch in px.steps(10_000, loader):
    ...     ...
    """
    session = current()
    session.begin_epochs(loader)
    session.progress_max = total
    try:
        while session.terms.baseline_steps < total:
            yield from loader._epoch(session, until=total)
            if session.position.is_ended:
                session.end_epoch()
    except GeneratorExit:
        session.break_off()
        raise
    finally:
        session.in_epochs, session.progress_max = False, math.inf
    session.finish()


_latest: weakref.ref[DataLoader] | None = None


def _newest(session: Session) -> DataLoader:
    """The loader that is about to be looped over: the state to take up must be known before its first epoch is."""
    loader: DataLoader | None = session.loader or (_latest() if _latest is not None else None)
    if loader is None:
        raise UsageError("px.epochs without a px.DataLoader; make the loader of the training with it, before the loop")
    return loader


def _limits(batch_size: int, max_batch_size: int | None, per_gpu: tuple[int, int] | None) -> Limits:
    """Checks bounds that the user gave."""
    most = batch_size if max_batch_size is None else max_batch_size
    if not (per_gpu is None or (isinstance(per_gpu, tuple | list) and len(per_gpu) == 2)):
        raise UsageError(f"per_gpu {per_gpu!r}; expected (smallest, largest)")
    low, high = (1, batch_size) if per_gpu is None else per_gpu
    for name, value in (("batch_size", batch_size), ("max_batch_size", most), ("per_gpu", low), ("per_gpu", high)):
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} {value!r}; expected whole numbers from 1")
    if most < batch_size:
        raise UsageError(f"max_batch_size {most} is below batch_size {batch_size}")
    if high < low:
        raise UsageError(f"per_gpu ({low}, {high}) ends below its beginning; expected (smallest, largest)")
    if low > most:
        raise UsageError(f"per_gpu begins at {low}, above max_batch_size {most}")
    return Limits(batch_size, most, low, high)
