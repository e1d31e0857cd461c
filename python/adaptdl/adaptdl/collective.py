"""What the processes of a job tell each other: small Python objects. All of them call the same functions in the same
order."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch.distributed as dist

import torch
from pollux.torch import _early

from . import _replay, env

_is_initialized = False


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
) -> None:
    """Waits for the other processes: those of AdaptDL's variables or torchrun's, unless they are given. Under Pollux
    the scheduler says who they are."""
    global _is_initialized
    if _is_initialized:
        raise RuntimeError(f"{__name__} is already initialized; initialize() and init_process_group() once")
    if "POLLUX_JOB_ID" not in os.environ:
        rank = env.replica_rank() if replica_rank is None else replica_rank
        count = env.num_replicas() if num_replicas is None else num_replicas
        address = env.master_addr() if master_addr is None else master_addr
        # The address to listen at is none to connect to.
        address = "127.0.0.1" if address == "0.0.0.0" else address
        port = env.master_port() if master_port is None else master_port
        if count > 1 and port == 0:
            raise ValueError(f"ADAPTDL_MASTER_PORT is not set for {count} replicas; expected a free port of rank 0")
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR=address, MASTER_PORT=str(port))
    _early.meet_early()
    _is_initialized = True


def teardown() -> None:
    """Never was there: processes leave by ending."""
    raise NotImplementedError("teardown() is not implemented, as in AdaptDL; leave it out")


def allreduce(value: Any, reduce_fn: Callable[[Any, Any], Any] | None = None) -> Any:
    """One value made of those of all processes, two at a time in order of rank; their sum, unless told otherwise."""
    return reduce(reduce_fn or _add, _gather(value))


def allreduce_async(value: Any, reduce_fn: Callable[[Any, Any], Any] | None = None) -> Future:
    """As `allreduce`, with the result in something that can be asked for it later."""
    return Future(allreduce(value, reduce_fn))


def broadcast(value: Any) -> Any:
    """The value of rank 0."""
    return _gather(value if env.replica_rank() == 0 or _is_alone() else None)[0]


class Future:
    """A result that is there already."""

    def __init__(self, value: Any):
        self._value = value

    def result(self) -> Any:
        """The value."""
        return self._value


def _add(total: Any, value: Any) -> Any:
    total += value
    return total


def _is_alone() -> bool:
    # A process that joined a running training repeats what the others have done long ago, until it is where they are.
    return not dist.is_initialized() or dist.get_world_size() == 1 or _replay.catches_up


def _gather(value: Any) -> list[Any]:
    """What every process gives, by rank; copies, so that they may be changed."""
    if not _is_initialized and not dist.is_initialized():
        raise RuntimeError(f"{__name__} has not been initialized; call adaptdl.torch.init_process_group() first")
    data = pickle.dumps(value)
    if _is_alone():
        return [pickle.loads(data)]
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(mine)]))
    longest = int(max(lengths))
    rows = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(rows, torch.nn.functional.pad(mine, (0, longest - len(mine))))
    return [pickle.loads(row[: int(length)].numpy().tobytes()) for row, length in zip(rows, lengths)]
