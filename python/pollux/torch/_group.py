"""The processes that train together, and the few words they exchange."""

from __future__ import annotations

import contextlib
import datetime
import enum
import functools
import io
import itertools
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

import torch
from pollux._elastic.group import Member

from ._errors import LostError, UsageError

TIMEOUT = datetime.timedelta(minutes=10)
"""What a step of another rank may take at most."""
FORMING = datetime.timedelta(seconds=30)
"""What a group may take to form once all of it has promised to come: whoever does not is dead."""


Broadcast = Callable[[torch.Tensor], None]
"""Sends a tensor to others, or puts what was sent into it."""


class Meeting(enum.Enum):
    """What all ranks have to do together."""

    EPOCH = "begins an epoch"
    CHECK_IN = "is between two steps"
    END = "ends the training"
    MEAN = "calls Mean.compute()"
    BARRIER = "calls px.barrier()"


class Group:
    """PyTorch's default process group, made for a list of members."""

    shard, shards = 0, 1
    """Of the model, where the processes of a member share one copy of it."""

    def __init__(
        self,
        rank: int,
        members: Sequence[Member],
        store: dist.Store | None,
        device: torch.device,
        forming: datetime.timedelta = FORMING,
    ):
        self.rank = rank
        self.device = device
        self.members = list(members)
        self.newcomers: list[int] = []
        self._store = store  # Lives as long as the group: rank 0 serves it.
        self._form(store, forming)

    def _form(self, store: dist.Store | None, forming: datetime.timedelta) -> None:
        rank, device, world_size = self.rank, self.device, self.world_size
        if store is None:
            assert world_size == 1
            store = dist.HashStore()
        # A process that is alone sends nothing: it needs no communicator. All others form theirs here, where the time
        # counts as a pause, and not within the first step.
        is_on_gpu = device.type == "cuda" and world_size > 1
        if is_on_gpu:
            guard(refuse_shared_gpu, store, rank, world_size, gpu_of(device))
        guard(
            dist.init_process_group,
            backend(),
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=forming,
            device_id=device if is_on_gpu else None,
        )
        self._world = dist.group.WORLD
        self._connect(device if is_on_gpu else None, forming)
        _set_timeout(TIMEOUT)

    def _connect(self, gpu: torch.device | None, forming: datetime.timedelta) -> None:
        """All are there when all have said something, by every way they will."""
        self.sum([0.0])
        if gpu is None:
            return
        work = guard(dist.all_reduce, torch.zeros(1, device=gpu), async_op=True)
        deadline = time.monotonic() + forming.total_seconds()
        while not work.is_completed():
            if time.monotonic() > deadline:
                self.abort()
                raise LostError(f"the GPUs of {self.world_size} processes did not meet within {forming}")
            time.sleep(0.01)

    @property
    def world_size(self) -> int:
        """Copies of the model, each with a rank of its own; a copy has one process, or one for each of its shards."""
        return len(self.members)

    @property
    def processes(self) -> int:
        """Of all copies."""
        return self.world_size * self.shards

    @property
    def place(self) -> int:
        """Of this process among all."""
        return self.rank * self.shards + self.shard

    @property
    def is_leader(self) -> bool:
        """Whether this process decides for all."""
        return self.place == 0

    @property
    def nodes(self) -> int:
        """A node is wherever there is a first process."""
        return max(1, sum(member.local_rank == 0 for member in self.members))

    def introduce(self, me: Member, is_new: bool) -> None:
        """Tells the others who this is, and whether it has yet to hear of the training."""
        rows = self.gather([float(me.replica), float(me.local_rank), float(is_new)])
        rows = rows[:: self.shards]
        self.members = [Member(int(replica), int(local_rank)) for replica, local_rank, _ in rows]
        self.newcomers = [rank for rank, row in enumerate(rows) if rank > 0 and row[2]]

    def meet(self, meeting: Meeting) -> None:
        """Waits until all ranks are here. One that is elsewhere would take what it hears for something else."""
        found = [list(Meeting)[int(row[0])] for row in self.gather([float(list(Meeting).index(meeting))])]
        if any(other is not found[0] for other in found):
            rank = next(rank for rank, other in enumerate(found) if other is not found[0])
            raise UsageError(
                f"rank 0 {found[0].value} while rank {rank} {found[rank].value}; what all processes do together must "
                "be called on every rank, not under `if px.rank() == 0`"
            )

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """What every process has to say, in order of their places."""
        if self.processes == 1:
            return [list(row)]
        return [found.tolist() for found in self._gather(torch.tensor(row, dtype=torch.float64))]

    def broadcast(self, values: Sequence[float]) -> list[float]:
        """What the leader says; the others give as many values of any kind."""
        if self.processes == 1:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64)
        self._broadcast(told)
        return told.tolist()

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over all processes."""
        if self.processes == 1 or not values:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        self._sum(total)
        return total.tolist()

    def sum_of_shards(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes that share a copy of the model with this one."""
        return list(values)

    def broadcast_text(self, text: str) -> str:
        """A text of the leader."""
        [length] = self.broadcast([float(len(text.encode()))])
        if self.processes == 1:
            return text
        data = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_leader:
            data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        self._broadcast(data)
        return data.numpy().tobytes().decode()

    def send_to_shards(self, text: str) -> str:
        """A text of the first process of a copy of the model, for those that share it."""
        return text

    def agree(self, word: str, limit_s: float) -> bool:
        """Whether all that share a copy of the model with this process say the same within a while."""
        return True

    def start_sum(self, gradients: torch.Tensor) -> dist.Work:
        """Begins to add up gradients over all copies of the model."""
        work = dist.all_reduce(gradients, async_op=True)
        assert work is not None
        return work

    def _gather(self, row: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(row) for _ in self.members]
        guard(dist.all_gather, rows, row)
        return rows

    def _broadcast(self, tensor: torch.Tensor) -> None:
        guard(dist.broadcast, tensor, src=0)

    def _sum(self, tensor: torch.Tensor) -> None:
        guard(dist.all_reduce, tensor)

    def hand_over(self, state: Any) -> Any:
        """Gives the state of rank 0 to newcomers, tensor by tensor; `None` to everybody else."""
        if not self.newcomers:
            return None
        ranks = [0, *self.newcomers]
        if self.rank not in ranks:
            return None
        with self._circle(ranks) as broadcast:
            if self.rank > 0:
                return _receive(broadcast)
            _send(state, broadcast)
        return None

    @contextlib.contextmanager
    def _circle(self, ranks: list[int]) -> Iterator[Broadcast]:
        """What rank 0 uses to send tensors to newcomers."""
        # States go by way of processors. Without those who have them already: splitting a communicator of GPUs would
        # take all ranks.
        circle = guard(dist.new_group, ranks, timeout=TIMEOUT, backend="gloo", use_local_synchronization=True)
        yield lambda tensor: guard(dist.broadcast, tensor, src=0, group=circle)
        dist.destroy_process_group(circle)

    def abort(self) -> None:
        """Gives up communication between GPUs: another rank is lost, and whatever waits for it would wait for ever."""
        world = dist.group.WORLD
        if world is not None and world.bound_device_id is not None:
            world._get_backend(world.bound_device_id).abort()

    def close(self) -> None:
        """Leaves; the others have to leave, too."""
        # The user may have made another one since.
        if self._world is not None and self._world is dist.group.WORLD:
            dist.destroy_process_group()
        self._world = None
        self._store = None


