"""Other programs that start processes of a training."""

from __future__ import annotations

import os

from .errors import UsageError


def refuse_launcher_in_job() -> None:
    """Processes that torchrun starts within one replica would all take themselves for that replica."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if "POLLUX_REPLICA_ID" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ and processes > 1:
        raise UsageError(
            f"torchrun with {processes} processes within a job, whose processes the scheduler starts itself; submit "
            "the script without torchrun: pollux submit -- python train.py"
        )
