"""A group whose members are copies of a model, each of them the processes that share it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

import torch
from pollux._elastic.group import Member

from ._group import FORMING, TIMEOUT, Broadcast, Group, gpu_of, guard, refuse_shared_gpu
from ._shards import Shards


class ShardedGroup(Group):
    """Every process talks to those of its own copy, and to those of its own shard in the other copies.

    The latter have groups of their own beside PyTorch's default one, which FSDP2 keeps while copies come and go.
    """

    def __init__(
        self,
        shards: Shards,
        rank: int,
        members: Sequence[Member],
        store: dist.Store | None,
        device: torch.device,
        forming: datetime.timedelta = FORMING,
    ):
        self._shards = shards
        self.shard, self.shards = shards.rank, shards.count
        self._across: Any = None
        """Between the same shards of all copies, on processors."""
        self._gpus: Any = None
        """The same between GPUs."""
        super().__init__(rank, members, store, device, forming)

    def _form(self, store: dist.Store | None, forming: datetime.timedelta) -> None:
        self._world = None
        if store is not None and self.world_size > 1:
            store = dist.PrefixStore(f"shard-{self.shard}", store)
            self._across = guard(dist.ProcessGroupGloo, store, self.rank, self.world_size, forming)
            if self.device.type == "cuda":
                guard(refuse_shared_gpu, store, self.rank, self.world_size, gpu_of(self.device))
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = TIMEOUT
                prefixed = dist.PrefixStore("gpus", store)
                self._gpus = guard(dist.ProcessGroupNCCL, prefixed, self.rank, self.world_size, options)
                self._gpus.eager_connect_single_device(self.device)
        self._connect(None, forming)
        if self._across is not None:
            self._across._set_default_timeout(TIMEOUT)

    def sum_of_shards(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes that share a copy of the model with this one."""
        total = torch.tensor(values, dtype=torch.float64)
        self._shards.sum(total)
        return total.tolist()

    def send_to_shards(self, text: str) -> str:
        """A text of the first process of a copy of the model, for those that share it."""
        return self._shards.send_all(text)

    def agree(self, word: str, limit_s: float) -> bool:
        """Whether all that share a copy with this one say the same within a while."""
        return self._shards.agree(word, limit_s)

    def start_sum(self, gradients: torch.Tensor) -> dist.Work:
        """Begins to add up gradients over all copies of the model."""
        work: dist.Work = (self._gpus if gradients.is_cuda else self._across).allreduce(gradients)
        return work

    def _gather(self, row: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.stack(self._shards.gather(row))
        if self._across is None:
            return list(rows)
        copies = [torch.empty_like(rows) for _ in self.members]
        guard(lambda: self._across.allgather([copies], [rows]).wait())
        return [row for rows in copies for row in rows]

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._shards.broadcast(tensor)
        if self._across is not None:
            guard(lambda: self._across.broadcast(tensor, 0).wait())

    def _sum(self, tensor: torch.Tensor) -> None:
        self._shards.sum(tensor)
        if self._across is not None:
            guard(lambda: self._across.allreduce(tensor).wait())

    @contextlib.contextmanager
    def _circle(self, ranks: list[int]) -> Iterator[Broadcast]:
        """The first copy hands every shard to the same shard of newcomers."""
        assert self._store is not None
        store = dist.PrefixStore(f"newcomers-{self.shard}", self._store)
        circle = guard(dist.ProcessGroupGloo, store, ranks.index(self.rank), len(ranks), TIMEOUT)
        yield lambda tensor: guard(lambda: circle.broadcast(tensor, 0).wait())

    def abort(self) -> None:
        """Gives up communication between GPUs of several copies. Whoever shares a copy with a lost process ends with
        it: whoever started them sees to that."""
        if self._gpus is not None:
            self._gpus.abort()

    def close(self) -> None:
        """Leaves the other copies; the processes of this one stay together."""
        if self._gpus is not None:
            self._gpus.shutdown()
        self._across = self._gpus = self._store = None
