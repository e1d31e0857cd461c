"""Where batches come from: a data set that can be indexed, or a stream that can only be read on."""

from __future__ import annotations

import functools
import importlib
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils import data

import torch

from ._deal import Deal, Tuning, deal, rest_min, share_of
from ._errors import UsageError
from ._likeness import digest, digest_of_order
from ._state import random_states, restore_random_states


class Seat(Protocol):
    """All that decides which samples a process gets."""

    @property
    def rank(self) -> int:
        """The place of this process in its group."""

    @property
    def world_size(self) -> int:
        """Processes of the group."""

    @property
    def batch_size(self) -> int:
        """Samples of a whole step."""

    def deal(self, cursor: int, end: int, *, knows_end: bool = True) -> Deal:
        """The next step of the whole group; of a stream, `end` is only as far as was read."""

    def parts(self, step: Deal) -> list[range]:
        """Places of each micro-batch of this process in the order of the epoch."""


@dataclass(frozen=True)
class TunedSeat:
    """A seat in a group whose agent decides how its steps run. The processes that share one copy of the model have the
    samples of one rank between them."""

    rank: int
    world_size: int
    tuning: Tuning
    local_batch_max: int
    shards: int = 1
    before: int = 0
    """Samples of the epochs before."""

    @property
    def batch_size(self) -> int:
        """Samples of a whole step."""
        return self.tuning.batch_size(self.world_size // self.shards)

    def deal(self, cursor: int, end: int, *, knows_end: bool = True) -> Deal:
        """The next step of the whole group."""
        copies = self.world_size // self.shards
        return deal(cursor, end, copies, self.tuning, self.local_batch_max, self.shards, self.before, knows_end)

    def parts(self, step: Deal) -> list[range]:
        """Places of each micro-batch of this process in the order of the epoch."""
        copy, shard = divmod(self.rank, self.shards)
        return [share_of(span, self.shards, shard) for span in step.parts(copy)]


_NOT_OURS = {
    "batch_sampler": "batches are dealt by Pollux; give sampler= or shuffle=True",
    "drop_last": "every sample is used; leave it out",
}

Batches = Iterator[tuple[Deal, int, int, Any]]
"""Micro-batches of this process: the step each belongs to, its place among how many, and the data."""


class MapSource:
    """A data set with `len()` and indices."""

    def __init__(self, dataset: Any, sampler: Iterable[int] | None, shuffle: bool, seed: int, options: dict[str, Any]):
        self._dataset = dataset
        self._sampler = sampler
        self._shuffle = shuffle
        self._seed = seed
        self._order: Sequence[int] | torch.Tensor = ()
        self._epoch: int | None = None
        self._order_digest = 0
        self._batches = _IndexBatches()
        self._generator = _own_generator(options)
        if options.get("num_workers", 0) > 0:
            # What was fetched ahead is thrown away with every change of batch; the workers stay.
            options = {"persistent_workers": True, **apart(options)}
        self._loader = data.DataLoader(dataset, batch_sampler=self._batches, **options)

    def samples(self) -> int | None:
        """Samples of an epoch."""
        return len(self._sampler) if isinstance(self._sampler, Sized) else len(self._dataset)

    def left(self, epoch: int, cursor: int) -> int:
        """Samples of an epoch behind the cursor."""
        self._take_epoch(epoch)
        return len(self._order) - cursor

    def order(self, epoch: int) -> int:
        """What the order of an epoch is told from others by."""
        self._take_epoch(epoch)
        return self._order_digest

    def batches(self, epoch: int, cursor: int, seat: Seat) -> Batches:
        """What this process trains from `cursor` to the end of the epoch."""
        self._take_epoch(epoch)
        order, end = self._order, len(self._order)
        dealt: deque[tuple[Deal, int, int]] = deque()

        def indices() -> Iterator[list[int]]:
            at = cursor
            while at < end:
                step = seat.deal(at, end)
                parts = seat.parts(step)
                for idx, span in enumerate(parts):
                    dealt.append((step, idx, len(parts)))
                    chosen = order[span.start : span.stop]
                    yield chosen.tolist() if isinstance(chosen, torch.Tensor) else list(chosen)
                at = step.stop

        self._batches.make = indices
        self._generator.manual_seed(_pass_seed(self._seed, epoch, cursor, seat))
        for batch in self._loader:
            yield *dealt.popleft(), batch

    def _take_epoch(self, epoch: int) -> None:
        if self._epoch == epoch:
            return
        self._epoch = epoch
        if self._sampler is not None:
            self._order = self._sampled(epoch)
            self._order_digest = digest_of_order(self._order)
            return
        self._order_digest = digest(len(self._dataset), self._shuffle and self._seed)
        if self._shuffle:
            generator = torch.Generator().manual_seed(_mixed(self._seed, epoch))
            self._order = torch.randperm(len(self._dataset), generator=generator)
        else:
            self._order = range(len(self._dataset))

    def _sampled(self, epoch: int) -> Sequence[int]:
        """The sampler's order, which is the same on every rank and after every restart."""
        sampler: Any = self._sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with _seeded(_mixed(self._seed, epoch)):
            generator = getattr(sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(_mixed(self._seed, epoch))
            return list(sampler)


class StreamSource:
    """A data set that can only be read from its beginning. Every rank reads all of it and keeps its share."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None, seed: int, options: dict[str, Any]):
        if options.get("num_workers", 0) > 1:
            raise UsageError(
                f"num_workers={options['num_workers']} with an iterable dataset, which is read in order; "
                "expected 0 or 1"
            )
        self._dataset = dataset
        self._seed = seed
        self._generator = _own_generator(options)
        # A worker that stays would go on where it was, and not where the training is.
        options = {**apart(options), "persistent_workers": False}
        self._steps = _StreamSteps(dataset, collate or data.default_collate)
        self._loader = data.DataLoader(self._steps, batch_size=None, **options)

    def samples(self) -> int | None:
        """Samples of an epoch, where the stream knows them."""
        try:
            return len(self._dataset)
        except TypeError:
            return None

    def left(self, epoch: int, cursor: int) -> int:
        """Nobody knows how much is left: as much as anybody may need."""
        return 1 << 62

    def order(self, epoch: int) -> int:
        """Only the stream knows its order."""
        return 0

    def batches(self, epoch: int, cursor: int, seat: Seat) -> Batches:
        """What this process trains from `cursor` to the end of the stream."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        self._steps.cursor, self._steps.seat = cursor, seat
        self._generator.manual_seed(_pass_seed(self._seed, epoch, cursor, seat))
        yield from self._loader


def source_of(
    owner: str, dataset: Any, sampler: Iterable[int] | None, shuffle: bool, seed: int, options: dict[str, Any]
) -> MapSource | StreamSource:
    """The source that suits a data set, made with the options that the user gave to a loader."""
    for name, advice in _NOT_OURS.items():
        if options.pop(name, None):
            raise UsageError(f"{owner}({name}=...): {advice}")
    if isinstance(dataset, data.IterableDataset):
        if shuffle or sampler is not None:
            raise UsageError(
                "shuffle or sampler with an iterable dataset, which has an order of its own; leave them out"
            )
        return StreamSource(dataset, options.pop("collate_fn", None), seed, options)
    if isinstance(sampler, data.DistributedSampler):
        raise UsageError(
            f"sampler=DistributedSampler(...): {owner} deals samples out to processes itself; leave it out, and give "
            "shuffle=True for another order in every epoch"
        )
    if sampler is not None and shuffle:
        raise UsageError("both sampler and shuffle; give one of them")
    return MapSource(dataset, sampler, shuffle, seed, options)


class _IndexBatches(data.Sampler[list[int]]):
    """Indices of the micro-batches of one process, made anew for every pass."""

    def __init__(self) -> None:
        self.make: Callable[[], Iterator[list[int]]] = lambda: iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.make()


class _StreamSteps(data.IterableDataset[Any]):
    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]):
        self._dataset = dataset
        self._collate = collate
        self.cursor = 0
        self.seat: Seat | None = None

    def __iter__(self) -> Batches:
        seat = self.seat
        assert seat is not None
        stream = iter(self._dataset)
        at = self.cursor
        for _ in range(at):
            if next(stream, _END) is _END:
                return
        # With what a step leaves for the next one it is known whether this step is the last.
        ahead = seat.batch_size + rest_min(seat.world_size)
        window: list[Any] = []
        while True:
            while len(window) < ahead and (sample := next(stream, _END)) is not _END:
                window.append(sample)
            if not window:
                return
            step = seat.deal(at, at + len(window), knows_end=False)
            parts = seat.parts(step)
            for idx, span in enumerate(parts):
                yield step, idx, len(parts), self._collate(window[span.start - at : span.stop - at])
            del window[: step.samples]
            at = step.stop


def apart(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a loader whose workers do not hear what ends this process: a signal to all of its process group would
    end them first, and its last step would fail for want of data. They end when it does."""
    return {**options, "worker_init_fn": functools.partial(_leave_group, options.get("worker_init_fn"))}


def _leave_group(then: Callable[[int], None] | None, worker: int) -> None:
    os.setpgid(0, 0)
    if then is not None:
        then(worker)


_END = object()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Every generator that a sampler may draw from begins alike on all ranks; afterwards they go on as they were."""
    states = random_states()
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in states:
        importlib.import_module("numpy").random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        restore_random_states(states, rank=0)


def _own_generator(options: dict[str, Any]) -> torch.Generator:
    """What a loader draws the seeds of its workers from, once for every pass: from the global generator the model would
    get other numbers after a restart in the middle of an epoch."""
    generator = torch.Generator()
    options.setdefault("generator", generator)
    return generator


def _pass_seed(seed: int, epoch: int, cursor: int, seat: Seat) -> int:
    return _mixed(_mixed(_mixed(seed, epoch), cursor), seat.rank)


def _mixed(seed: int, epoch: int) -> int:
    """Seeds of neighbouring epochs that have nothing in common."""
    return (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + 1) % (1 << 63)
