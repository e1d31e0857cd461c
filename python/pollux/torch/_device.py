"""Where the model of this process belongs."""

from __future__ import annotations

import os

import torch

from ._errors import UsageError


def device() -> torch.device:
    """The GPU of this process, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # Processes that share a model see all GPUs of their replica.
    shard, count = os.environ.get("POLLUX_SHARD_RANK"), torch.cuda.device_count()
    # Pollux and some launchers show each process its own GPU and no other.
    if count == 1 or (shard is None and "POLLUX_REPLICA_ID" in os.environ):
        return torch.device("cuda", 0)
    local_rank = int(shard or os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= count:
        raise UsageError(
            f"LOCAL_RANK {local_rank}, but this process sees {count} GPUs; expected at most one process for each GPU"
        )
    return torch.device("cuda", local_rank)
