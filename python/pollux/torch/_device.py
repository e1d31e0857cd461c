"""Where the model of this process belongs."""

from __future__ import annotations

import os

import torch

from ._errors import UsageError


def device() -> torch.device:
    """The GPU of this process, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    # Pollux and some launchers show each process its own GPU and no other.
    if "POLLUX_REPLICA_ID" in os.environ or count == 1:
        return torch.device("cuda", 0)
    if local_rank >= count:
        raise UsageError(
            f"LOCAL_RANK {local_rank}, but this process sees {count} GPUs; expected is at most one process for each GPU"
        )
    return torch.device("cuda", local_rank)