def _send(state: Any, broadcast: Broadcast) -> None:
    tensors: list[torch.Tensor] = []
    file = io.BytesIO()
    _Pickler(file, tensors).dump(state)
    skeleton = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
    broadcast(torch.tensor([len(skeleton)]))
    broadcast(skeleton)
    for tensor in tensors:
        broadcast(tensor.detach().cpu().contiguous())


def _receive(broadcast: Broadcast) -> Any:
    length = torch.tensor([0])
    broadcast(length)
    skeleton = torch.empty(int(length), dtype=torch.uint8)
    broadcast(skeleton)
    return _Unpickler(io.BytesIO(skeleton.numpy().tobytes()), broadcast).load()


class _Pickler(pickle.Pickler):
    """Leaves tensors out, in the order in which they come."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]):
        super().__init__(file)
        self._tensors = tensors

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        self._tensors.append(obj)
        return tuple(obj.shape), obj.dtype


class _Unpickler(pickle.Unpickler):
    """Receives each tensor where it belongs: senders and receivers meet them in the same order."""

    def __init__(self, file: io.BytesIO, broadcast: Broadcast):
        super().__init__(file)
        self._broadcast = broadcast

    def persistent_load(self, pid: Any) -> torch.Tensor:
        shape, dtype = pid
        tensor = torch.empty(shape, dtype=dtype)
        self._broadcast(tensor)
        return tensor


@functools.cache
def launched_store() -> dist.Store:
    """Where the processes of a launcher find each other, which is kept as long as anybody may ask."""
    prefer_loopback(os.environ.get("MASTER_ADDR", ""))
    store: dist.Store = next(dist.rendezvous("env://", timeout=TIMEOUT))[0]
    return store


_barriers = itertools.count()


def wait_for_launched() -> None:
    """Waits for all that were started with this process, without a group."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return
    store, idx = dist.PrefixStore("pollux-barrier", launched_store()), next(_barriers)
    if store.add(f"{idx}/here", 1) == world_size:
        store.set(f"{idx}/all", "1")
    store.wait([f"{idx}/all"], TIMEOUT)
    if store.add(f"{idx}/left", 1) == world_size:
        store.set(f"{idx}/done", "1")
    # The store is in the process of rank 0, which may end right after.
    if int(os.environ.get("RANK", "0")) == 0:
        store.wait([f"{idx}/done"], TIMEOUT)


