"""Other programs that start processes of a training."""

from __future__ import annotations

import os

from .errors import UsageError


def refuse_launcher_in_job(shares_model: bool = False) -> None:
    """Several processes that are started within one replica would all take themselves for that replica, unless they
    share its model."""
    shards = int(os.environ.get("POLLUX_SHARD_COUNT", "1"))
    if shards > 1 and not shares_model:
        raise UsageError(
            f"python -m pollux.replica with {shards} processes that share no model; give fully_shard the mesh of "
            "px.shard_mesh() (PyTorch), or submit the script without it: pollux submit -- python train.py"
        )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if "POLLUX_REPLICA_ID" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ and processes > 1:
        raise UsageError(
            f"torchrun with {processes} processes within a job, whose processes the scheduler starts itself; submit "
            "the script without torchrun: pollux submit -- python train.py"
        )
