"""The processes that share one copy of a model, each with a shard of it.

They are started together, stay together and end together; the training grows and shrinks by whole copies. Their group
is PyTorch's default one, so that FSDP2 finds it where it looks. It is made once, by `px.shard_mesh`.

    copy 0:  shard 0 ── shard 1      FSDP2: parameters gathered, gradients scattered, for as long as the processes live
                │          │
    copy 1:  shard 0 ── shard 1      Pollux: gradients of each shard summed over all copies, whose number changes
"""

from __future__ import annotations

import atexit
import datetime
import os
import time
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import torch

from ._device import device
from ._errors import LostError, UsageError
from ._group import (
    TIMEOUT,
    backend,
    gpu_of,
    guard,
    launched_store,
    prefer_loopback,
    refuse_foreign_group,
    refuse_shared_gpu,
)

RANK, COUNT, STORE = "POLLUX_SHARD_RANK", "POLLUX_SHARD_COUNT", "POLLUX_SHARD_STORE"
"""What `python -m pollux.replica` tells the processes that it starts."""
_GLANCE_S = 0.02


class Shards:
    """This process's place among those that share its copy of the model."""

    def __init__(self, rank: int, count: int, store: dist.Store):
        self.rank = rank
        self.count = count
        self._store = store
        self._said = self._agreements = 0
        place = device()
        if place.type == "cuda":
            torch.cuda.set_device(place)  # Otherwise the mesh would choose one by itself.
        is_on_gpu = place.type == "cuda" and count > 1
        if is_on_gpu:
            guard(refuse_shared_gpu, store, rank, count, gpu_of(place))
        guard(
            dist.init_process_group,
            backend(),
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=count,
            timeout=TIMEOUT,
            device_id=place if is_on_gpu else None,
        )
        self.world = dist.group.WORLD
        self.mesh: DeviceMesh = init_device_mesh(place.type, (count,), mesh_dim_names=("shard",))

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for its copy of the model."""
        return self.rank == 0

    def gather(self, row: torch.Tensor) -> list[torch.Tensor]:
        """What each has to say."""
        rows = [torch.empty_like(row) for _ in range(self.count)]
        guard(dist.all_gather, rows, row, group=self.world)
        return rows

    def broadcast(self, tensor: torch.Tensor) -> None:
        """The first one's, in the place of everybody's."""
        guard(dist.broadcast, tensor, src=0, group=self.world)

    def sum(self, tensor: torch.Tensor) -> None:
        """The sum over all, in the place of everybody's."""
        guard(dist.all_reduce, tensor, group=self.world)

    def send(self, text: str) -> None:
        """The first one's next word to the others."""
        self._store.set(f"word/{self._said}", text)
        self._said += 1

    def has_word(self) -> bool:
        """Whether the first one has said something new."""
        return bool(self._store.check([f"word/{self._said}"]))

    def hear(self) -> str:
        """The first one's next word."""
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while not self.has_word():
            if time.monotonic() > deadline:
                raise LostError("Timed out waiting for the first process of this copy of the model")
            time.sleep(_GLANCE_S)
        text = self._store.get(f"word/{self._said}").decode()
        self._said += 1
        return text

    def send_all(self, text: str) -> str:
        """A word of the first one, for all; every one of them is here."""
        if not self.is_first:
            return self.hear()
        self.send(text)
        return text

    def agree(self, word: str, limit_s: float) -> bool:
        """Whether all say the same within a while. Some may never come, and nothing waits for them."""
        self._agreements += 1
        keys = [f"agree/{self._agreements}/{word}/{rank}" for rank in range(self.count)]
        self._store.set(keys[self.rank], "1")
        try:
            self._store.wait(keys, datetime.timedelta(seconds=limit_s))
        except RuntimeError:
            return False
        return True


def local(tensor: Any) -> Any:
    """This process's shard of a tensor that several share; anything else as it is."""
    return getattr(tensor, "_local_tensor", tensor)


_current: Shards | None = None


def current_shards() -> Shards | None:
    """Those of this process, once there is a mesh."""
    return _current


def shard_mesh(size: int | None = None) -> DeviceMesh:
    """The mesh for `fully_shard`: the processes that hold one copy of the model between them.

    `size` is how many they are; otherwise those of a replica under a scheduler, those of a node under torchrun, and one
    alone. The training has as many copies as there are such groups of processes, and their number may change.

    >>> mesh = px.shard_mesh()
    >>> for block in model.blocks:
    ...     fully_shard(block, mesh=mesh)
    >>> fully_shard(model, mesh=mesh)
    """
    global _current
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UsageError(f"px.shard_mesh({size!r}); expected whole numbers from 1")
    if _current is None:
        refuse_foreign_group()
        _current = Shards(*_place(size))
        atexit.register(_leave)
    elif size not in (None, _current.count):
        raise UsageError(f"px.shard_mesh({size}) after one of {_current.count}; a process has one place in one mesh")
    return _current.mesh


def launched_place() -> tuple[int, int]:
    """Rank among the processes that were started with this one, and how many they are."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if COUNT not in os.environ:
        return rank, world_size
    # Ranks are those of replicas, and each of them has several processes.
    count = int(os.environ[COUNT])
    return rank * count + int(os.environ[RANK]), world_size * count


def _place(size: int | None) -> tuple[int, int, dist.Store]:
    """Rank and number of those who share a copy, and where they find each other."""
    if COUNT in os.environ:
        count = int(os.environ[COUNT])
        if size not in (None, count):
            raise UsageError(
                f"px.shard_mesh({size}) in a replica of {count} processes; give python -m pollux.replica "
                f"--processes {size}, and as many GPUs to the replica"
            )
        prefer_loopback("localhost")
        return int(os.environ[RANK]), count, dist.FileStore(os.environ[STORE], count)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if "POLLUX_JOB_ID" in os.environ:
        started = world_size if "TORCHELASTIC_RUN_ID" in os.environ else 1
        wanted = size or max(started, torch.cuda.device_count())
        if wanted > 1:
            raise UsageError(
                f"px.shard_mesh() of {wanted} processes in a replica that the scheduler has started as one; submit it "
                f"with --gpus {wanted} -- python -m pollux.replica train.py"
            )
        return 0, 1, dist.HashStore()
    if world_size == 1:
        if size not in (None, 1):
            raise UsageError(f"px.shard_mesh({size}) in one process; start {size} of them, with torchrun")
        return 0, 1, dist.HashStore()
    count = size or int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if world_size % count:
        raise UsageError(
            f"px.shard_mesh({count}) among {world_size} processes; expected sizes that divide them without rest"
        )
    copy, rank = divmod(int(os.environ["RANK"]), count)
    return rank, count, dist.PrefixStore(f"pollux-shards-{copy}", launched_store())


def _leave() -> None:
    if _current is not None and _current.world is dist.group.WORLD and dist.is_initialized():
        dist.destroy_process_group()