def refuse_foreign_group(own: dist.ProcessGroup | None = None) -> None:
    """PyTorch has one default group, which must be the training's, or that of the shards of its model."""
    if dist.is_initialized() and dist.group.WORLD is not own:
        raise UsageError(
            "a process group is there already; the training makes its own, anew for every size: remove "
            "init_process_group(), and what needs it before the loops, such as DDP, ZeRO or Accelerate; FSDP2 gets its "
            "mesh from px.shard_mesh()"
        )


def _set_timeout(timeout: datetime.timedelta) -> None:
    # PyTorch before 2.15 has it under a private name.
    setter = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    setter(timeout)


def gpu_of(device: torch.device) -> str:
    """A name of a GPU that no other has."""
    return str(torch.cuda.get_device_properties(device).uuid)


def refuse_shared_gpu(store: dist.Store, rank: int, world_size: int, gpu: str) -> None:
    """Two processes of one training on one GPU would be told by NCCL in words that look like a lost process."""
    store.set(f"gpu/{rank}", gpu)
    for other in range(world_size):
        if other != rank and store.get(f"gpu/{other}").decode() == gpu:
            raise UsageError(
                f"ranks {rank} and {other} are on the same GPU ({gpu}); expected one process for each GPU, with the "
                "model on px.device()"
            )


def refuse_other_gpu(group: torch.device, model: torch.device) -> None:
    """Communication of a group that met before there was a model is bound to a GPU."""
    if model.type == "cuda" and model != group:
        raise UsageError(f"the model is on {model}, but the processes have met for {group}; put it on px.device()")


def backend() -> str:
    """What processes talk by: on processors and on GPUs, as far as there are any."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def guard(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs something that fails where another rank is gone."""
    try:
        return call(*args, **kwargs)
    except RuntimeError as error:
        raise LostError(str(error)) from error


def prefer_loopback(address: str) -> None:
    """Gloo looks its own address up, which fails on machines without a name service."""
    if address in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
