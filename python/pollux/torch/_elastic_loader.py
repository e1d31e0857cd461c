"""Batches for any training loop and any launcher: each sample of an epoch once, whoever reads on from where.

What is saved is a place in the order of the epoch, which all processes share. How many they are, and how large a batch
is, only decides who gets what from there on.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from ._deal import Deal, step_count, step_samples
from ._errors import CheckpointError, UsageError
from ._likeness import other_order_of
from ._sources import source_of

_VERSION = 1


@dataclass(frozen=True)
class _Place:
    """Where the next batch begins. It is the same for all processes."""

    epoch: int = 0
    cursor: int = 0


@dataclass(frozen=True)
class _FixedSeat:
    """A seat in a group whose batch is the user's, and never accumulated."""

    rank: int
    world_size: int
    batch_size: int

    def deal(self, cursor: int, end: int, *, knows_end: bool = True) -> Deal:
        """The next step of the whole group."""
        samples = step_samples(self.batch_size, end - cursor, self.world_size)
        return Deal(cursor, samples, self.world_size, micro_batches=1, is_whole=samples == self.batch_size)

    def parts(self, step: Deal) -> list[range]:
        """Places of this process's samples in the order of the epoch."""
        return step.parts(self.rank)


class ElasticLoader:
    """Batches of a data set, dealt out to the processes of any launcher, from a place that can be saved.

    `batch_size` is that of all processes together. Rank and world size are those of torch.distributed, or of the
    environment, or given. All other options are those of `torch.utils.data.DataLoader`. What `state_dict` gives is the
    same in every process, and can be loaded with any number of processes and any batch size.

    >>> loader = px.ElasticLoader(dataset, batch_size=256, shuffle=True)
    >>> for epoch in range(loader.epoch, 90):
    ...     for inputs, targets in loader:
    ...         ...
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ):
        if not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size {batch_size!r}; expected whole numbers from 1")
        self.dataset = dataset
        self.batch_size = batch_size
        self._seed = seed
        self._source = source_of("px.ElasticLoader", dataset, sampler, shuffle, seed, options)
        self._samples = self._source.samples()
        self._place = _Place()
        self._weight: float | None = None
        self._group: tuple[int, int] | None = None
        self._loops = 0
        self._moves = 0
        self._comparisons = 0
        if rank is not None or world_size is not None:
            self.set_group(rank, world_size)
        likeness = (self._samples, batch_size)
        self._name = f"{likeness}/{_made[likeness]}"
        _made[likeness] += 1

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self._place.epoch

    @property
    def weight(self) -> float:
        """What to multiply the loss of the batch at hand with, if it is a mean over samples and gradients become the
        mean over processes: 1 but where processes got different numbers of samples."""
        if self._weight is None:
            raise UsageError("weight before there is a batch; ask for it inside of a loop over the loader")
        return self._weight

    def set_group(self, rank: int | None, world_size: int | None) -> None:
        """From the next batch on, this process is one of so many. All of them have to say so after the same batch."""
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} of world_size {world_size}; expected both, with 0 <= rank < world_size")
        self._group = (rank, world_size)
        self._moves += 1

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, unless the loader is in it already."""
        if epoch != self._place.epoch:
            self._place = _Place(epoch)
            self._moves += 1

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that the loop got, the same for every process."""
        return {"version": _VERSION, **asdict(self._place), "seed": self._seed, "samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind the batch after which a state was taken. In every process, at the same batch."""
        missing = {"version", "epoch", "cursor", "seed", "samples"} - state.keys()
        if missing or state["version"] != _VERSION:
            raise CheckpointError(f"not a state of a px.ElasticLoader: {state!r}; expected version {_VERSION}")
        for name, own in (("seed", self._seed), ("samples", self._samples)):
            if state[name] != own:
                raise CheckpointError(
                    f"the state is of a loader with {name} {state[name]}, this one has {own}; "
                    "its order would be another"
                )
        self._place = _Place(state["epoch"], state["cursor"])
        self._moves += 1

    def __len__(self) -> int:
        """Batches of a whole epoch for the group at hand."""
        if self._samples is None:
            raise TypeError("a stream has no length; nobody knows how many samples its epoch has")
        seat = self._seat()
        return step_count(seat.batch_size, self._samples, seat.world_size)

    def __iter__(self) -> Iterator[Any]:
        self._loops += 1
        return self._read(self._loops)

    def _read(self, loop: int) -> Iterator[Any]:
        """Batches from where the loader is to the end of the epoch."""
        moves = -1
        while moves != self._moves:
            seat, place, moves = self._seat(), self._place, self._moves
            self._compare_place(seat.world_size, place)
            for step, _, _, batch in self._source.batches(place.epoch, place.cursor, seat):
                if loop != self._loops:
                    raise UsageError("two loops over one px.ElasticLoader at a time; end one before the other begins")
                self._place = _Place(place.epoch, step.stop)
                self._weight = step.weight(seat.rank) * seat.world_size
                yield batch
                if moves != self._moves:
                    break
        self._place = _Place(self._place.epoch + 1)

    def _seat(self) -> _FixedSeat:
        return _FixedSeat(*self._seat_of(), self.batch_size)

    def _seat_of(self) -> tuple[int, int]:
        """Rank and world size: given, of torch.distributed, or of the environment."""
        if self._group is not None:
            return self._group
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        names = ("RANK", "WORLD_SIZE")
        found = [os.environ[name] for name in names if name in os.environ]
        if len(found) == 1:
            raise UsageError("one of RANK and WORLD_SIZE is set; expected both or neither")
        return (int(found[0]), int(found[1])) if found else (0, 1)

    def _compare_place(self, world_size: int, place: _Place) -> None:
        """Refuses to read on where another process does not. Nobody waits: the first to come says where it is."""
        if self._group is not None or world_size == 1 or not dist.is_initialized():
            return
        store = dist.distributed_c10d._get_default_store()
        self._comparisons += 1
        own = f"epoch {place.epoch}, sample {place.cursor}"
        order = str(self._source.order(place.epoch))
        told = store.compare_set(f"pollux/{self._name}/{self._comparisons}", "", f"{own}/{order}").decode()
        other, other_order = told.split("/")
        if other == own and other_order != order:
            raise UsageError(other_order_of("this process", "another"))
        if other != own:
            raise UsageError(
                f"this process is at {own}, another at {other}; load the same state in every process, and loop over "
                "the loader in all of them"
            )


_made: collections.Counter[tuple[int | None, int]] = collections.Counter()
